"""Base classes of the records, which are typed, frozen, written as JSON and read from it."""

import hashlib
import json
import math
from collections.abc import Callable, KeysView, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pydantic

from widthwise.config_io import differences, parse
from widthwise.files import read_json_mapping, write_atomic
from widthwise.mistakes import UserError

CHECKSUMS = "checksums"
"""Key of the checksums of the other entries in a file; in result.json it also holds the seal (`run_dir.Seal`)."""
Number = int | float
"""An integer or a float; the type in the file is kept."""
FiniteOrNone = Annotated[
    float | None,
    pydantic.BeforeValidator(lambda value: None if isinstance(value, float) and not math.isfinite(value) else value),
]
"""A finite float or None. NaN and infinity become None, because JSON has neither."""


class Record(pydantic.BaseModel):
    """Base of the records: frozen and strict.

    Only fields that were passed are written, so that reading and writing a file does not add defaults. Unknown keys are
    ignored.
    """

    model_config = pydantic.ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    def __getitem__(self, key: str) -> Any:
        """Return a field by its key in the file, as in `result["val_loss"]`. Raises KeyError without such a field."""
        if key not in type(self).model_fields:
            raise KeyError(key)
        return getattr(self, key)

    def keys(self) -> KeysView[str]:
        """Return the keys of the fields that were passed, in the order of the class."""
        return dict.fromkeys(name for name in type(self).model_fields if name in self.model_fields_set).keys()

    def __contains__(self, key: str) -> bool:
        return key in self.model_fields_set

    def to_data(self) -> dict[str, Any]:
        """Return the fields that were passed as plain data."""
        return self.model_dump(exclude_unset=True)

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with changed fields, validated like a file. Raises pydantic.ValidationError."""
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**fields, **changes})


class StoredRecord(Record):
    """A record in a file of fixed name, with checksums of its entries."""

    file_name: ClassVar[str]
    notebook_view: ClassVar["Callable[[StoredRecord, Path], str | None] | None"] = None
    """Function of a record and its folder that returns HTML for notebooks; set by reports."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the record in a folder. Raises UserError if the file is missing, broken, or of another kind."""
        path = folder / cls.file_name
        return parse(cls, SealedFile(path).read(), str(path)).stored_in(folder)

    @classmethod
    def read_if_present(cls, folder: Path) -> Self | None:
        """Read the record in a folder; None without its file."""
        return cls.read(folder) if (folder / cls.file_name).is_file() else None

    def write(self, folder: Path) -> Path:
        """Write the file atomically and return its path. Raises UserError on failure."""
        path = folder / self.file_name
        SealedFile(path).write(self.to_data())
        self.stored_in(folder)
        return path

    def stored_in(self, folder: Path) -> Self:
        """Remember the folder of the file for notebooks and return the record. The folder is not written."""
        vars(self)["_folder"] = folder
        return self

    def _repr_html_(self) -> str | None:
        """Return answer, figures and tables as HTML. None without a file; the notebook then shows plain text."""
        folder = vars(self).get("_folder")
        view = StoredRecord.notebook_view
        return None if folder is None or view is None else view(self, folder)


class ReportRecord(StoredRecord):
    """A stored record with its own page.

    title: of the page. command: shell command that made the record. created: time in ISO 8601.
    """

    title: str
    command: str
    created: str


@dataclass(frozen=True)
class SealedFile:
    """A JSON file with a checksum of each entry. Files without checksums are read unchecked."""

    path: Path

    def read(self) -> dict[str, Any]:
        """Return the entries. Raises UserError for a broken file or changed entries."""
        return self.checked(read_json_mapping(self.path), self.path)

    def write(self, data: Mapping[str, Any]) -> None:
        """Write the entries atomically. Raises UserError if the file cannot be written."""
        write_atomic(self.path, self.content(data))

    @staticmethod
    def checked(data: dict[str, Any], where: Path | str) -> dict[str, Any]:
        """Remove the checksums from the content of a file and return its entries. Raises UserError for changed ones."""
        check_unchanged(data, data.pop(CHECKSUMS, None), where)
        return data

    @staticmethod
    def content(data: Mapping[str, Any]) -> str:
        """Return the content of a file with these entries."""
        return json.dumps({**data, CHECKSUMS: digests(data)}, indent=2) + "\n"


def digests(data: Mapping[str, Any]) -> dict[str, str]:
    """Return a checksum of each entry, so that a message can name the changed entry."""
    return {key: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16] for key, value in data.items()}


def check_unchanged(data: Mapping[str, Any], written: Any, where: Path | str) -> None:
    """Raise UserError if entries of a file differ from their checksums.

    written: the checksums in the file; None for a file without checksums, which is not checked.
    """
    if written is None:
        return
    changed = [key or CHECKSUMS for key, *_ in differences(written, digests(data))]  # "" if `written` is no mapping
    if changed:
        raise UserError(
            f"{where}: {', '.join(changed[:3])}: was changed after it was written; undo that, or repeat the command "
            "that wrote it"
        )


def finite(value: Any) -> float:
    """Return the value as a float; NaN if it is absent, not a number or infinite."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else math.nan
