"""A run on disk, the contract between the tools.

config.yaml        the resolved recipe: explicit layers, every default written out
environment.json   versions, machine, commit, command, data, the recipe that the run was begun with, and later changes
metrics.jsonl      one record a line: {"step", "event": "train" | "validation" | "growth" | "skipped" |
                   "norms" | "stopped", ...}, and "grown" where it begins from a checkpoint of another run
samples.jsonl      with train.sample, what the model wrote at validations: {"step", "event": "sample", "prompt", "text"}
result.json        written once, when the run has finished, with checksums of itself and of what it comes from
checkpoints/       step_00000100/ ... (training/checkpoint.py)
tokenizer/         the tokenizer's file, so that the run can be used without its data
lock, holder       held by the process that writes here, and its number
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

from widthwise.config_io import Config, UserError, parse, to_data
from widthwise.files import (
    FileRecord,
    is_at,
    leftovers,
    missing_folders,
    read_json_mapping,
    read_text,
    remove_unused,
    write_atomic,
    writing,
)
from widthwise.metrics_file import MetricsFile
from widthwise.mistakes import RunFailed
from widthwise.records.record import CHECKSUMS, SealedFile, check_unchanged, digests
from widthwise.records.run import OF_PROCESSES, Continuation, RunResult, changes_in_words, continued, other_folder
from widthwise.yaml_io import dump_yaml, parse_yaml

WRITTEN_WHOLE = ("config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl", "result.json", "holder")
"""Files that only the process that holds the run writes."""
RECIPE = "recipe"
"""Key of the recipe in environment.json, so that a config.yaml that was changed later can be restored."""
ENTRIES = {
    **dict.fromkeys(("command", "widthwise"), (str, "text")),
    **dict.fromkeys(("data", "imported", "validation"), (dict, "a mapping")),
}
"""Key of environment.json -> the type of its value, in Python and in words, where one is relied on."""
SEAL = "seal"
"""Key of the checksum of the seal in result.json."""
CONTINUED = "continued"
"""Key of the other settings with which the run was resumed, and the times, in environment.json."""


class Seal(Config):
    """The owner of a checkpoint or a result."""

    recipe: str
    """sha256 of the recipe that the run was begun with."""
    metrics: FileRecord
    """metrics.jsonl as it was then; later records follow."""


class _Checksums(Config):
    seal: Seal
    entries: dict[str, str]


class RunDir:
    """Paths and records of one run."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._handle: int | None = None
        """Descriptor of the open folder, while it is locked."""

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def check_checkpoints_are_own(self) -> None:
        """Raises UserError where checkpoints/ is a link into another run, whose checkpoints would be replaced.

        A link to a folder of no run, such as one on a larger disk, is fine.
        """
        if os.path.lexists(self.checkpoints) and not self.checkpoints.is_dir():
            raise UserError(f"{self.checkpoints}: is no folder, nor a link to one; delete it")
        owner = self.checkpoints.resolve().parent
        if owner != self.path.resolve() and (owner / "config.yaml").exists():
            raise UserError(f"{self.checkpoints}: leads to the checkpoints of another run, {owner}; must be this run's")

    @property
    def tokenizer_folder(self) -> Path:
        return self.path / "tokenizer"

    @property
    def _environment_file(self) -> SealedFile:
        return SealedFile(self.path / "environment.json")

    @property
    def metrics_file(self) -> MetricsFile:
        return MetricsFile(self.path / "metrics.jsonl")

    @property
    def samples_file(self) -> MetricsFile:
        return MetricsFile(self.path / "samples.jsonl")

    @property
    def exists(self) -> bool:
        """True if a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def begin(self, config_yaml: str, environment: Mapping[str, Any]) -> None:
        """Makes the folder, or accepts one begun with the same recipe. Raises UserError where the recipes differ."""
        if self.exists:
            self.check_recipe(config_yaml)
            return
        self._environment_file.write({**environment, RECIPE: config_yaml})
        write_atomic(self.path / "config.yaml", config_yaml)

    def check_recipe(self, config_yaml: str, begun_with: str | None = None) -> None:
        """Raises UserError where the run was begun with another recipe.

        begun_with: what `config_yaml()` says, with the defaults of options that are newer than the run.
        """
        differing = changes_in_words(
            parse_yaml(begun_with or self.config_yaml(), "config.yaml"), parse_yaml(config_yaml, "recipe")
        )
        if found := [each for each in differing if not each.startswith(OF_PROCESSES)]:
            other = ", ".join(found[:3])
            raise UserError(f"{self.path}: holds a run of another recipe ({other}); choose another folder with --out")

    def config_yaml(self) -> str:
        """The resolved recipe. Raises UserError where `path` is no run directory, or its recipe was changed later."""
        if not self.exists:
            raise UserError(f"{self.path}: is not a run directory (no config.yaml){other_folder(self.path)}")
        text, begun_with = read_text(self.path / "config.yaml"), self._begun_with()
        if text == begun_with:
            return text
        begun, now, known = parse_yaml(begun_with, RECIPE), parse_yaml(text, "config.yaml"), self.continuations()
        # `continue_with` writes two files; a kill between them leaves the earlier recipe, which is as good.
        changes = min(
            (changes_in_words(continued(begun, each), now, of_the_same_run=True) for each in (known, known[:-1])),
            key=len,
        )
        if changes:
            raise UserError(
                f"{self.path}/config.yaml: was changed after the run was begun: {', '.join(changes[:3])}; undo "
                f"that, and `widthwise grow {self.path} KEY=VALUE --out NEW` starts from there with other settings"
            )
        return text

    def _begun_with(self) -> str:
        """The recipe that the run was begun with. Raises UserError where it was not kept."""
        path = self._environment_file.path
        recipe = self._environment_file.read().get(RECIPE)
        if not isinstance(recipe, str):
            raise UserError(f"{path}: {RECIPE}: holds {type(recipe).__name__}, not text")
        return recipe

    def environment(self) -> dict[str, Any]:
        """Versions, machine, command and data. Raises UserError where the file is missing or broken."""
        found = self._environment_file.read()
        for key, (kind, words) in ENTRIES.items():
            if not isinstance(found.get(key), (kind, NoneType)):
                got = type(found[key]).__name__
                raise UserError(f"{self._environment_file.path}: {key}: holds {got}; must be {words}, or null")
        return {key: value for key, value in found.items() if key not in (RECIPE, CONTINUED)}

    def continuations(self) -> list[Continuation]:
        """The moments at which the run was resumed with other settings, in order."""
        file = self._environment_file
        found = file.read().get(CONTINUED, []) if file.path.is_file() else []
        return [parse(Continuation, each, f"{file.path}: {CONTINUED}") for each in found]

    def continue_with(self, continuation: Continuation) -> None:
        """Changes the recipe from here on, and keeps on record what it was."""
        known = [*self.continuations(), continuation]
        recipe = continued(parse_yaml(self.config_yaml(), "config.yaml"), [continuation])
        self.add_to_environment({CONTINUED: [each.to_data() for each in known]})
        write_atomic(self.path / "config.yaml", dump_yaml(recipe))

    def set_result_aside(self, steps: int) -> None:
        """The run goes on behind its end: the result gets a name that says after how many steps it was found."""
        result = self.path / RunResult.file_name
        result.replace(self.path / f"result_step_{steps:08}.json")

    def add_to_environment(self, records: Mapping[str, Any]) -> None:
        """Writes down what was not known when the run was begun."""
        known = [each.to_data() for each in self.continuations()]
        continued_with = {CONTINUED: known} if known else {}
        changed = {**self.environment(), **continued_with, **records, RECIPE: self._begun_with()}
        self._environment_file.write(changed)

    def seal(self) -> Seal:
        """Return the owner of a checkpoint or result of this moment. Call when the records are safe on the disk."""
        return Seal(recipe=self._recipe_sha256(), metrics=self.metrics_file.front())

    def check_recipe_of(self, seal: Seal | None, of: str) -> None:
        """Raises UserError where what is sealed belongs to another recipe, or has no seal. of: its name, for errors."""
        if seal is None:
            raise UserError(f"{self.path}: {of} does not say to which run it belongs")
        if seal.recipe != self._recipe_sha256():
            raise UserError(f"{self.path}: {of} belongs to a run of another recipe than config.yaml")

    def check_seal(self, seal: Seal | None, of: str) -> None:
        """As `check_recipe_of`; raises UserError too where records of that time are missing or others now."""
        self.check_recipe_of(seal, of)
        assert seal is not None
        self.metrics_file.check_front(seal.metrics, of)

    def _recipe_sha256(self) -> str:
        return hashlib.sha256(self._begun_with().encode()).hexdigest()

    @property
    def has_result(self) -> bool:
        """True if the run has finished."""
        return (self.path / RunResult.file_name).is_file()

    def result(self) -> RunResult | None:
        """The result, or None while the run has not finished.

        Raises UserError where it, the recipe or the records were changed after it was written.
        """
        path = self.path / RunResult.file_name
        if not path.is_file():
            return None
        found = read_json_mapping(path)
        checksums = parse(_Checksums, found.pop(CHECKSUMS, None), f"{path}: {CHECKSUMS}")
        check_unchanged({**found, SEAL: to_data(checksums.seal)}, checksums.entries, path)
        self.check_seal(checksums.seal, "the result")
        return parse(RunResult, found, str(path)).stored_in(self.path)

    def write_result(self, result: RunResult) -> None:
        """Writes result.json where the folder is now. Raises UserError on a full disk, RunFailed where it is gone."""
        self.follow()
        self.metrics_file.fsync()
        data, seal = result.to_data(), self.seal()
        checksums = _Checksums(seal=seal, entries=digests({**data, SEAL: to_data(seal)}))
        content = {**data, CHECKSUMS: to_data(checksums)}
        write_atomic(self.path / RunResult.file_name, json.dumps(content, indent=2) + "\n")
        result.stored_in(self.path)

    def metrics(self) -> list[dict[str, Any]]:
        """All records of the run so far. Raises UserError for a line that is no record."""
        return self.metrics_file.records()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the run for one process; a killed one holds nothing. Raises RunInUse where another holds it.

        Folders that were made for it go again, if no run was begun in them.
        """
        from filelock import FileLock, Timeout  # slow to import, and verbs that only read hold nothing

        holder, path = self.path / "holder", self.path
        made = missing_folders(path)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                # Not at once, because `is_in_use` of another process may look at this moment.
                lock = FileLock(self.path / "lock").acquire(timeout=0.2, poll_interval=0.02)
            except Timeout:
                process = read_text(holder) if holder.is_file() else "unknown"
                raise RunInUse(f"{self.path}: is in use by process {process}") from None
        with lock:
            for left in leftovers(self.path):  # of other hosts too: no other process writes into a locked folder
                if left.name in WRITTEN_WHOLE:
                    left.path.unlink(missing_ok=True)
            write_atomic(holder, str(os.getpid()))
            self._handle = os.open(self.path, os.O_RDONLY)
            try:
                yield
            finally:
                os.close(self._handle)
                self._handle = None
                remove_unused(made, {"lock", "holder"})  # who waits for the lock sees its file gone, and makes another

    @property
    def is_in_use(self) -> bool:
        """True if a process holds the run at this moment."""
        try:
            handle = os.open(self.path / "lock", os.O_RDONLY | os.O_NONBLOCK)  # of a pipe it does not wait for a writer
        except OSError:  # no such file, or an unreadable one
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def follow(self) -> bool:
        """Goes where somebody has moved the locked folder, if they have. Raises RunFailed where it is gone."""
        if self._handle is None or is_at(self._handle, self.path):
            return False
        link = Path(f"/proc/self/fd/{self._handle}")
        found = link.readlink() if link.is_symlink() else self.path
        if not is_at(self._handle, found):
            raise RunFailed(f"{self.path}: was deleted or moved while the run was training; nothing more can be saved")
        self.path = found if self.path.is_absolute() else Path(os.path.relpath(found))
        return True


class RunInUse(UserError):
    """A run that another process works on at this moment."""
