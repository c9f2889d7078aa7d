"""`widthwise lm_eval` passes its arguments on."""

from collections.abc import Callable

import pytest

from widthwise.runs import harness

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "widthwise", "--model_args", "run=a,batch_size=3", "--tasks", "b", "--limit", "2"),
        ("run", "--help"),
        ("ls", "tasks"),
        ("-m", "x", "--json"),
    ],
)
def test_every_argument_arrives(widthwise: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    received = []
    monkeypatch.setattr(harness, "harness_command_line", received.append)
    assert widthwise("lm_eval", *arguments)[0] == 0
    assert received == [list(arguments)]


def test_its_help_has_an_example(widthwise: Run) -> None:
    code, out, _ = widthwise("lm_eval", "--help")
    assert (code, "--model widthwise" in out) == (0, True)
