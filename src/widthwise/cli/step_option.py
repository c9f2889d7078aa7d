"""The option that names a checkpoint of a run."""

from typing import Annotated

import typer

StepOption = Annotated[
    int | None, typer.Option(min=0, help="Step of the run's checkpoint; default: its newest good one.")
]
