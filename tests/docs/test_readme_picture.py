"""The picture of the README is what its script draws from the committed record."""

import sys
from pathlib import Path

import pytest

from widthwise.records.outcome import Outcome

DOCS = Path(__file__).parents[2] / "docs"
sys.path.append(str(DOCS))

import readme_picture  # noqa: E402


@pytest.mark.parametrize(("form", "columns"), [("wide", 2), ("narrow", 1)])
@pytest.mark.parametrize("theme", readme_picture.THEMES)
def test_the_committed_picture_is_drawn_from_its_record(form: str, columns: int, theme: str) -> None:
    drawn = readme_picture.picture(Outcome.read(readme_picture.RESULT), readme_picture.THEMES[theme], columns)
    assert (DOCS / "pictures" / f"widths_{form}_{theme}.svg").read_text() == drawn
