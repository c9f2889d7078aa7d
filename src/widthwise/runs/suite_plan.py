"""How a paper's suite is answered: from files, by lm-evaluation-harness, and from the texts that are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError
from widthwise.evaluation.estimate import Metrics
from widthwise.evaluation.local_tasks import LocalTask, load_task
from widthwise.evaluation.means import text_means
from widthwise.evaluation.paper_suites import suite_named
from widthwise.evaluation.paper_tasks import Suite, missing_parts, suite_table


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
    files = None if folder is None else _files(suite, Path(folder))
    stems = {Path(text).name.partition(".")[0]: text for text in texts}
    own = {stem: stems[stem] for stem in suite.texts.values() if stem in stems}
    found = missing_parts(suite, None if files is None else list(files), list(own), tasks)
    missing = [f"{part} ({reason})" for part, reason in found]
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


def _files(suite: Suite, folder: Path) -> dict[str, tuple[Path, str]]:
    """Stem -> path and delimiter of the suite's files that are in the folder."""
    wanted = {task.local.stem: task.local for task in suite.tasks if task.local is not None}
    found = {stem: (folder / each.name, each.delimiter) for stem, each in wanted.items()}
    present = {stem: each for stem, each in found.items() if each[0].is_file()}
    if not present:
        names = ", ".join(each.name for each in wanted.values()) or "none, as no task of it has one"
        raise UserError(f"{folder}: holds no file of the suite {suite.name}; expected {names}")
    return present
