"""Options of the verbs that train many runs: on several workers, and several at a time."""

from typing import Annotated, Any

import typer

from widthwise.config_io import UserError

WORKERS = "Workers"


def storage_option(default: str) -> Any:
    """--storage. default: what happens without it."""
    return typer.Option(
        rich_help_panel=WORKERS,
        envvar="WIDTHWISE_STORAGE",
        show_envvar=True,
        help=f"Database, such as postgresql+psycopg://USER@HOST/NAME; default: {default}.",
    )


StudyOption = Annotated[
    str | None, typer.Option(rich_help_panel=WORKERS, help="Name of the study in the database; default: RECIPE.")
]
HeartbeatOption = Annotated[
    int,
    typer.Option(
        rich_help_panel=WORKERS,
        min=1,
        help="Seconds between a worker's heartbeats; after missing three it counts as dead.",
    ),
]
JobsOption = Annotated[
    str,
    typer.Option(
        "--jobs",
        rich_help_panel=WORKERS,
        help="Runs trained at the same time on this machine; auto: as many as it has cores, or GPUs, for.",
    ),
]


def jobs_asked(text: str) -> int | None:
    """ "2" -> 2, "auto" -> None. Raises UserError."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--jobs: got {text!r}; must be auto or a number of at least 1")
    return int(text)
