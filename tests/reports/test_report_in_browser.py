"""Every kind of page in a headless Chromium, which is started once."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from chromium_pipe import IN_CHROMIUM, Page
from fake_analysis import model, write_analysis
from fake_comparison import token_widths, write_full_comparison
from fake_growth import write_grown_run
from fake_scaling import write_scaling
from fake_sweep import sweep_data, with_wide_grid, write_sweep
from test_evaluation_report import evaluation_table
from thinned import hard_but

from widthwise.records.outcome import Outcome
from widthwise.reports.writing import PAGES, write_report

pytestmark = IN_CHROMIUM


def _analysis(folder: Path) -> Path:
    dynamic = {**model("dynamic", [64, 48, 64], 0.5), "token_widths": token_widths(3)}
    return write_analysis(folder, model("uniform", [64, 64, 64], 0.8), dynamic)


BUILDERS: Mapping[str, Callable[[Path], Path | Sequence[Path]]] = {
    "comparison": write_full_comparison,
    "sweep": lambda folder: write_sweep(folder, with_wide_grid(sweep_data())),
    "scaling.json": write_scaling,
    "analysis.json": _analysis,
    "evaluation_table.json": lambda folder: evaluation_table().write(folder).parent,
    "growth": write_grown_run,
}
"""Kind of page -> what writes a folder or several for it; a run shows its growth."""

UNFOLD = "document.querySelectorAll('details').forEach(each => { each.open = true; })"
FIGURES = """[...document.querySelectorAll('.chart')].map(chart => {
  const svg = chart.querySelector('svg'), box = svg?.getBoundingClientRect();
  const isSeen = box && box.left >= 0 && box.right <= innerWidth && box.width > 200 && box.height > 60;
  return isSeen && svg.querySelector('path, text') ? '' : chart.parentNode.id + JSON.stringify(box);
}).filter(Boolean)"""
TEXTS = "[...document.querySelectorAll('.chart svg text')].filter(text => text.textContent)"
SMALLEST_TEXT = f"Math.min(99, ...{TEXTS}.map(text => text.getBoundingClientRect().height))"
WITHOUT_TEXT = """[...document.querySelectorAll('img, .chart')].filter(
  each => each.getAttribute('role') !== 'img' || (each.getAttribute('aria-label') || '').length < 20
).length"""
OUTLINE = """(() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const ids = all('[id]').map(each => each.id);
  return {
    h1: all('h1').map(each => each.textContent.trim()),
    landmarks: all('header, nav[aria-label], main, footer').map(each => each.tagName),
    levels: all('h1, h2, h3').map(each => Number(each.tagName[1])),
    unnamed: all('section').filter(each => !document.getElementById(each.getAttribute('aria-labelledby'))).length,
    n_sections: all('section').length,
    twice: ids.filter((id, i) => ids.indexOf(id) !== i),
    dangling: all('a[href^="#"]').filter(each => !document.getElementById(each.hash.slice(1))).length,
    tables: all('table').filter(
      each => !each.caption || !each.querySelector('th') || each.querySelector('th:not([scope])')
    ).length,
  };
})()"""
SCROLLED = "[...document.querySelectorAll('.scroll, pre, .chart')]"


@pytest.fixture(scope="module", params=hard_but(["comparison", "sweep", "analysis.json"], BUILDERS))
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    described = BUILDERS[request.param](folder / "folder")
    return write_report(described, None if isinstance(described, Path) else folder / "common")[0]


def test_every_kind_of_page_is_opened_here() -> None:
    assert set(BUILDERS) == {*PAGES, "comparison", "sweep", "growth"} - {Outcome.file_name}


def check_figures(page: Page, report: Path, width: int, colour: str) -> None:
    """It opens offline, every figure can be seen, and no interval of a main table breaks."""
    lines = "(each => Math.round(each.offsetHeight / parseFloat(getComputedStyle(each).lineHeight)))"
    n_lines = page.evaluate(
        f"[...document.querySelectorAll('td small')].filter(each => / to /.test(each.textContent)).map{lines}"
    )
    assert set(n_lines) == {1} or not (n_lines or (report.parent / "outcome.json").is_file())
    page.evaluate(UNFOLD)
    page.until("'drawn' in document.documentElement.dataset")
    n_figures = page.evaluate("document.querySelectorAll('figure').length")
    assert page.evaluate("document.querySelectorAll('.chart').length") == n_figures
    assert page.evaluate(FIGURES) == []
    assert page.evaluate(SMALLEST_TEXT) >= 7
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.body).color") == colour
    assert page.requests() == [report.resolve().as_uri()]
    assert page.complaints() == []


def test_a_screen_reader_finds_its_way_and_the_main_table_has_room_on_a_laptop(browser: Page, report: Path) -> None:
    browser.open(report, 1280)
    outline = browser.evaluate(OUTLINE)
    assert len(outline["h1"]) == 1
    assert outline["h1"][0]
    assert outline["landmarks"] == ["HEADER", "NAV", "MAIN", "FOOTER"]
    assert outline["n_sections"] > 2
    assert (outline["unnamed"], outline["dangling"], outline["tables"], outline["twice"]) == (0, 0, 0, [])
    assert all(after - before <= 1 for before, after in itertools.pairwise(outline["levels"]))
    assert browser.evaluate(WITHOUT_TEXT) == 0
    hidden = "[...document.querySelectorAll('#results .scroll')].map(each => each.scrollWidth - each.clientWidth)"
    assert all(n_pixels == 0 for n_pixels in browser.evaluate(hidden))
    check_figures(browser, report, 1280, "rgb(27, 29, 32)")


def test_the_keyboard_reaches_all_that_scrolls_on_a_telephone_in_the_dark(browser: Page, report: Path) -> None:
    browser.open(report, 400, scheme="dark")
    check_figures(browser, report, 400, "rgb(232, 232, 228)")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    n_stops = browser.evaluate("document.querySelectorAll('a[href], [tabindex=\"0\"], summary, button, select').length")
    browser.evaluate("window.reached = new Set(); document.addEventListener('focusin', e => reached.add(e.target))")
    for _ in range(n_stops):
        browser.press("Tab")
    missed = f"{SCROLLED}.filter(each => !reached.has(each)).map(each => each.getAttribute('aria-label'))"
    assert browser.evaluate(f"{SCROLLED}.length") > 0
    assert browser.evaluate(missed) == []
