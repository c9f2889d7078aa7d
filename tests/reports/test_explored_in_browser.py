"""What a reader does with a page in a headless Chromium: point, click, drag, sort and press keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium_pipe import IN_CHROMIUM, Page

from widthwise.reports.formats import fixed
from widthwise.reports.writing import write_report
from widthwise.run_dir import RunDir

pytestmark = IN_CHROMIUM

CURVES = "document.querySelector('#figure-validation-loss .chart')"
VIEW = f"{CURVES}.view"
TIP = """(tip => tip?.classList.contains('visible')
  ? Object.fromEntries([...tip.querySelectorAll('tr')].map(row => [...row.cells].map(cell => cell.textContent)))
  : null)(document.getElementById('vg-tooltip-element'))"""
TABLE = "document.querySelector('#results table')"


@pytest.fixture(scope="module")
def report(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(comparison, tmp_path_factory.mktemp("report"))[0]


@pytest.fixture
def page(browser: Page, report: Path) -> Iterator[Page]:
    """The comparison, opened anew; nothing was asked of the network and nothing failed."""
    opened(browser, report)
    yield browser
    assert browser.requests() == [report.resolve().as_uri()]
    assert browser.complaints() == []


def opened(page: Page, report: Path) -> None:
    page.open(report, 1280)
    page.until("'drawn' in document.documentElement.dataset")


def place(page: Page, x: float, y: float) -> tuple[float, float]:
    """Where the window shows a point of the curves, which are in its middle."""
    return page.evaluate(
        f"""(element => {{
          element.scrollIntoView({{block: 'center', behavior: 'instant'}});
          const box = element.querySelector('svg').getBoundingClientRect(), view = element.view;
          const [left, top] = view.origin(), padding = view.padding();
          return [
            box.x + padding.left + left + view.scale('x')({x}), box.y + padding.top + top + view.scale('y')({y})
          ];
        }})({CURVES})"""
    )


def validations(folder: Path, variant: int) -> list[dict[str, float]]:
    """Mean over the seeds of a variant."""
    records = [RunDir(folder / f"runs/variant{variant}-seed{seed}").metrics() for seed in (1, 2)]
    pairs = zip(*([each for each in own if each["event"] == "validation"] for own in records))
    return [{"step": one["step"], "loss": (one["loss"] + other["loss"]) / 2} for one, other in pairs]


def test_pointing_at_a_line_shows_what_the_runs_recorded(page: Page, comparison: Path) -> None:
    for index in (3, 11):
        record = validations(comparison, 2)[index]
        x, y = place(page, record["step"], record["loss"])
        for shift in (3, 0):
            page.mouse("Moved", x + shift, y)
        page.until(f"({TIP})?.step", f"{record['step']:,}")
        shown = page.evaluate(TIP)
        assert (shown["variant"], shown["line"]) == ("hourglass", "mean of 2")
        assert float(shown["held-out loss"]) == pytest.approx(record["loss"], abs=6e-5)


def names_drawn(figure: str) -> str:
    """The names that a figure has marks of."""
    return f"""[...new Set([...document.querySelectorAll('#figure-{figure} :is(.mark-line, .mark-symbol) path')]
      .map(each => each.getAttribute('aria-label')?.match(/name: ([^;]*)/)?.[1]).filter(Boolean))].sort().join()"""


def test_a_name_in_the_legend_hides_its_lines_in_all_figures_below_and_shows_them_again(page: Page) -> None:
    button = "[...document.querySelectorAll('.legend button')].find(each => each.textContent.trim() === 'x')"
    for figure in ("differences", "validation-loss"):
        assert "x" in page.evaluate(names_drawn(figure)).split(",")
    page.evaluate(f"{button}.click()")
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.until(names_drawn("differences"), "hourglass")
    page.until(names_drawn("validation-loss"), "hourglass,uniform")
    page.evaluate(f"{button}.focus()")
    page.press("Enter")
    page.until(names_drawn("validation-loss"), "hourglass,uniform,x")


def column(page: Page, number: int) -> list[str]:
    return page.evaluate(f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[{number}].firstChild.textContent.trim())")


def test_a_title_of_a_column_sorts_by_its_numbers_and_then_gives_the_order_back(page: Page) -> None:
    losses = {"uniform": 3.05, "x": 3.05 - 0.0123, "hourglass": 3.05 + 0.004}
    title = f"{TABLE}.tHead.rows[0].cells[3]"
    for order in ("ascending", "descending"):
        page.evaluate(f"{title}.querySelector('button').focus()")
        page.press("Enter")
        assert page.evaluate(f"{title}.getAttribute('aria-sort')") == order
        names = sorted(losses, key=losses.__getitem__, reverse=order == "descending")
        assert column(page, 0) == names
        assert column(page, 3) == [fixed(losses[name], 4) for name in names]
    page.press("Enter")
    assert page.evaluate(f"{title}.getAttribute('aria-sort')") is None
    assert column(page, 0) == list(losses)


def test_the_keyboard_enlarges_moves_and_lets_go(page: Page) -> None:
    low, high = page.evaluate(f"{VIEW}.scale('x').domain()")
    size = high - low
    page.evaluate(f"{CURVES}.focus()")
    for key, expected in (
        ("+", [low + size / 4, high - size / 4]),
        ("ArrowRight", [low + 3 * size / 8, high - size / 8]),
        ("-", [low + size / 8, high + size / 8]),
        ("Escape", [low, high]),
    ):
        page.press(key)
        page.until(f"{VIEW}.scale('x').domain()", expected)
    assert page.evaluate("document.activeElement.className") == "chart"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_another_quantity_on_the_x_axis_moves_the_lines_and_shows_all_of_them(page: Page) -> None:
    menu = f"{CURVES}.querySelector('select')"
    assert page.evaluate(f"[...{menu}.options].map(each => each.text)") == ["step", "tokens", "hours"]
    page.evaluate(f"{CURVES}.focus()")
    low, high = page.evaluate(f"{VIEW}.scale('x').domain()")
    page.press("+")
    page.until(f"{VIEW}.scale('x').domain()[0] > {low}", True)
    page.evaluate(f"{menu}.value = 'tokens', {menu}.dispatchEvent(new Event('change'))")
    page.until(f"{VIEW}.scale('x').domain()[1] > {1000 * high}", True)  # 4096 tokens a step
    ends = page.evaluate(f"{VIEW}.scale('x').domain()")
    assert ends[0] <= 4096 * low * 1.01
    assert "tokens" in page.evaluate(f"{CURVES}.textContent")


def test_without_scripts_the_page_says_the_same_but_for_the_figures(browser: Page, report: Path) -> None:
    words = (
        "[...document.querySelectorAll('main :is(p, td, th, figcaption, summary)')].map(each => each.innerText).join()"
    )
    opened(browser, report)
    with_scripts = browser.evaluate(words)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report, 1280)
        assert browser.evaluate(words) == with_scripts
        assert browser.evaluate("document.querySelectorAll('button').length") == 0
        assert "Without JavaScript the figures are missing" in browser.evaluate("document.body.innerText")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
