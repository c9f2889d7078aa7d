"""The sets of tasks that the papers evaluate, which suites.yaml lists; their tables; the parts that can be answered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from widthwise.config_io import Config, UserError, check_one_of, parse
from widthwise.evaluation.estimate import mean_of_scores, text_means
from widthwise.evaluation.local_tasks import LocalTask, load_task
from widthwise.records.evaluation import Score, Scores, SuiteAnswers, SuiteAverage, SuiteRow, harness_answers
from widthwise.yaml_io import read_mapping

UNITS = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1 that are averaged over tasks; a filter of lm-evaluation-harness may follow a comma."""


def is_share(metric: str) -> bool:
    """Return True for one of UNITS or an average of them, where higher is better; all others are losses."""
    return metric.partition(",")[0] in (*UNITS, "average")


class PaperTask(Config):
    """A column of a paper's table."""

    name: str
    metric: str
    lm_eval: str | None = None
    """The task of lm-evaluation-harness; None: it has none with this metric."""
    file: str | None = None
    """The same questions as a file of llm-foundry's `local_data`, without `.jsonl`."""
    delimiter: str = " "
    """Between question and answer, as close to the text of lm-evaluation-harness as the file allows."""
    n_items: int | None = None
    """Questions of the task, as the paper counts them."""
    absence: str = ""
    """Reason why the harness cannot be asked, if it cannot."""


class Suite(Config):
    """The tasks and texts that a paper evaluates."""

    name: str
    tasks: tuple[PaperTask, ...]
    texts: Mapping[str, str] = {}
    """The paper's name of each text -> the stem of its file."""
    text_rows: Mapping[str, str] = {}
    """Row of the table -> its metric among the means over all texts."""
    prints_average: bool = True
    """The paper prints the average over tasks."""
    has_unknown_weights: bool = False
    """The paper weights its average in an unknown way; here all tasks count the same."""

    def answers(self, stem: str) -> str:
        """Return the name of the answers to one of its files in an evaluation."""
        return f"{self.name}/{stem}"


_SUITES_FILE = Path(__file__).with_name("suites.yaml")
SUITES = {
    name: parse(Suite, {"name": name, **suite}, str(_SUITES_FILE)) for name, suite in read_mapping(_SUITES_FILE).items()
}


def _row(name: str, metric: str, source: str, answers: str | None, n_items: int | None, found: Scores) -> SuiteRow:
    score = found.get(metric, Score(value=None, stderr=None)).to_data()
    return SuiteRow(**score, name=name, metric=metric, source=source, answers=answers, paper_items=n_items)


def _average(suite: Suite, rows: Sequence[SuiteRow]) -> SuiteAverage | None:
    answered = [row for row in rows if row.value is not None]
    if not answered:
        return None
    mean = mean_of_scores(answered)
    return SuiteAverage(
        value=mean.value,
        stderr=mean.stderr,
        n_tasks=len(answered),
        n_tasks_of_suite=len(rows),
        missing=[row.name for row in rows if row.value is None],
        tasks=[row.name for row in answered],
        is_printed=suite.prints_average,
        has_unknown_weights=suite.has_unknown_weights,
    )


