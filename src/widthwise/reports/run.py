"""The page of single runs, finished or not: one run, or several drawn into the same figures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError
from widthwise.records.quantities import OF_HELD_OUT, OF_MODELS, OF_RUNS
from widthwise.records.run import ListedRun, Run, RunResult
from widthwise.reports import tables
from widthwise.reports.charts import Figure, Looks, styles
from widthwise.reports.curves import Curve, by_name, by_place, by_step, curve_figure
from widthwise.reports.evaluations import course_parts, final_table, newest_tables
from widthwise.reports.formats import MISSING, clean, fixed, plain, shorten, shown
from widthwise.reports.growth import growth_answers, growth_question, growth_section, growth_steps
from widthwise.reports.page import Code, Page, Part, Text, note, resolved, section
from widthwise.reports.reading import progress_table, read_run, reload_sentence, state_sentence
from widthwise.reports.shapes import layer_ticks, width_figures
from widthwise.reports.shrinking import BEFORE, QUESTION, cut_answers, cut_section, held_out_curves
from widthwise.reports.table import Table, by_row
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section
from widthwise.runs.listing import listed_run

_CURVES = (
    ("train", "loss", "Training loss", True),
    ("validation", "width_fraction", "Mean width fraction of tokens", False),
    ("train", "width_price", "Price of width", False),
    ("train", "lr", "Learning rate", False),
    ("train", "grad_norm", "Gradient norm", False),
    ("train", "tokens_per_second", "Tokens per second", False),
    ("train", "mfu", "Model FLOPs utilisation", False),
    ("train", "memory_bytes", "Memory in bytes", False),
)
"""Event and key of a record, title, and whether the steep first tenth may run off the frame."""
_BY_NAME = (
    ("val_texts", "loss", "Loss on {}"),
    ("val_tasks", "acc", "Accuracy on {}"),
    ("val_tasks", "bits_per_byte", "Bits per byte of the answers of {}"),
)
"""Key of a validation record, entry of a text or task there, and the title of its figure."""
_NORMS = {
    "grad_norms": "Gradient norm of layers",
    "weight_norms": "Weight norm of layers",
    "update_norms": "Update norm of layers",
    "output_rms": "Output of layers, root mean square",
}
N_SHOWN = 6
"""Samples of one prompt on the page, spread over the run; the file has all."""


def runs_page(paths: Sequence[Path], refresh_seconds: int | None = None) -> Page:
    """Return the page of runs. Raises UserError if one is broken.

    refresh_seconds: after so long the page of runs of which one has not finished loads itself again; None: never.
    """
    runs = [read_run(Path(path)) for path in paths]
    named = _distinct_names(runs)
    looks = styles([*named, BEFORE], baseline=BEFORE)
    costs = {name: run.cost for name, run in named.items() if run.cost is not None}
    results = {name: run.result for name, run in named.items() if run.result}
    listed = {name: listed_run(Path(run.path)) for name, run in named.items() if run.result is None}
    refresh_seconds = refresh_seconds if listed else None
    curves = [figure for figure in _curves(named, looks) if figure is not None]
    cut = cut_section(named, looks)
    profiles = [part for part in cut.parts if isinstance(part, Figure)] if cut and len(runs) == 1 else []
    commands = dict.fromkeys(run.environment.get("command") for run in runs)
    return Page(
        "run" if len(runs) == 1 else "runs",
        runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        [*cut_answers(named), *growth_answers(named)] or _answers(results),
        lead=f"{_lead(runs, listed)}{reload_sentence(refresh_seconds)} {QUESTION if cut else growth_question(named)}",
        badges=["doubtful last loss: see Results"] if any(each.doubts for each in results.values()) else [],
        first=[*curves[:1], *profiles] if profiles else curves[:2],
        sections=(
            cut,
            section(
                "Results",
                progress_table(listed),
                _result_table(named),
                Text(notes) if (notes := list(_notes(results))) else None,
                tables.data_table(named),
                _source_table(results),
                _mtp_table(results),
                final_table(results),
            ),
            section("Curves", *curves, note("curves")),
            section("Norms of layers", *_norm_figures(named), note("norms-of-layers")),
            section("Samples", *_samples(named)),
            section("Evaluated", *newest_tables(named), note("evaluated")),
            section("Evaluations over training", *course_parts(named, looks)),
            growth_section({name: [run] for name, run in named.items()}, looks),
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            section("Width of every layer", note("width"), *width_figures(costs, looks, results)),
            section(
                "Costs",
                tables.cost_table(results),
                *(tables.layer_table(name, cost).folded for name, cost in costs.items()),
            )
            if costs
            else None,
            section("Environment", *_environments(named)),
            section(
                "How to reproduce",
                *(Code(command) for command in commands if isinstance(command, str) and command),
                *map(resolved, named, named.values()),
            ),
        ),
        made_from="the run directories named above",
        refresh_seconds=refresh_seconds,
    )


def _answers(results: Mapping[str, RunResult]) -> list[str]:
    """Return the final held-out loss of a single run, or which of several ends lowest."""
    ranked = sorted((each.val_loss, name) for name, each in results.items() if each.val_loss is not None)
    if not ranked:
        return []
    loss, name = ranked[0]
    lead = "The held-out loss ends" if len(ranked) == 1 else f"Of {len(ranked)} runs {shorten(name, 60)} ends lowest,"
    return [f"{lead} at {loss:.4f} nats per token."]


def _notes(results: Mapping[str, RunResult]) -> Iterator[str]:
    """Yield what a reader of the results should know, such as steps that were skipped."""
    for name, each in results.items():
        best = f"the best checkpoint, by held-out loss, is that of step {each.best_step}"
        for line in (*(f"! {doubt}" for doubt in each.doubts), *([best] * (each.best_step is not None)), *each.notes):
            yield line if len(results) == 1 else f"{name}: {line}"


def _result_table(named: Mapping[str, Run]) -> Table:
    """Return results, one row per run; an unfinished run shows only its number of steps."""
    measured = [quantity for name, quantity in OF_RUNS.items() if name == "val_loss" or name not in OF_HELD_OUT]
    quantities = [*measured, OF_MODELS["params"]]
    cells: dict[str, dict[str, str]] = {}
    for name, run in named.items():
        result = run.result
        if result is None:
            last = max((record["step"] for record in run.metrics), default=0)
            cells[name] = {"seed": MISSING, "status": "unfinished", OF_RUNS["steps"].title: str(last)}
            continue
        cells[name] = {"seed": plain(result.seed), "status": clean(result.status)}
        cells[name] |= {quantity.title: shown(quantity.of_run(result), quantity) for quantity in quantities}
    return by_row("Results", "Run", cells)


def _source_table(results: Mapping[str, RunResult]) -> Table | None:
    """Return held-out losses by source of the data, one row per run on a mixture."""
    cells = {
        name: {source: fixed(loss, 4) for source, loss in sorted(result.val_losses.items())}
        for name, result in results.items()
        if result.val_losses
    }
    return by_row("Held-out loss by source of the data", "Run", cells) if cells else None


def _mtp_table(results: Mapping[str, RunResult]) -> Table | None:
    """Return held-out losses of multi-token prediction, one row per run that has it."""
    cells = {
        name: {f"{k} after the next": fixed(loss, 4) for k, loss in enumerate(result.val_mtp_losses, 1)}
        for name, result in results.items()
        if result.val_mtp_losses
    }
    return by_row("Held-out loss of the further heads, by the token they predict", "Run", cells) if cells else None


def _distinct_names(runs: Sequence[Run]) -> dict[str, Run]:
    """Return name -> run; runs that share a name get their path."""
    names = [run.name for run in runs]
    named = {name if names.count(name) == 1 else f"{name} ({run.path})": run for name, run in zip(names, runs)}
    if len(named) < len(runs):
        raise UserError("report: the same run was named twice")
    return named


def _lead(runs: Sequence[Run], listed: Mapping[str, ListedRun]) -> str:
    where = clean(runs[0].path) if len(runs) == 1 else f"{len(runs)} runs laid over each other"
    if not listed:
        return f"{where}."
    state = f"{len(listed)} of them {'has' if len(listed) == 1 else 'have'} not finished."
    state = state_sentence(*listed.values()) if len(runs) == 1 else state
    return f"{where}. {state} Results and costs appear when training ends."


def _curves(named: Mapping[str, Run], looks: Looks) -> Iterator[Figure | None]:
    def over_steps(key: str, title: str, curves: Mapping[str, Curve], crop: bool = True) -> Figure | None:
        grown = growth_steps(named[name] for name in curves if name in named)
        return curve_figure(key, title, curves, looks, "step", title[:1].lower() + title[1:], crop, grown)

    crop = all(run.shrinking is None for run in named.values())
    yield over_steps("validation-loss", "Held-out loss", held_out_curves(named), crop)
    for event, key, title, crop in _CURVES:
        yield over_steps(f"{event}-{key}", title, {n: by_step(run, event, key) for n, run in named.items()}, crop)
    heads = {name: by_place(run, "validation", "mtp_losses") for name, run in named.items()}
    for depth in range(1, 1 + max(map(len, heads.values()))):
        own = {name: found[depth - 1] for name, found in heads.items() if len(found) >= depth}
        yield over_steps(f"mtp-{depth}", f"Held-out loss, {depth} after the next", own)
    for key, entry, title in _BY_NAME:
        found: dict[str, dict[str, Curve]] = {}
        for name, run in named.items():
            for subject, curve in by_name(run, key, entry).items():
                found.setdefault(clean(subject), {})[name] = curve
        for subject, own in found.items():
            yield over_steps(f"{key}-{entry}-{subject}".replace("_", "-"), title.format(subject), own)


def _norm_figures(named: Mapping[str, Run]) -> Iterator[Figure | None]:
    """Yield figures with a curve for each layer, or for some of many, of the runs that recorded norms."""
    for i, (name, run) in enumerate(named.items()):
        for key, title in _NORMS.items():
            layers = by_place(run, "norms", key)
            curves = {f"layer {n}": layers[n - 1] for n in (layer_ticks(len(layers)) if layers else ())}
            shown, grown = title if len(named) == 1 else f"{name}: {title.lower()}", growth_steps([run])
            key = f"{key.replace('_', '-')}-{i}"
            yield curve_figure(key, shown, curves, styles(curves), "step", title.lower(), growths=grown)


def _samples(named: Mapping[str, Run]) -> Iterator[Part | None]:
    """Yield the continuations of each prompt in the course of a run, the latest first."""
    for name, run in named.items():
        for prompt in dict.fromkeys(record["prompt"] for record in run.samples):
            samples = [(record["step"], record["text"]) for record in run.samples if record["prompt"] == prompt]
            title = f"“{shorten(prompt, 60)}”" if prompt else "The beginning of a document"
            yield Text([title if len(named) == 1 else f"{clean(name)}: {title}"], is_quiet=False)
            shown = {round(i) for i in np.linspace(0, len(samples) - 1, N_SHOWN)}
            yield from (Code(prompt + samples[i][1], f"step {samples[i][0]:,}") for i in sorted(shown, reverse=True))
    yield note("samples")


def _environments(named: Mapping[str, Run]) -> list[Table]:
    """Return one table if all runs share an environment, otherwise one per run."""
    environments = {name: run.environment for name, run in named.items()}
    first = next(iter(environments.values()))
    if all(each == first for each in environments.values()):
        return [tables.environment_table(first)]
    return [tables.environment_table(each, name) for name, each in environments.items()]
