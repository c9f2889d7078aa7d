"""`widthwise family`: one run -> runs of several larger models that continue from its checkpoint."""

from pathlib import Path
from typing import Annotated, Any

import typer

from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import progress_console, say_json, table_console
from widthwise.cli.workers import JobsOption, jobs_asked
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import clean, shown, si
from widthwise.reports.page.table import Table

PARAMS, TOKENS, FLOPS, LOSS = (QUANTITY[name] for name in ("params", "tokens", "training_flops", "val_loss"))
COLUMNS = (
    ("params", PARAMS.brief_title, PARAMS),
    ("start", "branched after step", QUANTITY["steps"]),
    ("tokens", TOKENS.brief_title, TOKENS),
    ("flops", FLOPS.brief_title, FLOPS),
    ("flops_alone", "FLOPs alone", FLOPS),
    ("val_loss", LOSS.title, LOSS),
)
"""Key of a member, title, and the quantity as which it is shown."""


def family(
    run: Annotated[Path, typer.Argument(help="Run directory; its newest good checkpoint is grown.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to all recipes, such as train.steps=2000.")
    ] = None,
    to: Annotated[list[Path] | None, typer.Option(help="Recipe of a larger model; repeat for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the new runs; default: RUN-family.")] = None,
    jobs: JobsOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the family as JSON.")] = False,
) -> None:
    """Grow one run into several sizes without changing what it computes, and train each to the end of its recipe.

    Finished branches are not trained again: the same command continues an interrupted family.

    Example: `widthwise family runs/small --to configs/medium.yaml --to configs/large.yaml --out runs/family`
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.config_io import UserError
    from widthwise.experiments.family import plan_family, run_family
    from widthwise.experiments.jobs import Jobs
    from widthwise.runs.source import Source

    if not to:
        raise UserError("--to: is required; give the recipe of a larger model, one --to for each")
    folder = out or run.with_name(f"{run.name}-family")
    source = Source.of(run)
    branches = plan_family(source, to, overrides or (), folder)
    at_a_time = Jobs.of((branch.intention.recipe for branch in branches), len(branches), jobs_asked(jobs))
    with shown_progress(progress_console()) as observer:
        found = run_family(source, branches, folder, observer, at_a_time)
    if as_json:
        say_json(found)
        return
    say_tables(_table(found))
    table_console().print(_sentence(found))


def _table(found: dict[str, Any]) -> Table:
    rows = [
        [member["name"], *(shown(member[key], quantity) for key, _, quantity in COLUMNS)] for member in found["members"]
    ]
    return Table(f"branched from {clean(found['source'])}", ["", *(title for _, title, _ in COLUMNS)], rows)


def _sentence(found: dict[str, Any]) -> str:
    together, shared, alone = (found[key] for key in ("family_flops", "shared_flops", "flops_alone"))
    return (
        f"Together {si(together)} training FLOPs, the shared {si(shared)} counted once; runs of the same models over "
        f"as many tokens, each from the start, take {si(alone)}, {alone / together:.2f} times as many."
    )
