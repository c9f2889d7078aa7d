"""Parts of a page that was written, and records that are changed before one is."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def section(page: Path, name: str) -> str:
    """The section with that id, which a link of the page's contents leads to."""
    text = page.read_text(encoding="utf-8")
    assert f'href="#{name}"' in text
    found = re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL)
    assert found
    return found[0]


def rows_of(shown: str, caption: str = "") -> dict[str, list[str]]:
    """First cell of a row -> its others, of every table, or of the first whose caption begins so."""
    if caption:
        shown = shown[shown.index(f"<caption>{caption}") :].split("</table>")[0]
    rows = re.findall(r'<th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', shown, re.DOTALL)
    return {name: re.findall(r"<td[^>]*>(.*?)</td>", cells, re.DOTALL) for name, cells in rows}


def captions(page: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", page)


def labels(page: str) -> list[str]:
    """The text alternatives of the figures."""
    return re.findall(r'aria-label="([^"]*)" class="plot"', page)


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Edits the data of a JSON file; returns its folder."""
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))
    return file.parent
