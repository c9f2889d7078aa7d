"""Options of the verbs whose work several workers share."""

from typing import Annotated, Any

import typer

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
