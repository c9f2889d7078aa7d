"""The built documentation site, as a reader without a network meets it."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}


class SitePage(HTMLParser):
    """What a page can be reached at, and what it leads to or loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []
        """Tag and address of each."""
        self.pictures_without_words: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if address := given.get(ATTRIBUTES.get(tag, "")):
            self.links.append((tag, address))
        if tag == "img" and not given.get("alt"):
            self.pictures_without_words.append(str(given.get("src")))

    def loaded_from_elsewhere(self) -> list[str]:
        """What the browser would fetch from another machine; a link that one may follow is none."""
        return [address for tag, address in self.links if tag != "a" and urlsplit(address).netloc]


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
