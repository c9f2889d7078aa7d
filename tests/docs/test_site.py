"""The documentation site builds without a warning, its links hold, and it asks no other machine for anything."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import widthwise

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class SitePage(HTMLParser):
    """What a page can be reached at, and what it leads to or loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []
        """Tag and address of each."""
        self.pictures_without_words: list[str | None] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if address := given.get(ATTRIBUTES.get(tag, "")):
            self.links.append((tag, address))
        if tag == "img" and not given.get("alt"):
            self.pictures_without_words.append(given.get("src"))


def broken_links(pages: list[SitePage]) -> list[str]:
    """Links inside the site whose file or anchor is missing."""
    anchors = {page.path.resolve(): page.anchors for page in pages}
    broken = []
    for page in pages:
        for _, address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
            known = anchors.get(target)
            if not target.is_file() or (parts.fragment and known is not None and unquote(parts.fragment) not in known):
                broken.append(f"{page.path.name}: {address}")
    return broken


def test_every_page_is_in_a_table_of_contents() -> None:
    """Else the site has a page that nobody finds, and does not build."""
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.S | re.M)
    listed = re.findall(r"^([\w/]+)$", "\n".join(tables), re.M)
    assert len(listed) == len(set(listed))
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} == {name for name in listed if "/" not in name}


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^\.\. auto\w+:: (\w+)$", (DOCS / "library.md").read_text(), re.M)
    assert sorted(named) == sorted(widthwise.__all__)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of the repository's documents."""
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="needs the extra [docs]")
    copy = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, copy / "docs", ignore=shutil.ignore_patterns("evidence", "__pycache__"))
    for path in ROOT.iterdir():
        if path.name not in {"docs", "build", ".git"}:
            (copy / path.name).symlink_to(path)
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "docs", "site"]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return copy / "site"


@pytest.mark.hard
def test_links_and_anchors_hold_pictures_have_words_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = [SitePage(path) for path in site.rglob("*.html") if site / "results" not in path.parents]
    assert not broken_links(pages)
    links = [link for page in pages for link in page.links]
    assert len(links) > 1000
    assert not [name for page in pages for name in page.pictures_without_words]
    assert not [address for tag, address in links if tag != "a" and urlsplit(address).netloc]
    for sheet in site.glob("_static/**/*.css"):
        assert not re.search(r"(url\(['\"]?|@import\s+['\"])(https?:)?//", sheet.read_text()), sheet


@pytest.mark.hard
def test_every_result_has_its_page_and_links_to_results_lead_there(site: Path) -> None:
    assert 'href="evidence/x_heads_d64.html"' in (site / "findings.html").read_text()
    assert 'href="contributing.html"' in (site / "library.html").read_text()
    results = ROOT / "benchmarks" / "results"
    records = {path.parent for path in results.glob("*/**/*.json")} | set(results.glob("*.json"))
    names = {path.relative_to(results).with_suffix("").as_posix().replace("/", "_") for path in records}
    assert {path.stem for path in site.glob("evidence/*.html")} == names | {"index", "papers"}
