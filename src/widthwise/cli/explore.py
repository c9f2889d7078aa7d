"""`widthwise explore`: a page on which a shape is tried out."""

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.terminal import say
from widthwise.config_io import UserError

if TYPE_CHECKING:
    from widthwise.explorer.answers import Answers
    from widthwise.explorer.server import ExplorerServer

USUAL_PORT = 8520


def explore(
    recipe: Annotated[Path, typer.Argument(help="Recipe to start from, such as configs/x_200m.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to it, such as train.batch_size=64.")] = None,
    port: Annotated[
        int | None, typer.Option(help=f"Port on this machine, 0 for any; default: {USUAL_PORT}, or any if it is taken.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
) -> None:
    """Try out a shape on a local page: sizes are moved, and widths, costs and memory follow.

    The numbers are those of `inspect`, `design` and `plan`. The page is served to this machine alone, until Ctrl-C.
    What was set is in its address, and a button gives the recipe.

    Example: `widthwise explore configs/x_200m.yaml`
    """
    from widthwise.explorer.answers import Answers
    from widthwise.training.stopping import Interrupted

    with _server(Answers(recipe, overrides or ()), port) as server:
        say(f"{server.url} (Ctrl-C ends it)")
        sys.stdout.flush()
        if not no_browser and _has_screen():
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except Interrupted:
            say("ended")


def _server(answers: "Answers", port: int | None) -> "ExplorerServer":
    from widthwise.explorer.server import ExplorerServer

    if port is not None and not 0 <= port < 2**16:
        raise UserError(f"--port: got {port}; must be from 0 to {2**16 - 1}")
    try:
        return ExplorerServer(answers, USUAL_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return ExplorerServer(answers)
        raise UserError(f"--port: got {port}; {error.strerror}; 0 takes any that is free") from None


def _has_screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal as a text browser does."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
