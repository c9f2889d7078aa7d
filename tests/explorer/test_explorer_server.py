"""Who is answered, and what."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from widthwise.config_io import UserError
from widthwise.explorer.answers import Answers
from widthwise.explorer.server import ExplorerServer
from widthwise.explorer.setting import Setting


@pytest.fixture(scope="module")
def server() -> Iterator[ExplorerServer]:
    with ExplorerServer(Answers("x_200m")) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=30)


def _get(server: ExplorerServer, path: str, host: str | None = None, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    headers |= {"Host": host} if host else {}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def test_it_listens_on_this_machine_alone(server: ExplorerServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1.evil.example:{port}"])
@pytest.mark.parametrize("path", ["/", "/costs", "/recipe.yaml"])
def test_a_name_that_leads_here_from_elsewhere_is_turned_away(server: ExplorerServer, path: str, host: str) -> None:
    status, _, text = _get(server, path, host.format(port=server.server_port))
    assert status == 421
    assert "x_200m" not in text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_questions_of_other_pages_are_turned_away(server: ExplorerServer, headers: dict[str, str], status: int) -> None:
    filled = {name: value.format(port=server.server_port) for name, value in headers.items()}
    assert _get(server, "/costs", **filled)[0] == status
    assert _get(server, "/", **headers)[0] == 200, "a link to the page works"


def test_what_is_no_address_is_a_bad_request(server: ExplorerServer, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(f"GET http://[::1/costs HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        assert b" 400 " in connection.recv(100)
    assert capfd.readouterr().err == ""


def test_localhost_is_answered(server: ExplorerServer) -> None:
    assert _get(server, "/controls", f"localhost:{server.server_port}")[0] == 200


def test_the_page_may_load_from_this_server_alone(server: ExplorerServer) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
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


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"d_model": "wide"}, "setting: d_model: got 'wide'; input should be a valid integer"),
        ({"width": 3}, "setting: width: unknown key"),
        ({"turn_width": 1.5}, "bottleneck_width: got 1.5"),
        ({"shape": "xx"}, "model.shape.kind: got 'xx'; did you mean 'x'?"),
        ({"n_heads": 20}, "model.shape.quantum: got 32; must be a multiple of 40"),
        ({"budget": "many"}, "--budget: got 'many'"),
        ({"n_layers": 10_000}, "setting: n_layers: got '10000'; input should be less than or equal to 256"),
        ({"n_layers": 2}, "model.n_layers: 2 is too few"),
        ({"ratio": "nan"}, "ratio: got"),
    ],
)
def test_a_mistake_is_the_line_that_the_command_line_prints(
    server: ExplorerServer, query: dict[str, object], message: str
) -> None:
    status, _, text = _get(server, "/costs?" + urlencode(query))
    assert status == 422
    assert message in json.loads(text)["error"]
    assert _get(server, "/recipe.yaml?" + urlencode(query))[0] in (200, 422)


def test_what_is_not_there_is_not_found(server: ExplorerServer) -> None:
    assert _get(server, "/../pyproject.toml")[0] == 404
    assert _get(server, "/answers.py")[0] == 404


def test_a_taken_port_is_an_error(server: ExplorerServer) -> None:
    from widthwise.cli.explore import _server

    with pytest.raises(UserError, match=f"--port: got {server.server_port}"):
        _server(server.answers, server.server_port)
    with _server(server.answers, None) as other:
        assert other.server_port != server.server_port
