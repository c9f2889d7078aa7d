"""The server of the page, which only this machine can reach, and its answers: costs and memory of a setting."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from widthwise.config_io import parse
from widthwise.explorer.setting import Setting, controls
from widthwise.mistakes import UserError
from widthwise.recipe.design import budget_met
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.reports.formats import MISSING, duration, si
from widthwise.reports.table import Table
from widthwise.reports.tables import budget_lines, inspection_costs, inspection_layers
from widthwise.training.launch import Interrupted
from widthwise.yaml_io import dump_yaml, read_recipe, recipe_name

CACHE_SIZE = 128
"""Number of cached answers of each kind: a slider often returns to an earlier position."""
ADDRESS = "127.0.0.1"
JSON = "application/json"
FILES = {  # path of an address -> file and content type
    "/": ("page.html", "text/html"),
    "/reports.css": ("../reports/page.css", "text/css"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Answers:
    """Answers about one recipe, which is read once. Thread-safe. Methods raise UserError for an impossible setting."""

    def __init__(self, recipe: Path | str, overrides: Sequence[str] = ()):
        self._where = str(recipe)
        self._base = read_recipe(recipe, overrides)
        self.controls = {"name": recipe_name(recipe), **controls(parse_recipe(self._base, self._where), self._where)}
        self.costs_json = _as_cached_json(self.costs)
        self.memory_json = _as_cached_json(self.memory)
        self.costs_json(Setting())  # refuses a recipe that `inspect` refuses

    def recipe_yaml(self, setting: Setting) -> str:
        """Return the recipe with the setting as YAML, complete, without `extends`."""
        return dump_yaml(setting.applied(self._base, self._where)[0])

    def recipe(self, setting: Setting) -> Recipe:
        return parse_recipe(setting.applied(self._base, self._where)[0], self._where)

    def costs(self, setting: Setting) -> dict[str, Any]:
        """Return the inspection, as `inspect --json` prints it, its tables, the match of a budget, and the recipe."""
        data, request = setting.applied(self._base, self._where)
        recipe = parse_recipe(data, self._where)
        inspection = inspect_recipe(recipe)
        return {
            "inspection": inspection,
            "costs": _cells(inspection_costs(inspection)),
            "layers": _cells(inspection_layers(inspection)),
            "budget": "; ".join(budget_lines(inspection | budget_met(recipe, request))),
            "yaml": dump_yaml(data),
        }

    def memory(self, setting: Setting) -> dict[str, Any]:
        """Return the table of devices with the largest micro-batch of each, as `plan` computes it. Imports torch."""
        from widthwise.runs.plan import Planner
        from widthwise.training.devices import WITH_MEMORY

        recipe = self.recipe(setting)
        kind = recipe.train.activation_checkpointing
        planner = Planner(recipe)
        rows = []
        for device in sorted(WITH_MEMORY, key=lambda device: device.memory_bytes):
            largest = planner.largest_pass(device, kind)
            n_sequences = run_time = MISSING
            if largest.micro_batch_size is not None:
                n_sequences = str(largest.micro_batch_size)
                run_time = duration(largest.run_hours)
            memory = largest.memory.total_bytes
            rows.append([device.name, f"{si(device.memory_bytes)}B", n_sequences, f"{si(memory)}B", run_time])
        header = ["one device", "has", "largest pass", "needs", "time of the run"]
        caption = f"training memory, activation checkpointing {kind}; a pass in sequences of {recipe.seq_len:,} tokens"
        return _cells(Table(caption, header, rows))


def _as_cached_json(compute: Callable[[Setting], Any]) -> Callable[..., str]:
    """Return a function from a setting to the result as JSON, which caches the last `CACHE_SIZE` results.

    Concurrent requests do not wait for each other.
    """
    return lru_cache(CACHE_SIZE)(lambda setting: json.dumps(compute(setting)))


def _cells(table: Table) -> dict[str, Any]:
    return {"caption": table.caption, "header": list(table.header), "rows": [list(row) for row in table.rows]}


class ExplorerServer(ThreadingHTTPServer):
    """Server that runs until `shutdown`. Other machines cannot reach it."""

    daemon_threads = False  # closing the server waits for running requests

    def __init__(self, answers: Answers, port: int = 0):
        """Listen on a port, 0 for any free one. Raises OSError for a used port."""
        super().__init__((ADDRESS, port), _Handler)
        self.answers = answers
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.origins = {f"http://{host}" for host in self.hosts}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect early, and print the traceback of other errors."""
        error = sys.exception()
        if isinstance(error, Interrupted):  # a signal during a request ends the server
            raise error
        if not isinstance(error, ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    """Handler of the requests for files, controls, costs, memory and the recipe."""

    server: ExplorerServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 2.0
    """Seconds to wait for a request: browsers open connections that they may never use."""

    def do_GET(self) -> None:
        status, content_type, text = self._response()
        body = text.encode()
        self.send_response(status)
        headers = {"Content-Type": f"{content_type}; charset=utf-8", "Content-Length": str(len(body)), **HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _response(self) -> tuple[HTTPStatus, str, str]:
        """Return status, content type and text of the response."""
        # Another site could resolve its name to this machine's address, and its page could then read the answers.
        if self.headers.get("Host") not in self.server.hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", f"open {self.server.url} instead\n"
        try:
            address = urlsplit(self.path)
        except ValueError:
            return HTTPStatus.BAD_REQUEST, "text/plain", "invalid address\n"
        # Other sites may only link to the page: their requests could not read answers, but keep this machine busy.
        site = self.headers.get("Sec-Fetch-Site", "none")
        is_link = address.path == "/" and self.headers.get("Sec-Fetch-Dest") == "document"
        is_local_origin = self.headers.get("Origin", self.server.url.rstrip("/")) in self.server.origins
        if not is_local_origin or not (is_link or site in ("none", "same-origin")):
            return HTTPStatus.FORBIDDEN, "text/plain", "other sites may only link to the page\n"
        if address.path in FILES:
            name, content_type = FILES[address.path]
            return HTTPStatus.OK, content_type, (Path(__file__).parent / name).read_text(encoding="utf-8")
        answers = self.server.answers
        if address.path == "/controls":
            return HTTPStatus.OK, JSON, json.dumps(answers.controls)
        answers_by_path = {
            "/costs": (JSON, answers.costs_json),
            "/memory": (JSON, answers.memory_json),
            "/recipe.yaml": ("application/yaml", answers.recipe_yaml),
        }
        if address.path not in answers_by_path:
            return HTTPStatus.NOT_FOUND, "text/plain", "no such page\n"
        content_type, answer = answers_by_path[address.path]
        try:
            setting = parse(Setting, dict(parse_qsl(address.query)), "setting")
            return HTTPStatus.OK, content_type, answer(setting)
        except UserError as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, JSON, json.dumps({"error": str(error)})

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the page shows errors."""
