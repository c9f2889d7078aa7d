"""Pages: self-contained files that open offline. Text in the templates, one for each kind, is escaped by default.

A page runs one script, `explore.js`, which its content policy names by a hash.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from widthwise.files import write_atomic
from widthwise.reports.page.formats import capital, clean, printable, ratio
from widthwise.reports.page.svg import Style, swatch

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent.parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_SCRIPT = (Path(__file__).parent / "explore.js").read_text(encoding="utf-8")
_ENVIRONMENT.globals |= {
    "script": Markup(_SCRIPT),
    "script_hash": base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode(),
}
_ENVIRONMENT.filters |= {"clean": clean, "ratio": ratio, "capital": capital}


@dataclass(frozen=True)
class Panel:
    """One figure with its title."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class FoldedRecipe:
    """The resolved recipe of a run, which the page shows folded."""

    name: str
    path: str
    text: str


def panels(candidates: Mapping[str, Markup | None]) -> list[Panel]:
    """Title -> figure, without those that had nothing to draw."""
    return [Panel(title, svg) for title, svg in candidates.items() if svg is not None]


def legend(styles: Mapping[str, Style]) -> list[tuple[Markup, str]]:
    """A swatch and a name per line of the figures."""
    return [(swatch(style), clean(name)) for name, style in styles.items()]


def render(template: str, **content: Any) -> str:
    """The page of a template. Raises jinja2.UndefinedError where the content lacks something the template names."""
    return printable(_ENVIRONMENT.get_template(template).render(**content))


def write_all(contents: Mapping[str, tuple[str, str]], out: Path) -> dict[str, Path]:
    """Kind of file -> (name, text), all made before the first is written. Returns kind of file -> path in `out`."""
    for name, text in contents.values():
        write_atomic(out / name, text)
    return {kind: out / name for kind, (name, _) in contents.items()}


def sequence(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
