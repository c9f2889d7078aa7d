"""`widthwise lm_eval`: lm-evaluation-harness itself, which knows runs."""

from typing import Any

import typer

PASSED_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
"""Settings of the verb: its arguments are the harness's."""


def lm_eval(context: typer.Context) -> None:
    """Call lm-evaluation-harness (extra `eval`) with its own arguments, `--model widthwise` for a run, and NAME.jsonl
    among the tasks for a file of local questions. `widthwise lm_eval run --help` lists the arguments.

    Example: `widthwise lm_eval --model widthwise --model_args run=runs/x,batch_size=8 --tasks arc_easy`
    """
    from widthwise.runs.harness import harness_command_line

    harness_command_line(context.args)
