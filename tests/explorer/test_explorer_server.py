"""Who is answered, and what."""

import http.client
import json
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlencode

import pytest
from boxes import refusal

from widthwise.explorer.server import ExplorerServer
from widthwise.explorer.setting import Setting
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
    for host in ("evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}"):
        for path in ("/", "/costs", "/recipe.yaml"):
            status, _, text = _get(server, path, Host=host.format(port=server.server_port))
            assert (host, path, status) == (host, path, 421)
            assert "x_200m" not in text


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
    status, _, text = _get(server, "/costs?" + urlencode({"d_model": 704, "turn_width": 0.4}))
    found = json.loads(text)
    assert status == 200
    assert found == json.loads(json.dumps(server.answers.costs(Setting(d_model=704, turn_width=0.4))))
    assert found["inspection"]["d_model"] == 704


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
        assert (message, status) == (message, 422)
        assert message in json.loads(text)["error"]
        assert _get(server, "/recipe.yaml?" + urlencode(query))[0] in (200, 422)


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
