"""`widthwise resume`: the rest of a run."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.run_result import show_result
from widthwise.cli.track import TrackOption, training_progress


def resume(
    run: Annotated[Path, typer.Argument(help="Run directory, such as runs/x_200m.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Other settings from here on, such as train.steps=4000.")
    ] = None,
    track: TrackOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Continue an interrupted or killed run from its last good checkpoint, or a finished one to more steps.

    How long a run is, what it records and which checkpoints it keeps may change: train.steps, train.log_every,
    train.validate_every, train.checkpoint_every and a few more. The rest of the recipe stays.

    Example: `widthwise resume runs/x_200m train.steps=4000 train.log_every=50`
    """
    from widthwise.runs.train import resume as resume_run

    with training_progress(track) as observer:
        result = resume_run(run, observer, overrides or ())
    show_result(result, run, as_json)
