"""A part of a page that was written."""

import re
from pathlib import Path


def section(page: Path, name: str) -> str:
    """The section with that id, which a link of the page's contents leads to."""
    text = page.read_text(encoding="utf-8")
    assert f'href="#{name}"' in text
    found = re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL)
    assert found
    return found[0]
