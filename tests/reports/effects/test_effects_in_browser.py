"""What a reader sees of an effect by pointing at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium_pipe import IN_CHROMIUM, Page
from fake_effects import BASE_TOKENS, EFFECTS, HALF_WIDTH, write_scales

from widthwise.reports.page.formats import si, signed
from widthwise.reports.writing import write_report

pytestmark = IN_CHROMIUM

PLACES = """(() => {
  const panel = [...document.querySelectorAll('figure')].find(each => each.textContent.trim().startsWith('NAME'));
  panel.scrollIntoView({block: 'center', behavior: 'instant'});
  return [...panel.querySelectorAll('[data-name="SIZE"][data-detail] path.numbers')].flatMap(path => {
    const numbers = path.getAttribute('d').match(/[^M ]+/g).map(Number), matrix = path.getScreenCTM();
    if (numbers.length > 2) return [];
    const at = new DOMPoint(...numbers).matrixTransform(matrix);
    return [[at.x, at.y]];
  });
})()"""
TIP = "[...document.querySelector('.tip').children].map(each => each.textContent)"
SEEN = """[...document.querySelectorAll('figure')].map(each =>
  [...each.querySelectorAll('[data-name]')].filter(group => getComputedStyle(group).display !== 'none').length)"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("effects")
    return write_report(write_scales(folder / "src"), folder / "out")[0]


@pytest.fixture
def page(browser: Page, report: Path) -> Iterator[Page]:
    browser.open(report, 1280)
    yield browser
    assert browser.complaints() == []


@pytest.mark.parametrize("size", ["771k parameters", "3.79M parameters"])
def test_a_marker_says_its_difference_interval_and_tokens(page: Page, size: str) -> None:
    places = page.evaluate(PLACES.replace("NAME", "turns").replace("SIZE", size))
    assert len(places) == 2
    for place, doublings in zip(places, (0, 2)):
        page.mouse("Moved", *place)
        mean = EFFECTS["turns"](doublings)
        assert page.evaluate(TIP) == [
            size,
            f"{signed(mean - HALF_WIDTH, 4)} to {signed(mean + HALF_WIDTH, 4)}",
            "3 seeds",
            f"tokens: {si(BASE_TOKENS * 2**doublings)}",
            f"difference in nats: {signed(mean, 2).removeprefix('+')}",
        ]


def test_a_name_in_the_legend_hides_a_size_in_all_panels(page: Page) -> None:
    before = page.evaluate(SEEN)
    page.evaluate("document.querySelector('.legend button').click()")
    after = page.evaluate(SEEN)
    assert len(after) == len(EFFECTS)
    assert all(0 < hidden < shown for hidden, shown in zip(after, before))
