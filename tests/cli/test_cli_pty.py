"""A run on a real pseudo-terminal: the bar, the first step, Ctrl-C once and twice."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import yaml
from tiny_runs import TINY

pytestmark = pytest.mark.hard

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|9[0-7])(?:;\d+)*m")
N_COLUMNS = 80


class Terminal:
    """A program with a terminal of its own, 80 columns wide."""

    def __init__(self, folder: Path, *arguments: object, **environment: str):
        self._end, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, N_COLUMNS, 0, 0))
        self._program = subprocess.Popen(
            [sys.executable, "-m", "widthwise", *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that ^C reaches it as a signal
        )
        os.close(theirs)
        self.text = ""

    def wait_for(self, words: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while words not in CONTROL.sub("", self.text):
            assert self._read(end), f"{words!r} not in {self.text[-2000:]!r}"

    def press_ctrl_c(self) -> None:
        os.write(self._end, b"\x03")

    def exit_code(self, seconds: float = 120.0) -> int:
        end = time.monotonic() + seconds
        while self._read(end):
            pass
        os.close(self._end)
        return self._program.wait(timeout=30)

    def _read(self, end: float) -> bool:
        """Reads what there is; False at the end of the program or of the time."""
        ready, _, _ = select.select([self._end], [], [], max(0.0, end - time.monotonic()))
        try:
            found = os.read(self._end, 65536) if ready else b""
        except OSError:  # how Linux tells that the other side is gone
            found = b""
        self.text += found.decode(errors="replace")
        return bool(found)

    @property
    def lines(self) -> list[str]:
        return [line for line in re.split("[\r\n]+", CONTROL.sub("", self.text)) if line.strip()]


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A recipe whose steps take about a second, so that a key can be pressed during one."""
    model = {"vocab_size": 257, "d_model": 64, "n_layers": 3, "attention": {"head_dim": 16}}
    train = {"steps": 500, "batch_size": 64, "precision": "fp32", "validation_tokens": 512, "log_every": 1}
    path = tmp_path / "slow.yaml"
    path.write_text(yaml.safe_dump({**TINY, "model": model, "seq_len": 256, "train": train}))
    return path


def test_ctrl_c_stops_after_the_step_with_a_checkpoint(slow: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "train", slow, "--out", "run")
    terminal.wait_for("step 1 running")
    terminal.wait_for("tokens/s")
    terminal.press_ctrl_c()
    assert terminal.exit_code() == 130
    text = " ".join(terminal.lines)
    assert "stopping after this step; again to stop now" in text
    assert "stopped at step" in text
    assert len(list((tmp_path / "run" / "checkpoints").glob("step_*"))) == 1
    bars = [line for line in terminal.lines if "/500" in line]
    assert max(map(len, bars)) <= N_COLUMNS
    assert COLOUR.search(terminal.text)


def test_a_second_ctrl_c_stops_at_once(slow: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "train", slow, "train.batch_size=2048", "--out", "run", NO_COLOR="1")
    terminal.wait_for("step 1 running")
    terminal.press_ctrl_c()
    terminal.wait_for("stopping after this step")
    began = time.monotonic()
    terminal.press_ctrl_c()
    assert terminal.exit_code() == 130
    assert time.monotonic() - began < 30
    assert "stopped by a signal" in " ".join(terminal.lines)
    assert not list((tmp_path / "run").glob("checkpoints/step_*"))
    assert not COLOUR.search(terminal.text)
