"""The reference of the command line, written from what `--help` says: `{verbs}` on a page shows every verb."""

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from widthwise.cli.main import app as command_line
from widthwise.cli.options import Command


class Verbs(SphinxDirective):
    """A section for each verb, with its arguments and options."""

    def run(self) -> list[nodes.Node]:
        text = "\n\n".join(_sections("widthwise", typer.main.get_command(command_line)))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _sections(name: str, command: Any) -> Iterator[str]:
    for verb, found in command.commands.items():
        if hasattr(found, "commands"):
            yield from _sections(f"{name} {verb}", found)
        else:
            yield _section(f"{name} {verb}", found)


def _section(name: str, command: Any) -> str:
    if isinstance(command, Command):
        command.describe_options()
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([name, *(_argument(parameter) for parameter in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {name}", inspect.cleandoc(command.help), f"```text\n{usage}\n```"]
    for title, parameters in (("argument", arguments), ("option", options)):
        if parameters:
            rows = [f"| {_names(each)} | {_one_line(each.help)} |" for each in parameters]
            parts.append("\n".join([f"| {title} | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _argument(parameter: Any) -> str:
    name = parameter.name.upper() + (" ..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _names(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    return f"`{parameter.name.upper()}`" if parameter.param_type_name == "argument" else f"`{', '.join(names)}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("verbs", Verbs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
