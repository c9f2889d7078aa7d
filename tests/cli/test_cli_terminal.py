"""No control character from a name, a table or a generated text reaches the terminal."""

import re
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from widthwise.cli.terminal import progress_console, remark, say, say_text, table_console

ESCAPES = "\x1b[2J\x1b]0;title\x07 \x9b31m \x7f \r \u202e"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def test_whatever_is_printed_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title=f"title {ESCAPES}")
    table.add_column(ESCAPES)
    table.add_row(Text(f"a cell {ESCAPES}"))
    table_console().print(table, f"[bold]brackets[/bold] {ESCAPES}")
    progress_console().print(f"progress {ESCAPES}")
    say(f"two\n\tlines {ESCAPES}", "three")
    remark(f"a remark {ESCAPES}")
    out, err = capsys.readouterr()
    assert not CONTROLS.search(out + err)
    assert "a cell" in out
    assert "[bold]brackets[/bold]" in out
    assert "two\n\tlines" in out
    assert out.endswith("three\n")
    assert "progress" in err
    assert "a remark" in err


def test_names_of_files_and_prompts_are_printed_without_any(recipe: Path, tmp_path: Path, succeeds, refused) -> None:
    run = tmp_path / "a\x1b[31mred run"
    text = "".join([*succeeds("train", recipe, "--out", run), refused("train", tmp_path / "\x9b2J.yaml")])
    assert not CONTROLS.search(text)
    assert "red run" in text
    prompt = "a\x1b[2J\r\n\tb"
    assert prompt in succeeds("generate", run, "--prompt", prompt, "--max-new-tokens", 2)[0]


def test_generated_text_is_cleaned_on_a_terminal_alone(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    say_text(ESCAPES)
    assert capsys.readouterr().out == f"{ESCAPES}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    say_text(f"a\n\tb {ESCAPES}")
    out = capsys.readouterr().out
    assert out.startswith("a\n\tb ")
    assert not CONTROLS.search(out)
