"""Who is answered, and what: the numbers of a setting are those of other verbs for the recipe that it gives."""

import http.client
import json
import re
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from boxes import refusal

from widthwise.config_io import parse
from widthwise.explorer.server import Answers, ExplorerServer
from widthwise.explorer.setting import Setting
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import load_recipe
from widthwise.reports.formats import MISSING, duration, si
from widthwise.training.launch import Interrupted


def _get(server: ExplorerServer, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest("GET", path, skip_host=True)
    for name, value in ({"Host": f"127.0.0.1:{server.server_port}"} | headers).items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_a_name_that_leads_here_from_elsewhere_is_turned_away(server: ExplorerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil.example:{port}"):
        for path in ("/", "/costs", "/recipe.yaml"):
            status, _, text = _get(server, path, Host=host)
            assert (host, path, status, "x_200m" in text) == (host, path, 421, False)


def test_another_site_may_link_to_the_page_and_no_more(server: ExplorerServer) -> None:
    own, link = f"http://127.0.0.1:{server.server_port}", {"Sec_Fetch_Dest": "document"}
    for expected, path, headers in (
        (403, "/costs", {"Sec_Fetch_Site": "cross-site"}),
        (403, "/memory", {"Sec_Fetch_Site": "same-site"}),
        (403, "/", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "iframe"}),
        (403, "/recipe.yaml", {"Sec_Fetch_Site": "cross-site", **link}),
        (403, "/costs", {"Origin": "http://evil.example"}),
        (403, "/costs", {"Origin": "null"}),
        (200, "/costs", {"Sec_Fetch_Site": "same-origin", "Origin": own}),
        (200, "/recipe.yaml", {"Sec_Fetch_Site": "none", **link}),
        (200, "/?d_model=704", {"Sec_Fetch_Site": "cross-site", **link}),
    ):
        status, _, text = _get(server, path, **headers)
        assert (path, headers, status) == (path, headers, expected)
        assert status == 200 or "x_200m" not in text


def test_a_target_that_is_no_address_is_a_bad_request(server: ExplorerServer, capfd) -> None:
    assert _get(server, "http://[::1/costs")[0] == 400
    assert capfd.readouterr().err == ""


def test_the_page_may_load_from_this_server_alone(server: ExplorerServer) -> None:
    kinds = {"/": "text/html", "/reports.css": "text/css", "/page.css": "text/css", "/page.js": "text/javascript"}
    for path, kind in kinds.items():
        status, headers, text = _get(server, path)
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_an_answer_is_that_of_the_setting_in_the_address(server: ExplorerServer) -> None:
    status, _, text = _get(server, "/costs?d_model=704&turn_width=0.4")
    expected = json.dumps(server.answers.costs(Setting(d_model=704, turn_width=0.4)))
    assert (status, text) == (200, expected)


def test_a_mistake_is_the_line_that_the_command_line_prints(server: ExplorerServer) -> None:
    for message, query in {
        "setting: d_model: got 'wide'; input should be a valid integer": {"d_model": "wide"},
        "setting: width: unknown key": {"width": 3},
        "model.shape.kind: got 'xx'; did you mean 'x'?": {"shape": "xx"},
        "model.shape.quantum: got 32; must be a multiple of 40": {"n_heads": 20},
        "--budget: got 'many'": {"budget": "many"},
        "setting: n_layers: got '10000'; input should be less than or equal to 512": {"n_layers": 10_000},
    }.items():
        status, _, text = _get(server, "/costs?" + urlencode(query))
        assert status == 422
        assert message in json.loads(text)["error"]


def test_a_taken_port_is_an_error_unless_it_is_the_default(server: ExplorerServer, monkeypatch, capsys) -> None:
    from widthwise.cli import design

    taken = design.ExploreOptions(port=server.server_port, no_browser=True)
    assert f"--port: got {server.server_port}" in refusal(design.explore, Path("smoke"), taken)
    monkeypatch.setattr(design, "DEFAULT_PORT", server.server_port)
    monkeypatch.setattr(ExplorerServer, "serve_forever", lambda self: None)
    design.explore(Path("smoke"), design.ExploreOptions(no_browser=True))
    assert re.fullmatch(r"http://127.0.0.1:(\d+)/ .*\n", capsys.readouterr().out)[1] != str(server.server_port)


def test_a_signal_while_a_request_is_taken_in_ends_it(server: ExplorerServer, monkeypatch) -> None:
    def stop(*_: object) -> None:
        raise Interrupted("stopped", signal.SIGINT)

    with ExplorerServer(server.answers) as other:
        monkeypatch.setattr(other, "process_request", stop)
        with socket.create_connection(("127.0.0.1", other.server_port)), pytest.raises(Interrupted):
            other.handle_request()


CHANGES = ("train.batch_size=24", "train.micro_batch_size=null")


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers("x_200m", CHANGES)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"shape": "uniform", "n_heads": "8", "quantum": "smallest"}, {"d_model": 640, "n_heads": [8]}),
        ({"shape": "diamond", "turn_width": "1.25", "d_model": "704", "quantum": "smallest"}, {"d_model": 704}),
        ({"n_layers": "9", "head_dim": "16", "ratio": "2.5", "match": "kv_bytes"}, {"n_layers": 9, "head_dim": [16]}),
        ({"shape": "growing", "ffn": "hourglass", "kv_group_size": "2", "rounding": "balanced"}, {"d_model": 640}),
        ({"shape": "narrowing", "ffn": "dynamic", "budget": "150M", "match": "params"}, {"n_layers": 16}),
    ],
)
def test_the_numbers_are_those_of_inspect_for_the_recipe_that_it_gives(
    answers: Answers, tmp_path: Path, setting: dict[str, str], expected: dict[str, Any]
) -> None:
    asked = parse(Setting, setting)
    found = answers.costs(asked)
    path = tmp_path / "explored.yaml"
    path.write_text(answers.recipe_yaml(asked))
    inspection = found["inspection"]
    assert inspection == inspect_recipe(load_recipe(path))
    assert found["yaml"] == path.read_text()
    assert found["budget"].startswith("budget: ") == ("budget" in setting)
    assert (len(set(inspection["widths"])) == 1) == (setting.get("shape") == "uniform")
    for key, value in expected.items():
        assert (sorted(set(inspection[key])) if isinstance(value, list) else inspection[key]) == value
    assert {layer["n_heads"] // layer["n_kv_heads"] for layer in inspection["layers"]} == {asked.kv_group_size or 1}
    if "ratio" in setting:
        hidden_widths = [round(2.5 * width) for width in inspection["widths"]]
        assert [sum(hidden) for hidden in inspection["hidden_widths"]] == hidden_widths


def test_untouched_it_is_the_recipe(answers: Answers) -> None:
    recipe = load_recipe("x_200m", CHANGES)
    assert answers.costs(Setting())["inspection"] == inspect_recipe(recipe)
    expected = {"shape": "x", "turn_layer": 0.75, "turn_width": 0.3, "quantum": 32}
    expected |= {"d_model": 640, "n_layers": 16, "n_heads": 16, "ratio": 4}
    assert expected.items() <= answers.controls["start"].items()


def test_counted_key_value_heads_are_groups_that_other_heads_have_too(tmp_path: Path) -> None:
    answers, path = Answers("x_200m", ["model.attention.n_kv_heads=4"]), tmp_path / "explored.yaml"
    settings = ((Setting(kv_group_size=2), 8), (Setting(n_heads=8), 2), (Setting(head_dim=40, shape="uniform"), 4))
    for setting, n_kv_heads in settings:
        path.write_text(answers.recipe_yaml(setting))
        found = {layer.attention.n_kv_heads for layer in load_recipe(path).explicit_model.layers}
        counted = {layer["n_kv_heads"] for layer in answers.costs(setting)["inspection"]["layers"]}
        assert found == counted == {n_kv_heads}


def test_a_curve_is_tried_at_other_sizes_and_left_for_another_kind() -> None:
    of_curve = Answers("x_200m", ["model.shape={kind: curve, widths: [2, 1, 1.5]}"])
    assert of_curve.controls["start"]["shape"] == "curve"
    setting = Setting(n_layers=9, d_model=704)
    found = of_curve.costs(setting)["inspection"]
    assert found == inspect_recipe(of_curve.recipe(setting)) | {"layers": found["layers"]}
    assert (len(found["widths"]), found["widths"].index(min(found["widths"]))) == (9, 4)
    assert of_curve.costs(Setting(shape="x"))["inspection"]["widths"] != found["widths"]


def test_a_recipe_that_cannot_be_explored_is_refused() -> None:
    for message, recipe, *overrides in (
        ("describes several runs", "quickstart"),
        ("model.n_layers: got 0", "quickstart", "compare=null", "model.n_layers=0"),
        ("model.shape.kind: got 'explicit'", "x_200m", "model.shape={kind: explicit, widths: [64]}"),
        ("bottleneck_width", "x_200m", "model.shape.bottleneck_width=3"),
    ):
        assert message in refusal(Answers, recipe, overrides)


def test_memory_is_that_of_plan(answers: Answers) -> None:
    from widthwise.runs.plan import Planner
    from widthwise.training.devices import WITH_MEMORY

    setting = Setting(n_layers=5, turn_layer=0.5)
    recipe = answers.recipe(setting)
    rows = {row[0]: row[1:] for row in answers.memory(setting)["rows"]}
    assert set(rows) == {device.name for device in WITH_MEMORY}
    for device in (WITH_MEMORY[0], WITH_MEMORY[-1]):
        setups = {setup.activation_checkpointing: setup for setup in Planner(recipe).deployment(device).setups}
        setup = setups["none"]
        size, hours = MISSING, MISSING
        if setup.micro_batch_size is not None:
            size, hours = str(setup.micro_batch_size), duration(setup.run_hours)
        assert rows[device.name] == [f"{si(device.memory_bytes)}B", size, f"{si(setup.memory.total_bytes)}B", hours]
