"""The sets of tasks that the papers evaluate, by the names of their tables, and what of one can be answered.

`variable-width`: Tables 3 and 5 of arXiv:2606.18246, lm-evaluation-harness without examples, normalised accuracy where
the harness has it. `hourglass`: Table 4 of arXiv:2602.06471, whose metrics are those of the evaluators in OLMo's
training code. `virtual-width-a` and `virtual-width-b`: Tables 2 and 3 of arXiv:2511.11238, which name benchmarks but
neither prompts nor metrics: here those that lm-evaluation-harness has for base models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, nearest_hint
from widthwise.evaluation.estimate import Metrics, text_means
from widthwise.evaluation.local_tasks import LocalTask, load_task
from widthwise.evaluation.paper_tasks import LocalFile, PaperTask, Suite, missing_parts, suite_table

QUESTION_ANSWER = "\nAnswer: "
NO_TASK = "lm-evaluation-harness has no such task"
NO_PROMPTS = f"{NO_TASK}, and the paper prints neither prompts nor metric for one"
RUNS_CODE = "runs code that the model writes, which lm-evaluation-harness does only when told to"

VARIABLE_WIDTH = Suite(
    "variable-width",
    (
        PaperTask("ARC-C", "acc_norm", "arc_challenge", LocalFile("arc_challenge", QUESTION_ANSWER), 1172),
        PaperTask("ARC-E", "acc_norm", "arc_easy", LocalFile("arc_easy", QUESTION_ANSWER), 2376),
        PaperTask("BoolQ", "acc", "boolq", LocalFile("boolq", QUESTION_ANSWER), 3270),
        PaperTask("COPA", "acc", "copa", LocalFile("copa"), 100),
        PaperTask("HellaSwag", "acc_norm", "hellaswag", LocalFile("hellaswag"), 10042),
        PaperTask("LAMBADA", "acc", "lambada_openai", LocalFile("lambada_openai"), 5153),
        PaperTask("OBQA", "acc_norm", "openbookqa", LocalFile("openbook_qa"), 500),
        PaperTask("PIQA", "acc_norm", "piqa", LocalFile("piqa", "Answer: "), 1838),
        PaperTask("RACE", "acc", "race", None, 1045),
        PaperTask("SciQ", "acc_norm", "sciq", None, 1000),
        PaperTask("WinoGrande", "acc", "winogrande", LocalFile("winogrande"), 1267),
        PaperTask("LAMBADA perplexity", "perplexity", "lambada_openai", LocalFile("lambada_openai"), 5153),
        PaperTask("WikiText perplexity", "word_perplexity", "wikitext", None, 62),
    ),
)

HOURGLASS = Suite(
    "hourglass",
    (
        PaperTask("Arc Easy", "acc", "arc_easy", LocalFile("arc_easy", QUESTION_ANSWER)),
        PaperTask("HellaSwag", "acc_norm", "hellaswag", LocalFile("hellaswag")),
        PaperTask("PIQA", "acc_norm", "piqa", LocalFile("piqa", "Answer: ")),
        PaperTask("SciQ", "acc", "sciq"),
        PaperTask(
            "CommonsenseQA", "acc_norm", None, absence="lm-evaluation-harness asks it by letters, OLMo by answers"
        ),
        # Called perplexities in the paper; they are what their metric says, as in OLMo.
        PaperTask("TriviaQA (PPL)", "nats_per_character", None, LocalFile("trivia_qa_wiki_ppl"), absence=NO_TASK),
        PaperTask("NaturalQS (PPL)", "nats_per_character", None, LocalFile("natural_qs_open_ppl"), absence=NO_TASK),
    ),
    texts={
        "Dolma Common Crawl": "dolma_common-crawl",
        "Dolma The Stack": "dolma_stack",
        "M2D2": "m2d2_s2orc",
        "WikiText": "wikitext_103",
    },
    text_rows={"Val Loss": "mean_nats_per_token", "Val PPL": "mean_token_perplexity"},
    prints_average=False,
)

_MMLU = PaperTask("MMLU", "acc", "mmlu")
_MMLU_PRO = PaperTask("MMLU-Pro", "exact_match,custom-extract", "mmlu_pro")
_C_EVAL = PaperTask("C-Eval", "acc", "ceval-valid")
_AGIEVAL = PaperTask("AGIEval", "acc", "agieval")
_BBH = PaperTask("BBH", "exact_match,get-answer", "bbh")
_DROP = PaperTask("DROP", "f1", "drop")
_MATH = PaperTask("MATH", "exact_match", "hendrycks_math")
_TRIVIA_QA = PaperTask("TriviaQA", "exact_match,remove_whitespace", "triviaqa")
_HUMAN_EVAL = PaperTask("HumanEval", "pass@1,create_test", None, absence=RUNS_CODE)

VIRTUAL_WIDTH_A = Suite(
    "virtual-width-a",
    (
        PaperTask("ARC-C", "acc_norm", "arc_challenge", LocalFile("arc_challenge", QUESTION_ANSWER)),
        _BBH,
        _DROP,
        PaperTask("WinoGrande", "acc", "winogrande", LocalFile("winogrande")),
        PaperTask("HellaSwag", "acc_norm", "hellaswag", LocalFile("hellaswag")),
        _MMLU,
        _MMLU_PRO,
        _C_EVAL,
        _TRIVIA_QA,
        PaperTask("Ape210K", "exact_match", None, absence=NO_PROMPTS),
        PaperTask("GSM8K", "exact_match,flexible-extract", "gsm8k"),
        _MATH,
        PaperTask("MBPP", "pass_at_1", None, absence=RUNS_CODE),
        _HUMAN_EVAL,
        _AGIEVAL,
        PaperTask("GPQA", "acc_norm", "gpqa_main_zeroshot"),
    ),
)

VIRTUAL_WIDTH_B = Suite(
    "virtual-width-b",
    (
        _MMLU,
        _MMLU_PRO,
        _C_EVAL,
        _AGIEVAL,
        _BBH,
        _DROP,
        PaperTask("KOR-Bench-Easy", "exact_match", None, absence=NO_PROMPTS),
        _MATH,
        PaperTask("MBPP+", "pass_at_1", None, absence=RUNS_CODE),
        _HUMAN_EVAL,
        PaperTask("McEval", "pass@1", None, absence=f"{NO_PROMPTS}; it {RUNS_CODE}"),
        _TRIVIA_QA,
        PaperTask("Chinese SimpleQA", "exact_match", None, absence=NO_PROMPTS),
    ),
    has_unknown_weights=True,
)

SUITES = {suite.name: suite for suite in (VARIABLE_WIDTH, HOURGLASS, VIRTUAL_WIDTH_A, VIRTUAL_WIDTH_B)}


def suite_named(name: str) -> Suite:
    """Raises UserError for an unknown name."""
    if name not in SUITES:
        raise UserError(f"suite: got {name!r}; {nearest_hint(name, SUITES)}")
    return SUITES[name]


@dataclass(frozen=True)
class SuitePlan:
    """A suite with what there is to answer it."""

    suite: Suite
    files: list[LocalTask]
    harness: list[str]
    """Tasks of lm-evaluation-harness to be asked for it."""
    texts: dict[str, str]
    """Stem -> name of each of the suite's texts that is read."""
    missing: list[str]
    """What cannot be had, each with its reason."""

    def table(
        self, local: Mapping[str, Metrics], harness: Mapping[str, Metrics], texts: Mapping[str, Metrics]
    ) -> dict[str, Any]:
        """Return the `suite_table`. local: by file; harness: by task; texts: by name."""
        own = {name: texts[name] for name in self.texts.values()}
        means = text_means(own) if len(own) == len(self.suite.texts) else None
        table = suite_table(self.suite, local, harness, None if means is None else means["metrics"])
        return {**table, "missing": self.missing}


