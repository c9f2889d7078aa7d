"""The page of error messages quotes messages that the program has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "widthwise"


def _templates() -> Iterator[str]:
    """Every text of the source, with … for what is filled in."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_are_those_of_the_program() -> None:
    """A message may leave out its end, behind a last semicolon."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = [message.removesuffix("; …") for message in re.findall(r"^\| `(.+?)` \| ", text, re.M)]
    known = list(_templates())
    assert len(quoted) > 25
    assert not [message for message in quoted if not any(template.startswith(message) for template in known)]
