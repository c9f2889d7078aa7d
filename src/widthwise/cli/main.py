"""The list of verbs, and how their errors are reported."""

import ast
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from widthwise import __version__
from widthwise.cli.signals import stop_by_exception
from widthwise.cli.terminal import remark, say
from widthwise.mistakes import REMOVED, RunFailed, UserError
from widthwise.reports.formats import printable
from widthwise.training.launch import Interrupted, is_silent, n_launched

ON_SEVERAL_PROCESSES = ("train", "resume", "compare", "sweep")
"""Verbs that work under torchrun, where every process runs the same command."""

VERBS = {
    "Design": (
        "design.init",
        "design.inspect",
        "design.design",
        "design.explore",
        "search.search",
        "plan.plan",
        "design.schema",
    ),
    "Train": ("data.data_app", "train.train", "train.resume", "train.runs"),
    "Compare": ("experiment.compare", "sweep.sweep", "sweep.fit"),
    "Change": ("convert.grow", "convert.shrink", "experiment.family"),
    "Look": ("look.eval_", "look.analyze", "look.generate", "look.report"),
    "Ship": ("convert.export", "convert.import_"),
}
"""Title of a panel of the help -> its verbs: a module in this folder, and a function or an app with verbs in it."""
PLACES = {
    place.partition(".")[2].removesuffix("_app").removesuffix("_"): (place, panel)
    for panel, places in VERBS.items()
    for place in places
}


class LazyVerbs(Mapping[str, Any]):
    """The commands by name. A module is imported when a verb in it is used, because all take longer than an answer."""

    def __getitem__(self, name: str) -> Any:
        from widthwise.cli.options import Command, with_options  # imports pydantic, which no help of all verbs needs

        place, panel = PLACES[name]
        module, _, attribute = place.partition(".")
        verb = getattr(import_module(f"widthwise.cli.{module}"), attribute)
        if isinstance(verb, typer.Typer):
            return typer.main.get_group(verb)
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        alone.command(name, cls=Command, rich_help_panel=panel)(with_options(verb))
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


class Verbs(TyperGroup):
    """The group of all verbs. Its help reads the first lines of their docstrings from the source, without imports."""

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.commands: Any = LazyVerbs()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        helps: dict[str, str | None] = {}
        for module in {place.partition(".")[0] for place, _ in PLACES.values()}:
            source = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
            helps[f"{module}.{module}_app"] = ast.get_docstring(source)
            for node in source.body:
                if isinstance(node, ast.FunctionDef):
                    helps[f"{module}.{node.name}"] = ast.get_docstring(node)
        self.commands = {
            name: TyperCommand(name, help=helps.get(place), rich_help_panel=panel, rich_markup_mode="markdown")
            for name, (place, panel) in PLACES.items()
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


def _print_version(is_asked: bool) -> None:
    if is_asked:
        say(f"widthwise {__version__}")
        raise typer.Exit


@app.callback()
def check_processes(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Refuses other verbs under torchrun."""
    n_processes, verb = n_launched(), context.invoked_subcommand
    if n_processes > 1 and verb not in ON_SEVERAL_PROCESSES:
        allowed = ", ".join(ON_SEVERAL_PROCESSES)
        raise UserError(
            f"WORLD_SIZE: got {n_processes}; `widthwise {verb}` runs in one process; start it without torchrun (verbs "
            f"that work under torchrun: {allowed})"
        )


def main() -> None:
    """Exit code 0, or one line of error and 1 (failed run), 2 (user mistake), 130 or 143 (signal)."""
    # Read when torch is first imported. Threads that spin while they wait lose to any other process on the machine: two
    # threads on two busy cores were measured 2.5 times slower spinning than sleeping, and no faster on idle cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    warnings.formatwarning = lambda message, *where: printable(f"warning: {message}\n")
    stop_by_exception()
    try:
        raise SystemExit(app(standalone_mode=False))
    except UserError as error:
        _leave(error, 2)
    except typer.TyperException as error:
        # A mistake in the arguments; without a message the help has been printed in its place.
        option = getattr(error, "option_name", None)
        message = error.format_message().replace("Value error, ", "")
        name = option or message.removeprefix("No such command '").partition("'")[0]
        if name in REMOVED:
            message = f"{name}: {REMOVED[name]}"
        _leave(UserError(message), 2) if message else sys.exit(2)
    except RunFailed as error:
        _leave(error, 1)
    except Interrupted as error:
        _leave(error, error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away, as `| head` does.
        sys.stderr.close()
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        # Where a folder may not be entered, even the question whether a file exists fails.
        _leave(UserError(f"{error.filename}: {error.strerror}"), 2)


def _leave(error: Exception, exit_code: int) -> NoReturn:
    if not is_silent(error):
        remark(f"error: {error}")
    raise SystemExit(exit_code) from None