def plan_suite(
    name: str, folder: str | None, texts: Sequence[str], tasks: Sequence[str], limit: int | None, is_partial: bool
) -> SuitePlan:
    """What of a suite can be answered.

    folder: of task files, which are all there is then; None: lm-evaluation-harness is asked. texts: names of those that
    are read, which are the suite's where their stem is. tasks: of the harness, asked for anyway. limit: items of each
    file. Raises UserError where a folder has no file of the suite, and, unless it may be partial, for whatever is
    missing, by name.
    """
    suite = suite_named(name)
    files = None
    if folder is not None:
        wanted = {task.local.stem: task.local for task in suite.tasks if task.local is not None}
        found = {stem: (Path(folder) / each.name, each.delimiter) for stem, each in wanted.items()}
        files = {stem: each for stem, each in found.items() if each[0].is_file()}
        if not files:
            names = ", ".join(each.name for each in wanted.values()) or "none, as no task of it has one"
            raise UserError(f"{folder}: holds no file of the suite {suite.name}; expected {names}")
    stems = {Path(text).name.partition(".")[0]: text for text in texts}
    own = {stem: stems[stem] for stem in suite.texts.values() if stem in stems}
    parts = missing_parts(suite, None if files is None else list(files), list(own), tasks)
    missing = [f"{part} ({reason})" for part, reason in parts]
    if missing and not is_partial:
        never = [task.name for task in suite.tasks if task.is_out_of_reach]
        always = f"{', '.join(never)}: neither a file nor a task can give these, so this suite always needs --partial; "
        raise UserError(
            f"suite {name}: {len(missing)} parts cannot be had: {', '.join(missing)}; {always if never else ''}"
            "with --partial the rest is evaluated, and its average marked as partial"
        )
    loaded = [load_task(path, delimiter, limit) for path, delimiter in (files or {}).values()]
    asked = [] if files is not None else [task.lm_eval for task in suite.tasks if task.lm_eval is not None]
    return SuitePlan(suite, loaded, asked, own, missing)
