import shutil
from pathlib import Path

import pytest
from chromium_pipe import chromium_page

from widthwise.reports.comparison_report import write_comparison_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

FIGURES = """[...document.querySelectorAll('svg.plot')].map(svg => {
  const box = svg.getBoundingClientRect();
  const inside = box.left >= 0 && box.right <= innerWidth;
  return inside && box.width > 200 && box.height > 60 && svg.querySelectorAll('text').length > 1;
})"""
SMALLEST_TEXT = (
    """Math.min(...[...document.querySelectorAll('svg.plot text')].map(text => text.getBoundingClientRect().height))"""
)


@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: neither chromium, chromium-browser nor google-chrome found"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_page_opens_offline_and_shows_every_figure(comparison: Path, tmp_path: Path, width: int, scheme: str) -> None:
    page_path = write_comparison_report(comparison, tmp_path / "out")["html"]
    with chromium_page(str(CHROMIUM), tmp_path / "profile") as page:
        page.open(page_path, width, scheme=scheme)
        visible = page.evaluate(FIGURES)
        assert len(visible) == 10
        assert all(visible)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(SMALLEST_TEXT) >= 7
        assert (
            page.evaluate("getComputedStyle(document.body).color")
            == {
                "light": "rgb(27, 29, 32)",
                "dark": "rgb(232, 232, 228)",
            }[scheme]
        )
        assert page.requests() == [page_path.resolve().as_uri()]
        assert page.complaints() == []