def missing_parts(
    suite: Suite, files: Sequence[str] | None, texts: Sequence[str], asked: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield each unavailable part of the suite with the reason.

    files: stems of the available task files, None if the harness runs its tasks; texts: stems of the available texts;
    asked: tasks of the harness that are requested separately.
    """
    for task in suite.tasks:
        is_asked = task.lm_eval is not None and (files is None or task.lm_eval in asked)
        if is_asked or task.file in (files or ()):
            continue
        reasons = []
        if files is not None:
            reasons.append("no file of it is known" if task.file is None else f"no {task.file}.jsonl")
        reasons.append(task.absence if task.lm_eval is None else f"--tasks {task.lm_eval} is not asked for")
        yield task.name, " and ".join(reasons)
    for name, stem in suite.texts.items():
        if stem not in texts:
            yield name, f"no text {stem}"


@dataclass(frozen=True)
class SuitePlan:
    """A suite with the files, tasks and texts that answer it."""

    suite: Suite
    files: list[LocalTask]
    harness: list[str]
    """Tasks of lm-evaluation-harness that answer it."""
    texts: dict[str, str]
    """Stem -> name, of those texts of the suite that are read."""
    missing: list[str]
    """Unavailable parts, each with its reason."""

    def answers(
        self, local: Mapping[str, Scores], harness: Mapping[str, Scores], texts: Mapping[str, Scores]
    ) -> SuiteAnswers:
        """Return a row for each column of the paper's table, and the average over the tasks with a result.

        local: by the stem of the file; harness: by task; texts: by name. Means are over all texts of the suite.
        """
        rows, suite = [], self.suite
        for task in suite.tasks:
            found, source, answers = {}, "not evaluated", None
            if task.file is not None and task.file in local:
                found, source, answers = local[task.file], f"{task.file}.jsonl", suite.answers(task.file)
            elif task.lm_eval is not None and task.lm_eval in harness:
                found = harness[task.lm_eval]
                source = answers = harness_answers(task.lm_eval)
            rows.append(_row(task.name, task.metric, source, answers, task.n_items, found))
        averaged = [row for row, task in zip(rows, suite.tasks) if is_share(task.metric)]
        means = text_means([texts[name] for name in self.texts.values()])
        known = means.metrics if means is not None and len(self.texts) == len(suite.texts) else {}
        for name, metric in suite.text_rows.items():
            source = f"mean of {len(suite.texts)} texts" if metric in known else "not evaluated"
            rows.append(_row(name, metric, source, None, None, known))
        return SuiteAnswers(name=suite.name, rows=rows, average=_average(suite, averaged), missing=self.missing)


def plan_suite(
    name: str, folder: str | None, texts: Sequence[str], tasks: Sequence[str], limit: int | None, is_partial: bool
) -> SuitePlan:
    """Plan the evaluation of a suite.

    folder: of task files, used instead of lm-evaluation-harness; texts: names of the texts that are read, which belong
    to the suite by their stem; tasks: of the harness, requested separately; limit: items of each file. Raises UserError
    for an unknown suite, for a folder without any of its files, and, unless is_partial, for missing parts, by name.
    """
    check_one_of("suite", name, SUITES)
    suite = SUITES[name]
    files = None
    if folder is not None:
        wanted = {task.file: task.delimiter for task in suite.tasks if task.file is not None}
        places = {stem: (Path(folder) / f"{stem}.jsonl", delimiter) for stem, delimiter in wanted.items()}
        files = {stem: place for stem, place in places.items() if place[0].is_file()}
        if not files:
            names = ", ".join(f"{stem}.jsonl" for stem in wanted) or "none, as no task of it has one"
            raise UserError(f"{folder}: holds no file of the suite {suite.name}; expected {names}")
    stems = {Path(text).name.partition(".")[0]: text for text in texts}
    own = {stem: stems[stem] for stem in suite.texts.values() if stem in stems}
    parts = missing_parts(suite, None if files is None else list(files), list(own), tasks)
    missing = [f"{part} ({reason})" for part, reason in parts]
    if missing and not is_partial:
        never = [task.name for task in suite.tasks if task.file is None and task.lm_eval is None]
        always = f"{', '.join(never)}: neither a file nor a task can give these, so this suite always needs --partial; "
        raise UserError(
            f"suite {name}: {len(missing)} parts are unavailable: {', '.join(missing)}; {always if never else ''}"
            "--partial evaluates the rest and marks the average as partial"
        )
    loaded = [load_task(path, delimiter, limit) for path, delimiter in (files or {}).values()]
    asked = [] if files is not None else [task.lm_eval for task in suite.tasks if task.lm_eval is not None]
    return SuitePlan(suite, loaded, asked, own, missing)
