"""How every table looks on a terminal, which no control character of a name or a generated text reaches."""

import io
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from widthwise.cli.terminal import laid_out, progress_console, remark, say, say_tables, say_text, table_console
from widthwise.reports.table import Table

ROWS = [["uniform", "2.5000\n2.4…2.6", "baseline"], [], ["x", "12.2500", "better"]]
TABLE = Table(
    "losses", ["variant", "held-out loss", "verdict"], ROWS, text_columns={"verdict"}, note="below: an interval"
)


def lines(table: Table, n_columns: int = 100, **options: bool) -> list[str]:
    console = Console(file=io.StringIO(), width=n_columns, **options)  # pyright: ignore
    console.print(laid_out(table))
    return console.file.getvalue().splitlines()  # pyright: ignore


def test_words_begin_and_numbers_end_together_with_details_below() -> None:
    title, upper, header, rule, *rows, note = lines(TABLE)
    assert title.strip() == "losses"
    assert note.strip() == "below: an interval"
    assert upper.split() == ["held-out"], "a title is broken between words where cells are shorter"
    assert set(rule.strip()) == {"─"}
    first, detail, empty, last = rows
    assert not empty.strip()
    assert len({row.index(word) for row, word in ((header, "verdict"), (first, "baseline"), (last, "better"))}) == 1
    ends = {row.index(text) + len(text) for row, text in ((first, "2.5000"), (detail, "2.4…2.6"), (last, "12.2500"))}
    assert ends == {upper.index("held-out") + len("held-out")}


def test_a_title_wider_than_its_table_stays_on_one_line() -> None:
    title = "a title of some forty letters, of a file"
    assert lines(Table(title, ["a", "b"], [["x", "1"]]), n_columns=41)[0].strip() == title


def test_on_a_narrow_terminal_names_are_broken_and_numbers_are_not() -> None:
    table = Table("t", ["name", *(f"n{i}" for i in range(4))], [["a-long-name" * 4, *["1234.5678"] * 4]])
    printed = lines(table, 60)
    assert max(map(len, printed)) <= 60
    assert sum(line.count("1234.5678") for line in printed) == 4
    assert "".join(line.split()[0] for line in printed[3:]) == "a-long-name" * 4


def test_a_narrow_terminal_leaves_out_columns_before_it_breaks_a_line(monkeypatch, capsys) -> None:
    table = Table("t", ["name", "a", "b"], [["x" * 30, "1" * 20, "2" * 20]], n_essential=2)
    for n_columns, found in ((80, ["x" * 30, "1" * 20, "2" * 20]), (60, ["x" * 30, "1" * 20])):
        monkeypatch.setattr("widthwise.cli.terminal.table_console", lambda n=n_columns: Console(width=n))
        say_tables(table)
        assert capsys.readouterr().out.splitlines()[-1].split() == found


def test_a_table_that_is_wider_goes_on_below_with_the_names_of_its_rows(monkeypatch, capsys) -> None:
    columns = [f"c{i}" for i in range(9)]
    rows = [[name, kind, *(f"{name}-{i}".ljust(20, "*") for i in range(9))] for name, kind in (("x", "k"), ("y", "l"))]
    table = Table("t", ["name", "kind", *columns], rows, text_columns={"kind"}, note="a note")
    monkeypatch.setattr("widthwise.cli.terminal.table_console", lambda: Console(width=60))
    say_tables(table)
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 60
    for row in rows:
        parts = [line.split() for line in printed if line.startswith(row[0])]
        assert len(parts) > 1
        assert all(part[:2] == row[:2] for part in parts)
        assert [cell for part in parts for cell in part[2:]] == row[2:], "every cell once, in one piece, in order"
    assert [line.strip() for line in printed].count("t") == [line.strip() for line in printed].count("a note") == 1


def test_verdicts_have_colours_and_brackets_are_text() -> None:
    assert "\x1b[1;32mbetter" in "\n".join(lines(TABLE, force_terminal=True))
    named = "\n".join(lines(Table("[bold]t[/bold]", ["[red]n"], [["better"], ["[/x]"]]), force_terminal=True))
    assert all(part in named for part in ("[bold]t[/bold]", "[red]n", "[/x]"))
    assert "\x1b[1;32m" not in named, "a name is no verdict"


def test_an_empty_line_stands_between_two_tables(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("t", ["a"], [["x"]])
    say_tables(table, table)
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.split() == second.split()


ESCAPES = "\x1b[2J\x1b]0;title\x07 \x9b31m \x7f \r \u202e"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def test_whatever_is_printed_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    say_tables(Table(f"title {ESCAPES}", [ESCAPES], [[f"a cell {ESCAPES}"]]))
    table_console().print(f"[bold]brackets[/bold] {ESCAPES}")
    progress_console().print(f"progress {ESCAPES}")
    say(f"two\n\tlines {ESCAPES}", "three")
    remark(f"a remark {ESCAPES}")
    out, err = capsys.readouterr()
    assert not CONTROLS.search(out + err)
    assert all(text in out for text in ("a cell", "[bold]brackets[/bold]", "two\n\tlines", "three\n"))
    assert all(text in err for text in ("progress", "a remark"))


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
