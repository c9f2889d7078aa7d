"""The papers' tasks by the names of their tables, with the metrics they print.

`variable-width`: Tables 3 and 5 of arXiv:2606.18246, lm-evaluation-harness without examples, normalised accuracy where
the harness has it. `hourglass`: the downstream columns of Table 4 of arXiv:2602.06471, whose metrics are those of the
evaluators in OLMo's training code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from widthwise.config_io import UserError, nearest_hint

QUESTION_ANSWER = "\nAnswer: "


@dataclass(frozen=True)
class LocalFile:
    """The same questions as a file of llm-foundry's `local_data`."""

    stem: str
    """Name of the file without `.jsonl`."""
    delimiter: str = " "
    """Between question and answer, so that the text is that of lm-evaluation-harness as nearly as the file allows."""


@dataclass(frozen=True)
class PaperTask:
    """A column of a paper's table."""

    name: str
    metric: str
    lm_eval: str | None
    """The task of lm-evaluation-harness; None: it has none with this metric."""
    local: LocalFile | None = None
    n_items: int | None = None
    """As the paper counts them."""

    @property
    def is_accuracy(self) -> bool:
        return self.metric in ("acc", "acc_norm")


SUITES: dict[str, tuple[PaperTask, ...]] = {
    "variable-width": (
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
    "hourglass": (
        PaperTask("Arc Easy", "acc", "arc_easy", LocalFile("arc_easy", QUESTION_ANSWER)),
        PaperTask("HellaSwag", "acc_norm", "hellaswag", LocalFile("hellaswag")),
        PaperTask("PIQA", "acc_norm", "piqa", LocalFile("piqa", "Answer: ")),
        PaperTask("SciQ", "acc", "sciq"),
        # The harness has letters to choose from, OLMo the answers themselves.
        PaperTask("CommonsenseQA", "acc_norm", None),
        # Called perplexities in the paper; they are what their metric says, as in OLMo.
        PaperTask("TriviaQA (PPL)", "nats_per_character", None, LocalFile("trivia_qa_wiki_ppl")),
        PaperTask("NaturalQS (PPL)", "nats_per_character", None, LocalFile("natural_qs_open_ppl")),
    ),
}

Metrics = Mapping[str, Mapping[str, float | None]]
"""Metric -> value and stderr."""


def suite_named(name: str) -> tuple[PaperTask, ...]:
    """Raises UserError for an unknown name."""
    if name not in SUITES:
        raise UserError(f"suite: got {name!r}; {nearest_hint(name, SUITES)}")
    return SUITES[name]


def suite_table(
    tasks: tuple[PaperTask, ...], local: Mapping[str, Metrics], lm_eval: Mapping[str, Metrics]
) -> dict[str, Any]:
    """A row for each column of the paper's table, and under `average_accuracy` the mean of its accuracies.

    local: by the stem of the file; lm_eval: by task. The source of a row without a result is "not evaluated"; with one
    accuracy missing there is no average.
    """
    rows = [_row(task, local, lm_eval) for task in tasks]
    accuracies = [row["value"] for row, task in zip(rows, tasks) if task.is_accuracy]
    complete = all(value is not None for value in accuracies)
    return {"rows": rows, "average_accuracy": fmean(accuracies) if complete else None}


def _row(task: PaperTask, local: Mapping[str, Metrics], lm_eval: Mapping[str, Metrics]) -> dict[str, Any]:
    if task.local is not None and task.local.stem in local:
        found, source = local[task.local.stem], f"{task.local.stem}.jsonl"
    elif task.lm_eval is not None and task.lm_eval in lm_eval:
        found, source = lm_eval[task.lm_eval], f"lm-eval {task.lm_eval}"
    else:
        found, source = {}, "not evaluated"
    estimate = found.get(task.metric, {"value": None, "stderr": None})
    return {"name": task.name, "metric": task.metric, "source": source, "paper_items": task.n_items, **estimate}
