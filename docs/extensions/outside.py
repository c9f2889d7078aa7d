"""Links of the pages to files of the repository that are no pages: where they lead on the site.

On GitHub they lead to the file. Here results lead to their page among the evidence, documents of the root to the page
that includes them, and what else lies outside is named without a link.
"""

import re
from os.path import normpath
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {"CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog", "README.md": "index"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s:#]+)(#[^()\s]*)?\)")


def on_site(text: str, folder: Path) -> str:
    """Markdown whose links, which start from `folder`, hold on the site: pages are named from its root."""

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link[1], Path(normpath(folder / link[2])), link[3] or ""
        page = page_of(target)
        if page is None:
            return words if target.exists() else link[0]
        return f"[{words}](/{page}.md{anchor})"

    return LINK.sub(moved, text)


def page_of(path: Path) -> str | None:
    """The page of the site that shows a file of the repository, if there is one."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).with_suffix("").as_posix() if path.suffix == ".md" else None
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path("elsewhere")
    if inside.parts[:2] == ("benchmarks", "results") and len(inside.parts) > 2:
        parts = inside.parts[2:]
        return "evidence/" + (Path(parts[0]).stem if len(parts) == 1 else "_".join(parts[:-1]) or parts[0])
    return PAGES.get(inside.as_posix())


def read_page(app: Sphinx, name: str, content: list[str]) -> None:
    content[0] = on_site(content[0], (DOCS / name).parent)


def read_included(app: Sphinx, relative_path: Path, parent: str, content: list[str]) -> None:
    content[0] = on_site(content[0], Path(normpath(DOCS / relative_path)).parent)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
