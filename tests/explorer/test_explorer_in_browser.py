"""The page in a headless Chromium: sliders are dragged, buttons clicked, nothing leaves the machine."""

import json
import time
from pathlib import Path

import pytest
from chromium_pipe import IN_CHROMIUM, Page

from widthwise.explorer.server import ExplorerServer
from widthwise.explorer.setting import Setting
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import load_recipe

pytestmark = IN_CHROMIUM

CENTRE = "(box => [box.x + box.width / 2, box.y + box.height / 2, box.width])({}.getBoundingClientRect())"
MISSED = """[...document.querySelectorAll('input, select, button, a[href], summary, .scroll')].filter(
  each => !each.disabled && each.offsetParent && !reached.has(each)
).map(each => each.outerHTML)"""
SLIDER = "document.querySelector('.pair[data-name={}] input[type=range]')"


def _open(page: Page, server: ExplorerServer, query: str = "", width: int = 1280, scheme: str = "light") -> None:
    page.visit(server.url + query, width, scheme=scheme)
    page.until("(byId('costs').rows.length > 5 || !byId('error').hidden) && !isAsking")


def _click(page: Page, element: str) -> None:
    page.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
    x, y, _ = page.evaluate(CENTRE.format(element))
    page.click(x, y)


def _drag(page: Page, name: str, to: float) -> None:
    """Drags a slider's thumb from where it is to a share of the track."""
    slider = SLIDER.format(name)
    page.evaluate(f"{slider}.scrollIntoView({{block: 'center'}})")
    x, y, width = page.evaluate(CENTRE.format(slider))
    share = page.evaluate(f"(({slider}.value - {slider}.min) / ({slider}.max - {slider}.min))")
    begin, end = (x - width / 2 + 8 + each * (width - 16) for each in (share, to))
    page.drag((begin, y), (end, y))


def _bars(page: Page) -> list[int]:
    """The widths that are drawn, from their labels for a pointer."""
    return page.evaluate(
        "[...document.querySelectorAll('.bar title')].map(each => +each.textContent.match(/width (\\d+)/)[1])"
    )


def test_dragging_a_slider_moves_widths_numbers_and_address(browser: Page, server: ExplorerServer) -> None:
    _open(browser, server)
    before = _bars(browser)
    _drag(browser, "turn_width", 0.7)
    browser.until("location.search.includes('turn_width') && !isAsking && !isStale")
    share = float(browser.evaluate("set.get('turn_width')"))
    assert 0.6 < share < 0.8
    inspection = server.answers.costs(Setting(turn_width=share))["inspection"]
    assert _bars(browser) == inspection["widths"] != before
    params = f"{inspection['params']['total']:,}"
    assert browser.evaluate("document.querySelector('#costs tbody td').textContent") == params
    assert browser.evaluate("document.querySelector('#turn_width').value") == str(share)


def test_a_shared_address_opens_the_setting_and_its_recipe_has_its_numbers(browser, server, tmp_path: Path) -> None:
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    _open(browser, server, "?shape=diamond&turn_width=1.4&d_model=704&quantum=smallest")
    controls = browser.evaluate("[byId('shape').value, byId('turn_width').value, byId('d_model').value]")
    assert controls == ["diamond", "1.4", "704"]
    _click(browser, "byId('download')")
    path, end = tmp_path / "x_200m_explored.yaml", time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    found = inspect_recipe(load_recipe(path))
    assert found["widths"] == _bars(browser)
    assert browser.evaluate("shown") == json.loads(json.dumps(found))
    assert browser.evaluate("byId('yaml').textContent") == path.read_text()


def test_a_mistake_is_said_in_its_line_and_mended_by_going_back(browser: Page, server: ExplorerServer) -> None:
    _open(browser, server, "?n_heads=20")
    assert "model.shape.quantum: got 32" in browser.evaluate("byId('error').textContent")
    assert browser.evaluate("[byId('error').hidden, byId('download').hasAttribute('href')]") == [False, False]
    _click(browser, "byId('reset')")
    browser.until("byId('error').hidden && location.search === ''")


def test_the_keyboard_reaches_every_control_and_moves_a_slider(browser: Page, server: ExplorerServer) -> None:
    _open(browser, server)
    browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    browser.evaluate("window.reached = new Set(); document.addEventListener('focusin', e => reached.add(e.target))")
    for _ in range(45):
        browser.press("Tab")
    assert browser.evaluate(MISSED) == []
    browser.evaluate(f"{SLIDER.format('n_layers')}.focus()")
    browser.press("ArrowRight")
    browser.until("location.search === '?n_layers=10' && !isAsking")
    assert len(_bars(browser)) == 10


def test_memory_is_counted_one_at_a_time_and_last_for_the_last_setting(browser: Page, server: ExplorerServer) -> None:
    _open(browser, server)
    browser.until("byId('memory').rows.length > 10")
    browser.evaluate("""const own = fetch; var at_work = 0, most = 0; fetch = async path => {
      if (!path.startsWith("/memory")) return own(path);
      most = Math.max(most, ++at_work);
      const answer = await own(path);
      await new Promise(done => setTimeout(done, 1000));
      at_work--;
      return answer;
    }""")
    for d_model in (704, 736, 768):
        browser.evaluate(f"change('d_model', '{d_model}')")
        time.sleep(0.5)
    wanted = [row[3] for row in server.answers.memory(Setting(d_model=768))["rows"]]
    shown = "[...byId('memory').rows].slice(1).map(row => row.cells[3].textContent)"
    browser.until(f"JSON.stringify({shown}) === {json.dumps(json.dumps(wanted, separators=(',', ':')))}")
    assert browser.evaluate("most") == 1


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_it_fits_the_window_and_asks_nobody_else(browser: Page, server, width: int, scheme: str) -> None:
    _open(browser, server, "?budget=150M", width, scheme)
    browser.until("byId('memory').rows.length > 10")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth && innerWidth") == width
    colours = {"light": "rgb(27, 29, 32)", "dark": "rgb(232, 232, 228)"}
    assert browser.evaluate("getComputedStyle(document.body).color") == colours[scheme]
    assert all(url.startswith(server.url) for url in browser.requests())
    assert browser.complaints() == []
    assert "missed by" in browser.evaluate("byId('summary').textContent")
    assert browser.evaluate("[byId('d_model').disabled, +byId('d_model').value === shown.d_model]") == [True, True]
