"""Reports that are written, parts of their pages, and records that are changed before one is."""

import html
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from boxes import refusal

from widthwise.reports.writing import write_report


def reported(folders: Path | Sequence[Path], out: Path | None = None) -> dict[str, str]:
    """Suffix -> text of a file of a report."""
    return {path.suffix: path.read_text(encoding="utf-8") for path in write_report(folders, out)}


def page_of(folders: Path | Sequence[Path], out: Path | None = None) -> str:
    return reported(folders, out)[".html"]


def markup_of(page: str) -> ElementTree.Element:
    """The page without its scripts as XML, in which tags are closed in order and no text is markup by mistake."""
    markup = re.sub("<!doctype html>|<script.*?</script>", "", page, flags=re.DOTALL)
    return ElementTree.fromstring(re.sub(r"<((?:meta|link|br|img)\b[^>]*)>", r"<\1/>", markup))


def answers(page: str) -> list[str]:
    """Sentences of the first screen."""
    return re.findall("<p>(.*?)</p>", page.partition('class="answer"')[2].partition("</div>")[0])


def section(page: str, name: str) -> str:
    """The section with that id, which a link of the page's contents leads to."""
    assert f'href="#{name}"' in page
    return re.findall(rf'<section id="{name}".*?</section>', page, re.DOTALL)[0]


def rows_of(shown: str, caption: str = "") -> dict[str, list[str]]:
    """First cell of a row -> its others, of every table, or of the first whose caption begins so."""
    if caption:
        shown = shown[shown.index(f"<caption><span>{caption}") :].split("</table>")[0]
    rows = re.findall(r'<th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', shown, re.DOTALL)
    return {name.partition("<svg")[0]: re.findall(r"<td[^>]*>(.*?)</td>", cells, re.DOTALL) for name, cells in rows}


def captions(page: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", page)


def labels(page: str) -> list[str]:
    """The text alternatives of the figures."""
    return [html.unescape(each) for each in re.findall(r'role="img" tabindex="0" aria-label="([^"]*)"', page)]


def specs(page: str) -> dict[str, dict[str, Any]]:
    """Key of a figure -> its specification."""
    found = re.findall(
        r'<figure id="figure-([^"]*)">.*?<script type="application/json">(.*?)</script>', page, re.DOTALL
    )
    return {key: json.loads(text) for key, text in found}


def drawn(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All rows of data of a figure; on a page they are columns."""
    rows = []
    for columns in spec["datasets"].values():
        if isinstance(columns, list):
            rows += columns
        else:
            rows += [dict(zip(columns, row)) for row in zip(*columns.values())]
    return rows


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Edits the data of a JSON file; returns its folder."""
    data = json.loads(file.read_text())
    edit(data)
    return write(file, data)


def check_broken(file: Path, edits: Mapping[str, Callable[[dict[str, Any]], object]]) -> None:
    """edits: message -> the change of a record after which a report is refused in one line, and not written."""
    whole = file.read_text()
    for message, edit in edits.items():
        file.write_text(whole)
        assert re.search(message, refusal(write_report, change(file, edit)))
    assert not (file.parent / "report.html").exists()


def write(file: Path, data: Mapping[str, Any]) -> Path:
    """Writes a record; returns its folder, which is made if it is not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data))
    return file.parent
