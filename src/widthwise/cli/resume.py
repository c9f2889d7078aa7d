"""`widthwise resume`: the rest of a run."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.run_result import show_result
from widthwise.cli.track import TrackOption, training_progress


def resume(
    run: Annotated[Path, typer.Argument(help="Run directory, such as runs/x_200m.")],
    track: TrackOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue an interrupted or killed run from its last good checkpoint.

    Example: `widthwise resume runs/x_200m`
    """
    from widthwise.runs.train import resume as resume_run

    with training_progress(track) as observer:
        result = resume_run(run, observer)
    show_result(result, run, as_json)
