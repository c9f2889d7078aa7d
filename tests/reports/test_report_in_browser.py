"""Every kind of page in a headless Chromium, and what a reader does with one: point, click, drag, sort, press keys."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from chromium_pipe import IN_CHROMIUM, Page
from fake_analysis import model, write_analysis
from fake_comparison import token_widths, write_full_comparison, write_grown_run
from fake_scaling import write_scaling
from fake_sweep import sweep_data, with_wide_grid, write_sweep
from page_section import markup_of
from test_evaluation_report import evaluation_table
from thinned import hard_but

from widthwise.records.outcome import Outcome
from widthwise.reports.writing import PAGES, write_report
from widthwise.run_dir import RunDir

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
    page = markup_of(report.read_text(encoding="utf-8"))
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    assert {link.get("href", "#").removeprefix("#") for link in page.iter("a")} <= set(ids)
    sections = [section.get("aria-labelledby") for section in page.iter("section")]
    assert len(sections) > 2
    assert set(sections) <= set(ids)
    (title,) = page.iter("h1")
    assert title.text
    landmarks = ("header", "nav", "main", "footer")
    assert tuple(element.tag for element in page.iter() if element.tag in landmarks) == landmarks
    assert all(element.get("aria-label") for element in page.iter("nav"))
    levels = [int(element.tag[1]) for element in page.iter() if element.tag in ("h1", "h2", "h3")]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(table.find("caption") is not None for table in page.iter("table"))
    assert all(cell.get("scope") for cell in page.iter("th"))
    for chart in page.findall(".//*[@class='chart']"):
        assert (chart.get("role"), len(chart.get("aria-label", "")) >= 20) == ("img", True)
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


CURVES = "document.querySelector('#figure-validation-loss .chart')"
VIEW = f"{CURVES}.view"
TIP = """(tip => tip?.classList.contains('visible')
  ? Object.fromEntries([...tip.querySelectorAll('tr')].map(row => [...row.cells].map(cell => cell.textContent)))
  : null)(document.getElementById('vg-tooltip-element'))"""
TABLE = "document.querySelector('#results table')"


@pytest.fixture(scope="module")
def comparison_report(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(comparison, tmp_path_factory.mktemp("report"))[0]


@pytest.fixture
def page(browser: Page, comparison_report: Path) -> Iterator[Page]:
    """The comparison, opened anew; nothing was asked of the network and nothing failed."""
    opened(browser, comparison_report)
    yield browser
    assert browser.requests() == [comparison_report.resolve().as_uri()]
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


def test_pointing_at_a_line_shows_what_the_runs_recorded(page: Page, comparison: Path) -> None:
    runs = [RunDir(comparison / f"runs/variant2-seed{seed}").metrics() for seed in (1, 2)]
    losses = [{record["step"]: record["loss"] for record in run if record["event"] == "validation"} for run in runs]
    for step in (2000, 6000):
        mean = sum(by_step[step] for by_step in losses) / 2
        x, y = place(page, step, mean)
        for shift in (3, 0):
            page.mouse("Moved", x + shift, y)
        page.until(f"({TIP})?.step", f"{step:,}")
        shown = page.evaluate(TIP)
        assert (shown["variant"], shown["line"]) == ("hourglass", "mean of 2")
        assert float(shown["held-out loss"]) == pytest.approx(mean, abs=6e-5)


def names_drawn(figure: str) -> str:
    """The names that a figure has marks of."""
    return f"""[...new Set([...document.querySelectorAll('#figure-{figure} :is(.mark-line, .mark-symbol) path')]
      .map(each => each.getAttribute('aria-label')?.match(/name: ([^;]*)/)?.[1]).filter(Boolean))].sort().join()"""


def test_a_name_in_the_legend_hides_its_lines_in_all_figures_below_and_shows_them_again(page: Page) -> None:
    button = "[...document.querySelectorAll('.legend button')].find(each => each.textContent.trim() === 'x')"
    page.until(names_drawn("differences"), "hourglass,x")
    page.evaluate(f"{button}.click()")
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.until(names_drawn("differences"), "hourglass")
    page.until(names_drawn("validation-loss"), "hourglass,uniform")
    page.evaluate(f"{button}.focus()")
    page.press("Enter")
    page.until(names_drawn("validation-loss"), "hourglass,uniform,x")


def test_a_title_of_a_column_sorts_by_its_numbers_and_then_gives_the_order_back(page: Page) -> None:
    losses = {"uniform": 3.05, "x": 3.05 - 0.0123, "hourglass": 3.05 + 0.004}
    title = f"{TABLE}.tHead.rows[0].cells[3]"
    names_shown = f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[0].firstChild.textContent.trim())"
    for order, names in (
        ("ascending", sorted(losses, key=losses.__getitem__)),
        ("descending", sorted(losses, key=losses.__getitem__, reverse=True)),
        (None, list(losses)),
    ):
        page.evaluate(f"{title}.querySelector('button').focus()")
        page.press("Enter")
        assert page.evaluate(f"{title}.getAttribute('aria-sort')") == order
        assert page.evaluate(names_shown) == names


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
    assert page.evaluate(f"{VIEW}.scale('x').domain()[0]") <= 4096 * low * 1.01
    assert "tokens" in page.evaluate(f"{CURVES}.textContent")


def test_without_scripts_the_page_says_the_same_but_for_the_figures(browser: Page, comparison_report: Path) -> None:
    words = (
        "[...document.querySelectorAll('main :is(p, td, th, figcaption, summary)')].map(each => each.innerText).join()"
    )
    opened(browser, comparison_report)
    with_scripts = browser.evaluate(words)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(comparison_report, 1280)
        assert browser.evaluate(words) == with_scripts
        assert browser.evaluate("document.querySelectorAll('button').length") == 0
        assert "Without JavaScript the figures are missing" in browser.evaluate("document.body.innerText")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
