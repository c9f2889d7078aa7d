"""A headless Chromium over its DevTools pipe: standard library only, and no port is opened."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: neither chromium, chromium-browser nor google-chrome found"
)
"""Mark of tests in a browser."""
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Page:
    """One tab. `events` holds what the browser reported so far: requests, console messages, exceptions."""

    def __init__(self, write_to: int, read_from: int):
        self._write_to, self._read_from = write_to, read_from
        self._buffer, self._n_calls, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._n_calls += 1
        message: dict[str, Any] = {"id": self._n_calls, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._n_calls:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self, seconds: float = 60.0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read_from], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._read_from, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium does not answer")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, path: Path, width: int, height: int = 1000, scheme: str = "light") -> None:
        """Loads a file in a window of so many pixels and waits for its load event."""
        self.visit(path.resolve().as_uri(), width, height, scheme)

    def visit(self, url: str, width: int, height: int = 1000, scheme: str = "light") -> None:
        """The same for an address."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; the page's own content policy does not bind the debugger."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str, value: Any = True, seconds: float = 60.0) -> None:
        """Waits until an expression has a value: pages answer a moment later."""
        end = time.monotonic() + seconds
        while (found := self.evaluate(expression)) != value:
            assert time.monotonic() < end, (expression, found)
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """A key by its name in JavaScript; a single letter also types itself."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36}
        code |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            said = {"text": text} if text and kind == "keyDown" else {}
            number = code.get(key, ord(key[0]))
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=number, **said)

    def mouse(self, kind: str, x: float, y: float, n_clicks: int = 0) -> None:
        """kind: Moved, Pressed or Released, of the left button."""
        button = {"button": "left", "clickCount": n_clicks} if n_clicks else {}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **button)

    def click(self, x: float, y: float, n_clicks: int = 1) -> None:
        for i in range(1, n_clicks + 1):
            self.mouse("Pressed", x, y, i)
            self.mouse("Released", x, y, i)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("Moved", *start)
        self.mouse("Pressed", *start, 1)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=end[0], y=end[1], button="left", buttons=1)
        self.mouse("Released", *end, 1)

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[dict[str, Any]]:
        """Console messages, log entries (content policy, failed loads) and exceptions."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in methods]

    def screenshot(self, to: Path) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        to.write_bytes(base64.b64decode(data))


@contextmanager
def chromium_page(program: str, profile: Path) -> Iterator[Page]:
    """A running Chromium with one empty tab; ended on exit."""
    command_out, command_in = os.pipe()
    answer_out, answer_in = os.pipe()
    # The browser reads commands from file descriptor 3 and answers on 4.
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{command_out} 4>&{answer_in}', program, *FLAGS]
    process = subprocess.Popen(
        [*shell, f"--user-data-dir={profile}"],
        pass_fds=(command_out, answer_in),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_out)
    os.close(answer_in)
    try:
        page = Page(command_in, answer_out)
        yield page
    finally:
        process.terminate()
        process.wait(timeout=30)
        os.close(command_in)
        os.close(answer_out)
