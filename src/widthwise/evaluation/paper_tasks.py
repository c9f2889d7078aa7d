"""The sets of tasks that the papers evaluate, their tables, and the parts that can be answered here.

`variable-width`: Tables 3 and 5 of arXiv:2606.18246, lm-evaluation-harness without examples, normalised accuracy where
the harness has it. `hourglass`: Table 4 of arXiv:2602.06471, whose metrics are those of the evaluators in OLMo's
training code. `virtual-width-a` and `virtual-width-b`: Tables 2 and 3 of arXiv:2511.11238, which name benchmarks but
neither prompts nor metrics: here those that lm-evaluation-harness has for base models.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, nearest_hint
from widthwise.evaluation.estimate import Metrics, SampleEstimate, mean_of, text_means
from widthwise.evaluation.local_tasks import LocalTask, load_task

UNITS = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1 that are averaged over tasks; a filter of lm-evaluation-harness may follow behind a comma."""


def is_share(metric: str) -> bool:
    """Return True for one of UNITS or an average of them, where higher is better; all others are losses."""
    return metric.partition(",")[0] in (*UNITS, "average")


@dataclass(frozen=True)
class LocalFile:
    """The same questions as a file of llm-foundry's `local_data`."""

    stem: str
    """Name of the file without `.jsonl`."""
    delimiter: str = " "
    """Between question and answer, as close to the text of lm-evaluation-harness as the file allows."""

    @property
    def name(self) -> str:
        return f"{self.stem}.jsonl"


@dataclass(frozen=True)
class PaperTask:
    """A column of a paper's table."""

    name: str
    metric: str
    lm_eval: str | None
    """The task of lm-evaluation-harness; None: it has none with this metric."""
    local: LocalFile | None = None
    n_items: int | None = None
    """Questions of the task, as the paper counts them."""
    absence: str = ""
    """Reason why the harness cannot be asked, if it cannot."""

    @property
    def is_averaged(self) -> bool:
        return self.metric.partition(",")[0] in UNITS


@dataclass(frozen=True)
class Suite:
    """The tasks and texts that a paper evaluates."""

    name: str
    tasks: tuple[PaperTask, ...]
    texts: Mapping[str, str] = field(default_factory=dict)
    """The paper's name of each text -> the stem of its file."""
    text_rows: Mapping[str, str] = field(default_factory=dict)
    """Row of the table -> its metric among the means over all texts."""
    prints_average: bool = True
    """The paper prints the average over tasks."""
    has_unknown_weights: bool = False
    """The paper weights its average in an unknown way; here all tasks count the same."""

    def answers(self, stem: str) -> str:
        """Return the name of the answers to one of its files in an evaluation."""
        return f"{self.name}/{stem}"


def harness_answers(task: str) -> str:
    """Return the name of the answers to a task of lm-evaluation-harness among differences."""
    return f"lm-eval {task}"


def suite_table(
    suite: Suite,
    local: Mapping[str, Metrics],
    lm_eval: Mapping[str, Metrics],
    text_means: Metrics | None = None,
) -> dict[str, Any]:
    """Return `rows`, one for each column of the paper's table, and `average`, over the tasks with a result.

    local: by the stem of the file; lm_eval: by task; text_means: over the suite's texts, None if one is missing. The
    source of a row without a result is "not evaluated"; `answers` is the name of its answers among differences. The
    average lists its `tasks` and the `missing` ones; it is None if no task has a result.
    """
    rows = [_row(suite, task, local, lm_eval) for task in suite.tasks]
    averaged = [row for row, task in zip(rows, suite.tasks) if task.is_averaged]
    means = text_means or {}
    for name, metric in suite.text_rows.items():
        source = f"mean of {len(suite.texts)} texts" if metric in means else "not evaluated"
        row = {"name": name, "metric": metric, "source": source, "answers": None, "paper_items": None}
        rows.append(_filled(row, means))
    return {"name": suite.name, "rows": rows, "average": _average(suite, averaged)}


