"""`widthwise lm_eval`: lm-evaluation-harness itself, with runs as models."""

from typing import Any

import typer

PASSED_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Settings that pass all arguments of the verb on to the harness."""


def lm_eval(context: typer.Context) -> None:
    """Call lm-evaluation-harness (extra `eval`) with its own arguments; `--model widthwise` evaluates a run, and a task
    NAME.jsonl reads a file of local questions. `widthwise lm_eval run --help` lists the arguments.

    Example: `widthwise lm_eval --model widthwise --model_args run=runs/x,batch_size=8 --tasks arc_easy`
    """
    from widthwise.runs.harness import harness_command_line

    harness_command_line(context.args)
