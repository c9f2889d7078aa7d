"""The list of verbs, and the reporting of their errors."""

import ast
import os
import sys
import warnings
from collections import UserDict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from widthwise import __version__
from widthwise.cli.terminal import remark, say
from widthwise.mistakes import REMOVED, RunFailed, UserError
from widthwise.reports.formats import printable
from widthwise.training.launch import Interrupted, is_silent, n_launched

ON_SEVERAL_PROCESSES = ("train", "resume", "compare", "sweep")
"""Verbs that may run under torchrun, where every process runs the same command."""

VERBS = {
    "Design": (
        "design.init",
        "design.inspect",
        "design.design",
        "design.explore",
        "experiment.search",
        "plan.plan",
        "design.schema",
    ),
    "Train": ("data.data_app", "train.train", "train.resume", "train.runs"),
    "Compare": ("experiment.compare", "experiment.sweep", "experiment.fit"),
    "Change": ("convert.grow", "convert.shrink"),
    "Look": ("look.eval_", "look.analyze", "look.generate", "look.report"),
    "Ship": ("convert.export", "convert.import_"),
}
"""Title of a panel of the help -> its verbs, as MODULE.FUNCTION, or as MODULE.APP for a group of verbs."""
PATHS = {
    path.partition(".")[2].removesuffix("_app").removesuffix("_"): (path, panel)
    for panel, paths in VERBS.items()
    for path in paths
}
"""Name of a verb, without the suffix `_app` or `_` -> its function, as in VERBS, and its panel."""


class LazyVerbs(UserDict[str, Any]):
    """PATHS as a mapping from the name of a verb to its command, which imports the module of the verb on use.

    Importing all modules is slow.
    """

    def __getitem__(self, name: str) -> Any:
        # Imports pydantic, which the list of verbs does not need.
        from widthwise.cli.options import Command, with_options

        path, panel = self.data[name]
        module, _, attribute = path.partition(".")
        verb = getattr(import_module(f"widthwise.cli.{module}"), attribute)
        if isinstance(verb, typer.Typer):
            return typer.main.get_group(verb)
        single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        single.command(name, cls=Command, rich_help_panel=panel)(with_options(verb))
        return typer.main.get_command(single)


class Verbs(TyperGroup):
    """The group of all verbs. Its help reads the docstrings from the source, without imports."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands: Any = LazyVerbs(PATHS)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        helps: dict[str, str | None] = {}
        for module in {path.partition(".")[0] for path, _ in PATHS.values()}:
            source = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
            helps[f"{module}.{module}_app"] = ast.get_docstring(source)  # of a group of verbs
            for node in source.body:
                if isinstance(node, ast.FunctionDef):
                    helps[f"{module}.{node.name}"] = ast.get_docstring(node)
        self.commands = {
            name: TyperCommand(name, help=helps.get(path), rich_help_panel=panel, rich_markup_mode="markdown")
            for name, (path, panel) in PATHS.items()
        }
        super().format_help(ctx, formatter)


app = typer.Typer(
    name="widthwise",
    cls=Verbs,
    help="Design, train and compare language models whose width is a design variable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback(invoke_without_command=True)
def check_processes(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Print the version, or raise UserError for a verb that does not work under torchrun."""
    if version:
        say(f"widthwise {__version__}")
        raise typer.Exit
    n_processes = n_launched()
    verb = context.invoked_subcommand
    if n_processes > 1 and verb not in ON_SEVERAL_PROCESSES:
        allowed = ", ".join(ON_SEVERAL_PROCESSES)
        raise UserError(
            f"WORLD_SIZE: got {n_processes}; `widthwise {verb}` runs in one process; start it without torchrun (verbs "
            f"that work under torchrun: {allowed})"
        )


def main() -> None:
    """Run the command line. Exit codes: 0; 1 for a failed run; 2 for a mistake; 128 + n for signal n."""
    # OpenMP reads the variable on torch's first import. Threads that spin while they wait took 2.5 times as long as
    # sleeping threads on two cores that other processes used too, and equally long on idle cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.formatwarning = lambda message, *where: printable(f"warning: {message}\n")
    try:
        raise SystemExit(app(standalone_mode=False))
    except (UserError, RunFailed, Interrupted) as error:
        _leave(error)
    except typer.TyperException as error:
        # A mistake in the arguments. If the message is empty, typer has printed the help instead.
        option = getattr(error, "option_name", None)
        message = error.format_message().replace("Value error, ", "")  # pydantic's prefix
        name = option or message.removeprefix("No such command '").partition("'")[0]  # of the option or verb
        if name in REMOVED:
            message = f"{name}: {REMOVED[name]}"
        _leave(UserError(message)) if message else sys.exit(2)
    except BrokenPipeError:
        # Only shell completion raises it here; typer handles it for verbs. A closed stderr hides errors at exit.
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        # In a folder without permission, even the check that a file exists raises an error.
        _leave(UserError(f"{error.filename}: {error.strerror}"))


def _leave(error: UserError | RunFailed | Interrupted) -> NoReturn:
    """Print the error, unless another process prints it, and exit with its code."""
    if not is_silent(error):
        remark(f"error: {error}")
    raise SystemExit(error.exit_code) from None