def _row(suite: Suite, task: PaperTask, local: Mapping[str, Metrics], lm_eval: Mapping[str, Metrics]) -> dict[str, Any]:
    found, source, answers = {}, "not evaluated", None
    if task.local is not None and task.local.stem in local:
        found, source = local[task.local.stem], task.local.name
        answers = suite.answers(task.local.stem)
    elif task.lm_eval is not None and task.lm_eval in lm_eval:
        found = lm_eval[task.lm_eval]
        source = answers = harness_answers(task.lm_eval)
    row = {"name": task.name, "metric": task.metric, "source": source, "answers": answers, "paper_items": task.n_items}
    return _filled(row, found)


def _filled(row: dict[str, Any], found: Metrics) -> dict[str, Any]:
    return row | dict(found.get(row["metric"], {"value": None, "stderr": None}))


def _average(suite: Suite, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    answered = [row for row in rows if row["value"] is not None]
    if not answered:
        return None
    return {
        **mean_of([SampleEstimate.of_record(row) for row in answered]).record(),
        "n_tasks": len(answered),
        "n_tasks_of_suite": len(rows),
        "missing": [row["name"] for row in rows if row["value"] is None],
        "tasks": [row["name"] for row in answered],
        "is_printed": suite.prints_average,
        "has_unknown_weights": suite.has_unknown_weights,
    }


def missing_parts(
    suite: Suite, files: Sequence[str] | None, texts: Sequence[str], asked: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield each unavailable part of the suite with the reason.

    files: stems of the available task files, None if the harness is asked for its tasks; texts: stems of the available
    texts; asked: tasks of the harness that are asked for anyway.
    """
    for task in suite.tasks:
        is_asked = task.lm_eval is not None and (files is None or task.lm_eval in asked)
        if is_asked or (task.local is not None and task.local.stem in (files or ())):
            continue
        reasons = []
        if files is not None:
            reasons.append("no file of it is known" if task.local is None else f"no {task.local.name}")
        reasons.append(task.absence if task.lm_eval is None else f"--tasks {task.lm_eval} is not asked for")
        yield task.name, " and ".join(reasons)
    for name, stem in suite.texts.items():
        if stem not in texts:
            yield name, f"no text {stem}"


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


@dataclass(frozen=True)
class SuitePlan:
    """A suite with the files, tasks and texts that answer it."""

    suite: Suite
    files: list[LocalTask]
    harness: list[str]
    """Tasks of lm-evaluation-harness to be asked for it."""
    texts: dict[str, str]
    """Stem -> name, of those texts of the suite that are read."""
    missing: list[str]
    """Unavailable parts, each with its reason."""

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
    """Plan the evaluation of a suite.

    folder: of task files, asked instead of lm-evaluation-harness; texts: names of the texts that are read, which belong
    to the suite by their stem; tasks: of the harness, asked for anyway; limit: items of each file. Raises UserError for
    an unknown suite, for a folder without any of its files, and, unless is_partial, for missing parts, by name.
    """
    if name not in SUITES:
        raise UserError(f"suite: got {name!r}; {nearest_hint(name, SUITES)}")
    suite = SUITES[name]
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
        never = [task.name for task in suite.tasks if task.local is None and task.lm_eval is None]
        always = f"{', '.join(never)}: neither a file nor a task can give these, so this suite always needs --partial; "
        raise UserError(
            f"suite {name}: {len(missing)} parts are unavailable: {', '.join(missing)}; {always if never else ''}"
            "with --partial the rest is evaluated, and its average marked as partial"
        )
    loaded = [load_task(path, delimiter, limit) for path, delimiter in (files or {}).values()]
    asked = [] if files is not None else [task.lm_eval for task in suite.tasks if task.lm_eval is not None]
    return SuitePlan(suite, loaded, asked, own, missing)
