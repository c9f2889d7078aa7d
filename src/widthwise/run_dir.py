"""A run on disk, the contract between the tools.

config.yaml        the resolved recipe: explicit layers and all defaults
environment.json   versions, machine, commit, command, data, the original recipe, and later changes of it
metrics.jsonl      one record a line: {"step", "event": "train" | "validation" | "growth" | "skipped" |
                   "norms" | "stopped", ...}, and "grown" in a run that begins with a checkpoint of another run
samples.jsonl      with train.sample, the samples at validations: {"step", "event": "sample", "prompt", "text"}
result.json        written once, when the run has finished, with checksums of itself, the recipe and the records
checkpoints/       step_00000100/ ... (training/checkpoint.py)
tokenizer/         the tokenizer's file, so that the run can be used without its data
lock, holder       the lock of the process that writes to the run, and the number of that process
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from widthwise.config_io import Config, parse, to_data
from widthwise.files import (
    FileRecord,
    leftovers,
    missing_folders,
    read_json_mapping,
    read_text,
    remove_unused,
    write_atomic,
    writing,
)
from widthwise.metrics_file import MetricsFile
from widthwise.mistakes import UserError
from widthwise.records.record import CHECKSUMS, Record, SealedFile, check_unchanged, digests
from widthwise.records.run import Continuation, RunResult, describe_changes, folder_hint, with_continuations
from widthwise.yaml_io import dump_yaml, parse_yaml

WRITTEN_WHOLE = ("config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl", "result.json", "holder")
"""Files that only the process with the lock writes."""
RECIPE = "recipe"
"""Key of the original recipe in environment.json, from which a changed config.yaml can be restored."""
SEAL = "seal"
"""Key of the checksum of the seal in result.json."""
CONTINUED = "continued"
"""Key of the list of `Continuation` records in environment.json, one for each resume with other settings."""


class Seal(Config):
    """The run that wrote a checkpoint or a result, and its records up to that moment."""

    recipe: str
    """sha256 of the original recipe."""
    metrics: FileRecord
    """metrics.jsonl at that moment, to which later records were appended."""


class _History(Record):
    """The entries RECIPE and CONTINUED of environment.json."""

    recipe: str
    continued: Sequence[Continuation] = ()


class _Checksums(Config):
    """Checksums in result.json."""

    seal: Seal
    entries: dict[str, str]
    """sha256 of each other key of the file, and of the seal."""


class RunDir:
    """Paths and records of one run."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.tokenizer_folder = self.path / "tokenizer"
        self.metrics_file = MetricsFile(self.path / "metrics.jsonl")
        self.samples_file = MetricsFile(self.path / "samples.jsonl")
        self._environment_file = SealedFile(self.path / "environment.json")

    def check_checkpoints_are_own(self) -> None:
        """Raise UserError if checkpoints/ is a link into another run, because writing would replace its checkpoints.

        A link to a folder outside any run, for example on a larger disk, is allowed.
        """
        if os.path.lexists(self.checkpoints) and not self.checkpoints.is_dir():
            raise UserError(f"{self.checkpoints}: is no folder, nor a link to one; delete it")
        owner = self.checkpoints.resolve().parent
        if owner != self.path.resolve() and (owner / "config.yaml").exists():
            raise UserError(f"{self.checkpoints}: leads to the checkpoints of another run, {owner}; must be this run's")

    @property
    def exists(self) -> bool:
        """True if the folder has the recipe of a run."""
        return (self.path / "config.yaml").is_file()

    def begin(self, config_yaml: str, environment: Mapping[str, Any]) -> None:
        """Create the folder of a new run."""
        self._environment_file.write({**environment, RECIPE: config_yaml})
        write_atomic(self.path / "config.yaml", config_yaml)

    def config_yaml(self) -> str:
        """Return the resolved recipe. Raises UserError without a run, or if config.yaml was edited later."""
        if not self.exists:
            raise UserError(f"{self.path}: is not a run directory (no config.yaml){folder_hint(self.path)}")
        text = read_text(self.path / "config.yaml")
        history = self._history()
        if text == history.recipe:
            return text
        original = parse_yaml(history.recipe, RECIPE)
        current = parse_yaml(text, "config.yaml")
        # `continue_with` writes two files. A kill between them leaves the recipe before the last continuation.
        expected = [with_continuations(original, changes) for changes in (history.continued, history.continued[:-1])]
        changes = min((describe_changes(recipe, current, skip_allowed=True) for recipe in expected), key=len)
        if changes:
            raise UserError(
                f"{self.path}/config.yaml: was changed after the run was begun: {', '.join(changes[:3])}; undo "
                f"that, and `widthwise grow {self.path} KEY=VALUE --out NEW` starts from there with other settings"
            )
        return text

    def _history(self) -> "_History":
        """Return the recipe of the run and its changes. Raises UserError if environment.json does not have them."""
        return parse(_History, self._environment_file.read(), str(self._environment_file.path))

    def environment(self) -> dict[str, Any]:
        """Return versions, machine, command and data. Raises UserError if the file is missing or broken."""
        return {key: value for key, value in self._environment_file.read().items() if key not in (RECIPE, CONTINUED)}

    def continuations(self) -> list[Continuation]:
        """Return the changes of settings, one for each resume with other settings, in order."""
        return [*self._history().continued] if self._environment_file.path.is_file() else []

    def continue_with(self, continuation: Continuation) -> None:
        """Change the recipe for all further steps, and record the change."""
        recipe = with_continuations(parse_yaml(self.config_yaml(), "config.yaml"), [continuation])
        self.add_to_environment({CONTINUED: [entry.to_data() for entry in (*self.continuations(), continuation)]})
        write_atomic(self.path / "config.yaml", dump_yaml(recipe))

    def add_to_environment(self, records: Mapping[str, Any]) -> None:
        """Add entries that were unknown when the run was begun."""
        self._environment_file.write({**self._environment_file.read(), **records})

    def seal(self) -> Seal:
        """Return the seal for a checkpoint or result that is written now. Call `metrics_file.fsync` first."""
        return Seal(recipe=self._recipe_sha256(), metrics=self.metrics_file.front())

    def check_recipe_of(self, seal: Seal | None, sealed: str) -> None:
        """Raise UserError if the seal is missing or of another recipe. sealed: the checkpoint or result, for errors."""
        if seal is None:
            raise UserError(f"{self.path}: {sealed} does not say to which run it belongs")
        if seal.recipe != self._recipe_sha256():
            raise UserError(f"{self.path}: {sealed} belongs to a run of another recipe than config.yaml")

    def check_seal(self, seal: Seal | None, sealed: str) -> None:
        """Check the recipe as `check_recipe_of`, and that no record before the seal is missing or was changed."""
        self.check_recipe_of(seal, sealed)
        assert seal is not None
        path = self.metrics_file.path
        n_bytes = seal.metrics.n_bytes
        front = self.metrics_file.front(n_bytes)
        if front.n_bytes < n_bytes:
            raise UserError(
                f"{path}: has {front.n_bytes} bytes, and had {n_bytes} when {sealed} was written; records are missing"
            )
        if front != seal.metrics:
            raise UserError(f"{path}: its first {n_bytes} bytes were changed after {sealed} was written")

    def _recipe_sha256(self) -> str:
        return hashlib.sha256(self._history().recipe.encode()).hexdigest()

    @property
    def has_result(self) -> bool:
        """True if the run has finished, without checking the result."""
        return (self.path / RunResult.file_name).is_file()

    def result(self) -> RunResult | None:
        """Return the result, or None while the run has not finished.

        Raises UserError if the result, the recipe or the records were changed after it was written.
        """
        path = self.path / RunResult.file_name
        if not path.is_file():
            return None
        data = read_json_mapping(path)
        checksums = parse(_Checksums, data.pop(CHECKSUMS, None), f"{path}: {CHECKSUMS}")
        check_unchanged({**data, SEAL: to_data(checksums.seal)}, checksums.entries, path)
        self.check_seal(checksums.seal, "the result")
        return parse(RunResult, data, str(path)).stored_in(self.path)

    def write_result(self, result: RunResult) -> None:
        """Write result.json. Raises UserError on a full disk or without the folder."""
        self.metrics_file.fsync()
        data = result.to_data()
        seal = self.seal()
        checksums = _Checksums(seal=seal, entries=digests({**data, SEAL: to_data(seal)}))
        content = {**data, CHECKSUMS: to_data(checksums)}
        write_atomic(self.path / RunResult.file_name, json.dumps(content, indent=2) + "\n")
        result.stored_in(self.path)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all records of the run so far. Raises UserError for a line that is no record."""
        return self.metrics_file.records()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run for the block; the lock ends with the process at the latest.

        Raises RunInUse if another process has the lock. Folders that this call created are removed if no run was begun
        in them.
        """
        from filelock import FileLock, Timeout  # slow to import, and not needed by verbs that only read

        holder = self.path / "holder"
        new_folders = missing_folders(self.path)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                # With a timeout, because `is_in_use` of another process holds the lock for a moment.
                lock = FileLock(self.path / "lock").acquire(timeout=0.2, poll_interval=0.02)
            except Timeout:
                process = read_text(holder) if holder.is_file() else "unknown"
                raise RunInUse(f"{self.path}: is in use by process {process}") from None
        with lock:
            for leftover in leftovers(self.path):  # also of other hosts: no other process writes into a locked folder
                if leftover.name in WRITTEN_WHOLE:
                    leftover.path.unlink(missing_ok=True)
            write_atomic(holder, str(os.getpid()))
            try:
                yield
            finally:
                # A process that waits for the lock notices that its file was removed, and creates a new one.
                remove_unused(new_folders, {"lock", "holder"})

    @property
    def is_in_use(self) -> bool:
        """True if a process has the lock of the run at this moment."""
        try:
            # O_NONBLOCK: do not wait for the writer of a pipe.
            handle = os.open(self.path / "lock", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # no such file, or an unreadable one
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False


class RunInUse(UserError):
    """An error: another process has the lock of the run."""
