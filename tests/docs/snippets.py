"""The code blocks of the documents, and the commands in them.

A block marked `bash` holds commands that a test runs, in order, in a small world (`world.py`). Commands in a block
without a language are only read by the command line's own parser: they need a GPU, a cluster or hours.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from widthwise.cli.main import app
from widthwise.yaml_io import bundled_recipes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ACTS_WHEN_READ = ("--install-completion", "--show-completion", "--help", "--version")
ASSIGNMENT = re.compile(r"[A-Z_]+=")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """Where a reader is to write it: a block whose first line is `# NAME.yaml` and nothing more."""
        found = re.match(r"# ([\w/]+\.yaml)\n", self.text)
        return found and found[1]

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line, without comments; a line that ends with a backslash goes on."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line.removeprefix("$ "), comments=True))]

    @property
    def of_ours(self) -> list[list[str]]:
        """Arguments of `widthwise` in its commands, whatever starts it; of output and prose none."""
        try:
            return [found for words in self.commands if (found := our_arguments(words)) is not None]
        except ValueError:  # quotes of prose that are never closed
            return []


def our_arguments(words: list[str]) -> list[str] | None:
    """What follows `widthwise`, or `-m widthwise`, up to a pipe or file; None for another command."""
    words = list(itertools.takewhile(lambda word: word not in (">", "|", "&&"), words))
    words = [word for i, word in enumerate(words) if not ASSIGNMENT.match(word) or "widthwise" in words[:i]]
    if words and words[0] in ("widthwise", ".venv/bin/widthwise"):
        return words[1:]
    if words and words[0] in ("torchrun", "python"):
        starts = [i for i, pair in enumerate(itertools.pairwise(words)) if pair == ("-m", "widthwise")]
        return words[starts[0] + 2 :] if starts else None
    return None


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of a page, without directives."""
    language, start, lines = None, 0, []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, start, lines = line.removeprefix("```").strip(), number, []
        else:
            if not language.startswith("{"):
                yield Block(path.relative_to(ROOT).as_posix(), start, language, "\n".join(lines) + "\n")
            language = None
    assert language is None, f"{path}: a block is never closed"


def all_blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages; "" is none."""
    return [block for path in PAGES for block in blocks(path) if block.language in languages]


def inline_commands(path: Path) -> list[list[str]]:
    """Arguments of the commands in the text of a page, but for those with dots or brackets for what is left out."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)
    found = re.findall(r"`(widthwise [^`]+)`", text)
    return [shlex.split(command)[1:] for command in found if not re.search(r"\.\.\.|\[", command)]


def check_arguments(arguments: Iterable[str]) -> None:
    """Raises what the command line would raise for options or arguments that there are not; runs nothing.

    A recipe that is named without a file is one that comes with the package.
    """
    command, words = typer.main.get_command(app), [word for word in arguments if word not in ACTS_WHEN_READ]
    context = command.make_context("widthwise", words or ["schema"])
    while hasattr(command, "resolve_command") and context._protected_args:
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(words), parent=context)
    for recipe in (*map(context.params.get, ("recipe", "base")), *(context.params.get("recipes") or ())):
        if re.fullmatch(r"[a-z]\w*", str(recipe or "")):
            assert str(recipe) in bundled_recipes(), recipe
