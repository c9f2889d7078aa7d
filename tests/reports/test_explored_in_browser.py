"""What a reader does with a page in a headless Chromium: point, click, drag, sort and press keys."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chromium_pipe import IN_CHROMIUM, Page
from fake_comparison import write_comparison
from fake_effects import BASE_TOKENS, EFFECTS, HALF_WIDTH, write_scales

from widthwise.reports.formats import fixed, si, signed
from widthwise.reports.writing import write_report

pytestmark = IN_CHROMIUM

LINE = 'document.querySelector(\'#curves figure [data-name="{name}"][data-detail^="{detail}"] path.numbers\')'
PLACES = """(path => {{
  path.closest('svg').scrollIntoView({{block: 'center', behavior: 'instant'}});
  const matrix = path.getScreenCTM();
  const numbers = path.getAttribute('d').match(/[^M ]+/g).map(Number);
  return numbers.flatMap((x, i) => {{
    if (i % 2) return [];
    const at = new DOMPoint(x, numbers[i + 1]).matrixTransform(matrix);
    return [[at.x, at.y]];
  }});
}})({path})"""
TIP = "(tip => tip.hidden ? null : [...tip.children].map(each => each.textContent))(document.querySelector('.tip'))"
TABLE = "document.querySelector('#results table')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("page") / "folder")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return write_report([folder])[0]


@pytest.fixture
def page(browser: Page, report: Path) -> Iterator[Page]:
    """The comparison, opened anew; nothing was asked of the network and nothing failed."""
    browser.open(report, 1280)
    yield browser
    assert browser.requests() == [report.resolve().as_uri()]
    assert browser.complaints() == []


def places(page: Page, name: str, detail: str) -> Sequence[tuple[float, float]]:
    """Where the browser shows each number of a line, and the figure in the middle of the window."""
    return page.evaluate(PLACES.format(path=LINE.format(name=name, detail=detail)))


def validations(folder: Path, run: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "runs" / run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == "validation"]


def test_pointing_at_a_line_shows_what_the_run_recorded(page: Page, folder: Path) -> None:
    for index in (3, 11):
        record = validations(folder, "variant1-seed2")[index]
        page.mouse("Moved", *places(page, "x", "seed 2")[index])
        name, detail, step, loss = page.evaluate(TIP)
        assert (name, detail, step) == ("x", "seed 2", f"step: {record['step']:,}")
        assert float(loss.removeprefix("held-out loss: ")) == pytest.approx(record["loss"], abs=6e-5)


def test_a_name_in_the_legend_hides_its_lines_and_shows_them_again(page: Page) -> None:
    lines = "[...document.querySelectorAll('#curves [data-name=\"x\"]')]"
    are_seen = f"{lines}.map(each => getComputedStyle(each).display !== 'none')"
    button = "[...document.querySelectorAll('#curves .legend button')].find(each => each.textContent.trim() === 'x')"
    seen = "each.scrollIntoView({block: 'center', behavior: 'instant'})"
    box = f"(each => {{ {seen}; const b = each.getBoundingClientRect(); return [b.x + 5, b.y + 5]; }})"
    assert set(page.evaluate(are_seen)) == {True}
    page.click(*page.evaluate(f"{box}({button})"))
    assert set(page.evaluate(are_seen)) == {False}
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    assert page.evaluate(are_seen.replace('"x"', '"uniform"')).count(False) == 0
    page.evaluate(f"{button}.focus()")
    page.press("Enter")
    assert set(page.evaluate(are_seen)) == {True}


def column(page: Page, number: int) -> list[str]:
    return page.evaluate(f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[{number}].firstChild.textContent.trim())")


def test_a_title_of_a_column_sorts_by_its_numbers_and_then_gives_the_order_back(page: Page) -> None:
    losses = {"uniform": 3.05, "x": 3.05 - 0.0123, "hourglass": 3.05 + 0.004}
    title = f"{TABLE}.tHead.rows[0].cells[1]"
    for order in ("ascending", "descending"):
        page.evaluate(f"{title}.querySelector('button').focus()")
        page.press("Enter")
        assert page.evaluate(f"{title}.getAttribute('aria-sort')") == order
        names = sorted(losses, key=losses.__getitem__, reverse=order == "descending")
        assert column(page, 0) == names
        assert column(page, 1) == [fixed(losses[name], 4) for name in names]
    page.press("Enter")
    assert page.evaluate(f"{title}.getAttribute('aria-sort')") is None
    assert column(page, 0) == list(losses)


def test_dragging_enlarges_a_range_and_a_double_click_shows_all(page: Page) -> None:
    before = places(page, "x", "seed 2")
    left, right = before[3], before[7]
    page.drag((left[0], left[1] - 20), (right[0], left[1] - 20))
    after = places(page, "x", "seed 2")
    frame = page.evaluate(
        "(svg => { const b = svg.getBoundingClientRect(), s = b.width / svg.viewBox.baseVal.width, "
        "x = JSON.parse(svg.dataset.axes).x; return [b.x + x.start * s, b.x + x.end * s]; })"
        "(document.querySelector('#curves svg.plot'))"
    )
    assert [after[3][0], after[7][0]] == pytest.approx(frame, abs=1.5)
    assert [y for _, y in after] == pytest.approx([y for _, y in before], abs=0.5)
    page.mouse("Moved", *after[5])
    assert page.evaluate(TIP)[2] == "step: 3,000"
    page.click(*after[5], n_clicks=2)
    assert [x for x, _ in places(page, "x", "seed 2")] == pytest.approx([x for x, _ in before], abs=0.5)


def test_the_keyboard_goes_from_value_to_value_enlarges_and_lets_go(page: Page, folder: Path) -> None:
    records = validations(folder, "variant0-seed1")
    places(page, "uniform", "seed 1")
    page.evaluate("document.querySelector('#curves svg.plot').focus()")
    shown = [record for record in records if record["step"] > 0.1 * 6000]  # the steep first tenth is off the frame
    for key, record in (("ArrowRight", shown[0]), ("ArrowRight", shown[1]), ("ArrowLeft", shown[0])):
        page.press(key)
        assert page.evaluate(TIP)[:3] == ["uniform", "seed 1", f"step: {record['step']:,}"]
    page.press("ArrowDown")
    assert page.evaluate(TIP)[1] == "seed 2"
    wide = places(page, "uniform", "seed 1")
    page.press("+")
    close = places(page, "uniform", "seed 1")
    assert close[5][0] - close[4][0] == pytest.approx(2 * (wide[5][0] - wide[4][0]), rel=0.01)
    page.press("Escape")
    assert page.evaluate(TIP) is None
    assert places(page, "uniform", "seed 1")[5][0] == pytest.approx(wide[5][0], abs=0.5)
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate("document.activeElement.tagName") == "svg"
    assert page.evaluate(outline) == "solid"


def test_without_scripts_the_page_says_the_same(browser: Page, report: Path) -> None:
    words = "document.body.innerText.replace(/\\s+/g, ' ')"
    browser.open(report, 1280)
    browser.evaluate("document.getElementById('hint').hidden = true")
    with_scripts = browser.evaluate(words)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report, 1280)
        assert browser.evaluate(words) == with_scripts
        assert browser.evaluate("document.querySelectorAll('button').length") == 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


MARKERS = """(() => {
  const panel = [...document.querySelectorAll('figure')].find(each => each.textContent.trim().startsWith('turns'));
  panel.scrollIntoView({block: 'center', behavior: 'instant'});
  return [...panel.querySelectorAll('[data-name="SIZE"][data-detail] path.numbers')].flatMap(path => {
    const numbers = path.getAttribute('d').match(/[^M ]+/g).map(Number), matrix = path.getScreenCTM();
    if (numbers.length > 2) return [];
    const at = new DOMPoint(...numbers).matrixTransform(matrix);
    return [[at.x, at.y]];
  });
})()"""
SEEN = """[...document.querySelectorAll('figure')].map(each =>
  [...each.querySelectorAll('[data-name]')].filter(group => getComputedStyle(group).display !== 'none').length)"""


def test_a_marker_of_an_effect_says_its_numbers_and_a_name_in_the_legend_hides_a_size_in_all_panels(
    browser: Page, tmp_path: Path
) -> None:
    browser.open(write_report(write_scales(tmp_path / "src"), tmp_path / "out")[0], 1280)
    for size in ("771k parameters", "3.79M parameters"):
        for place, doublings in zip(browser.evaluate(MARKERS.replace("SIZE", size)), (0, 2), strict=True):
            browser.mouse("Moved", *place)
            mean = EFFECTS["turns"](doublings)
            assert browser.evaluate(TIP) == [
                size,
                f"{signed(mean - HALF_WIDTH, 4)} to {signed(mean + HALF_WIDTH, 4)}",
                "3 seeds",
                f"tokens: {si(BASE_TOKENS * 2**doublings)}",
                f"difference in nats: {signed(mean, 2).removeprefix('+')}",
            ]
    before = browser.evaluate(SEEN)
    browser.evaluate("document.querySelector('.legend button').click()")
    after = browser.evaluate(SEEN)
    assert len(after) == len(EFFECTS)
    assert all(0 < hidden < shown for hidden, shown in zip(after, before))
    assert browser.complaints() == []
