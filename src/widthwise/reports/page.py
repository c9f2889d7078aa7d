"""Pages: lists of sections, each of text, tables and figures, laid out alike; one file that opens offline.

Text in the template is escaped. A page runs one script and Vega, which its content policy names by their hashes.
"""

import base64
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jinja2
import yaml
from markupsafe import Markup

from widthwise.files import write_atomic
from widthwise.records.record import StoredRecord
from widthwise.records.run import Run
from widthwise.reports.charts import LOOK, Figure, FileKind, vega_library
from widthwise.reports.formats import capital, clean, printable
from widthwise.reports.table import Table


@dataclass(frozen=True)
class Text:
    """Paragraphs; a quiet text explains the figures and tables next to it."""

    lines: Sequence[str]
    is_quiet: bool = True


@dataclass(frozen=True)
class Code:
    """Text of a file or a command line; one with a caption is folded."""

    text: str
    caption: str = ""


@dataclass(frozen=True)
class Link:
    """A link to another page, by a path from the folder of this one."""

    text: str
    path: str


Part = Text | Code | Link | Table | Figure


@dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    @property
    def groups(self) -> Iterator[tuple[str, list[Part]]]:
        """Parts in one row: name of their class -> parts."""
        for name, parts in itertools.groupby(self.parts, lambda part: type(part).__name__.lower()):
            yield name, list(parts)


def section(title: str, *parts: Part | None) -> Section | None:
    """Return a section of the parts that there are; None if these are nothing but quiet text."""
    shown = [part for part in parts if part is not None]
    if all(isinstance(part, Text) and part.is_quiet for part in shown):
        return None
    return Section(title, shown)


def in_words(sentences: Iterable[str]) -> Text:
    """Return the sentences of a record, below the tables that hold their numbers."""
    return Text(["In words:", *sentences])


def note(*names: str, **values: object) -> Text:
    """Return the notes of these names from notes.yaml, with values put in; "" is left out."""
    return Text([_NOTES[name].format(**values) for name in names if name])


def resolved(name: str, run: Run) -> Code:
    """Return the recipe of a run, folded."""
    return Code(run.config_yaml, f"{name}: resolved recipe, {run.path}/config.yaml")


@dataclass(frozen=True)
class Page:
    """A kind of page is the function that makes one of these."""

    kind: str
    """Such as "comparison", above the title."""
    title: str
    answer: Sequence[str]
    """Sentences that answer, on the first screen."""
    sections: Sequence[Section | None]
    lead: str = ""
    """The question, or how far it has come."""
    first: Sequence[Part | None] = ()
    """Figures and tables of the first screen."""
    badges: Sequence[str] = ()
    """Doubts about all of it, in a few words each."""
    made_from: str = ""
    """File that holds the numbers."""
    refresh_seconds: int | None = None
    """After so long the page loads itself again; None: never."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of the files next to it, by name."""
    record: Callable[[Path], StoredRecord] | None = None
    """Makes the record of a page that has none before, from the folder it is written into."""

    @property
    def shown(self) -> list[Section]:
        """The first screen, and all sections that have something to show; each figure once, where it comes first."""
        seen: set[str] = set()
        sections = []
        for each in (section("", *self.first), *self.sections):
            if each is not None:
                parts = [part for part in each.parts if not isinstance(part, Figure) or part.key not in seen]
                seen |= {part.key for part in parts if isinstance(part, Figure)}
                sections.append(replace(each, parts=parts))
        return sections

    @property
    def figures(self) -> Iterator[Figure]:
        """All figures in order."""
        return (part for each in self.shown for part in each.parts if isinstance(part, Figure))

    def html(self) -> str:
        """Return the whole page."""
        has_figures = next(self.figures, None) is not None
        scripts = [_SCRIPT, *([vega()] if has_figures else [])]
        return printable(_ENVIRONMENT.get_template("page.html").render(page=self, scripts=scripts[::-1]))

    def write(self, out: Path, figures: FileKind | None = None) -> list[Path]:
        """Write `report.html`, the files next to it, and each figure as a file of a kind into `figures/`.

        Return the paths written.
        """
        files: dict[str, str | bytes] = {"report.html": self.html(), **self.files}
        if figures:
            files |= {f"figures/{each.key}.{figures}": each.document(figures) for each in self.figures}
        for name, content in files.items():
            write_atomic(out / name, content)
        records = [] if self.record is None else [self.record(out).write(out)]
        return [*(out / name for name in files), *records]


@functools.cache
def vega() -> str:
    """Return the library that draws figures, as one script."""
    return vega_library().javascript_bundle()


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def as_json(value: object) -> Markup:
    """Return JSON that is safe in a script element of a page."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


_FOLDER = Path(__file__).parent
_NOTES: dict[str, str] = yaml.safe_load((_FOLDER / "notes.yaml").read_text(encoding="utf-8"))
_SCRIPT = (_FOLDER / "page.js").read_text(encoding="utf-8")
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.globals |= {"look": LOOK, "style": Markup((_FOLDER / "page.css").read_text("utf-8"))}
_ENVIRONMENT.filters |= {
    "clean": clean,
    "capital": capital,
    "json": as_json,
    "hash": _hash,
    "raw": Markup,
    "legend": lambda figures: {clean(name): each.swatch for own in figures for name, each in own.legend.items()},
}
