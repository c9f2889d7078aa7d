"""Pages of sections with text, tables and figures; each page is one HTML file that opens offline.

The template escapes text. A page runs its script and Vega, which its content security policy names by hash.
"""

import base64
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jinja2
import yaml
from markupsafe import Markup

from widthwise.files import write_atomic
from widthwise.records.run import Run
from widthwise.reports.charts import VEGA_CONFIG, Figure, FileKind, colours, vega_library
from widthwise.reports.formats import clean, printable
from widthwise.reports.table import Table

N_NOTEBOOK_TABLES = 2
"""Number of tables in a notebook; for a comparison these are losses and costs."""


@dataclass(frozen=True)
class Text:
    """Paragraphs. Quiet text explains the figures and tables of its section."""

    lines: Sequence[str]
    is_quiet: bool = True


@dataclass(frozen=True)
class Code:
    """Text of a file or a command; with a caption it is folded."""

    text: str
    caption: str = ""


Part = Text | Code | Table | Figure


def _groups(parts: Iterable[Part]) -> Iterator[tuple[str, list[Part]]]:
    """Yield consecutive parts of the same class, with the lower-case name of the class."""
    for name, group in itertools.groupby(parts, lambda part: type(part).__name__.lower()):
        yield name, list(group)


@dataclass(frozen=True)
class Section:
    """A titled part of a page."""

    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def section(title: str, *parts: Part | None) -> Section | None:
    """Return a section, without parts that are None and tables without rows; None if only quiet text remains."""
    shown = [part for part in parts if part is not None and (not isinstance(part, Table) or part.rows)]
    if all(isinstance(part, Text) and part.is_quiet for part in shown):
        return None
    return Section(title, shown)


def note(*names: str, **values: object) -> Text:
    """Return the notes of these names in notes.yaml, formatted with values."""
    return Text([_NOTES[name].format(**values) for name in names])


def recipe_code(name: str, run: Run) -> Code:
    """Return the resolved recipe of a run, folded."""
    return Code(run.config_yaml, f"{name}: resolved recipe, {run.path}/config.yaml")


@dataclass(frozen=True)
class Page:
    """The content of a report, and the files written with it."""

    kind: str
    """Shown above the title, such as "comparison"."""
    title: str
    answer: Sequence[str]
    """Sentences with the answer, on the first screen."""
    sections: Sequence[Section | None]
    lead: str = ""
    """The question, or the progress."""
    first: Sequence[Part | None] = ()
    """Figures and tables of the first screen."""
    badges: Sequence[str] = ()
    """Short warnings about all results."""
    made_from: str = ""
    """File with the numbers."""
    refresh_seconds: int | None = None
    """Interval after which the page reloads; None: never."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of files written with the page."""

    @property
    def shown(self) -> list[Section]:
        """The first screen as an untitled section, and the sections that are not None, without repeated figures."""
        seen: set[str] = set()
        sections = []
        for part_of_page in (section("", *self.first), *self.sections):
            if part_of_page is not None:
                parts = [part for part in part_of_page.parts if not isinstance(part, Figure) or part.key not in seen]
                seen |= {part.key for part in parts if isinstance(part, Figure)}
                sections.append(replace(part_of_page, parts=parts))
        return sections

    @property
    def figures(self) -> dict[str, Figure]:
        """Name of a file -> figure, in the order of the page. The first is `main`, others have section and title."""
        named: dict[str, Figure] = {}
        for section in self.shown:
            for figure in (part for part in section.parts if isinstance(part, Figure)):
                title = f"{section.anchor} {clean(figure.title)}".lower()
                name = re.sub(r"[^\w.]+", "-", title).strip("-") if named else "main"
                named[f"{name}-{len(named)}" if name in named else name] = figure
        return named

    def html(self) -> str:
        """Return the whole page."""
        scripts = [_vega(), _SCRIPT] if self.figures else [_SCRIPT]
        return printable(_ENVIRONMENT.get_template("page.html").render(page=self, scripts=scripts))

    def notebook_html(self) -> str:
        """Return the answer, the first figures as images, and the main tables, without scripts."""
        figures = [part for part in self.first if isinstance(part, Figure)]
        parts = [part for section in self.sections if section is not None for part in section.parts]
        tables = [part for part in parts if isinstance(part, Table) and not part.is_folded][:N_NOTEBOOK_TABLES]
        template = _ENVIRONMENT.get_template("notebook.html")
        return template.render(page=self, figures=figures, tables=tables, colours=colours(is_dark=False))

    def write(self, out: Path, figures: FileKind | None = None) -> list[Path]:
        """Write `report.html`, the files next to it, and with `figures` each figure as a file of that kind.

        Returns the paths written.
        """
        files: dict[str, str | bytes] = {"report.html": self.html(), **self.files}
        if figures:
            files |= {f"figures/{name}.{figures}": figure.document(figures) for name, figure in self.figures.items()}
        for name, content in files.items():
            write_atomic(out / name, content)
        return [out / name for name in files]


@functools.cache
def _vega() -> str:
    """Return Vega as one script."""
    return vega_library().javascript_bundle()


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
_ENVIRONMENT.globals |= {"look": VEGA_CONFIG, "style": Markup((_FOLDER / "page.css").read_text("utf-8"))}
_ENVIRONMENT.filters |= {
    "clean": clean,
    "json": lambda value: Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")),
    "hash": lambda script: base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    "groups": _groups,
    "raw": Markup,
    "picture": lambda figure: base64.b64encode(figure.document("svg")).decode(),
    "legend": lambda figures: {clean(n): style.swatch for figure in figures for n, style in figure.legend.items()},
}
