"""The page of one run, or of several runs in the same figures, finished or not."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from widthwise.config_io import parse
from widthwise.data.identity import DATA_KEY, read_identity
from widthwise.mistakes import UserError
from widthwise.records.evaluation import Evaluation
from widthwise.records.quantities import MODEL_COSTS, RUN_QUANTITIES
from widthwise.records.resizing import Certificate, Shrinking
from widthwise.records.run import GrowthRecord, ListedRun, Run, RunResult
from widthwise.reports import resizing, tables
from widthwise.reports.charts import Figure, Looks, styles
from widthwise.reports.curves import Curve, by_index, by_name, by_step, curve_figure
from widthwise.reports.evaluations import final_table, newest_table, parts_over_training
from widthwise.reports.formats import MISSING, clean, counted, fixed, joined, plain, shorten, shown
from widthwise.reports.page import Code, Page, Part, Text, note, recipe_code, section
from widthwise.reports.shapes import layer_ticks, width_figures
from widthwise.reports.table import Table, by_column, by_row
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section
from widthwise.run_dir import RunDir
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
"""Event and key of a record, title, and whether the range of y ignores the steep first tenth."""
_BY_NAME = (
    ("val_texts", "loss", "Loss on {}"),
    ("val_tasks", "acc", "Accuracy on {}"),
    ("val_tasks", "bits_per_byte", "Bits per byte of the answers of {}"),
)
"""Field of a validation record with texts or tasks, number of a text or task, and title of its figure."""
_NORMS: Mapping[str, str] = {
    "grad_norms": "Gradient norm of layers",
    "weight_norms": "Weight norm of layers",
    "update_norms": "Update norm of layers",
    "output_rms": "Output of layers, root mean square",
}
"""Field of a record of norms, with a number for each layer -> title of its figure."""
N_SHOWN = 6
"""Number of samples of a prompt on the page, spread over the run; the file has all samples."""


def read_run(path: Path, shown_as: str | None = None) -> Run:
    """Read a run directory, finished or not. shown_as: path in the report. Raises UserError if it is broken."""
    folder = RunDir(path)
    metrics = folder.metrics()
    validated = {record["step"]: record.get("loss") for record in metrics if record.get("event") == "validation"}
    growths = []
    for record in metrics:
        if record.get("event") in ("grown", "growth"):
            # `grow` measures no loss, but its source may have been validated at this step.
            growth = {"loss_before": validated.get(record["step"]), **record}
            growths.append(parse(GrowthRecord, growth, f"{path}/metrics.jsonl"))
    return Run(
        path=shown_as or str(path),
        config_yaml=folder.config_yaml(),
        environment=folder.environment(),
        metrics=metrics,
        result=folder.result(),
        growths=growths,
        certificate=Certificate.read_if_present(folder.path),
        shrinking=Shrinking.read_if_present(folder.path),
        evaluations=Evaluation.read_all(folder.path),
        samples=folder.samples_file.records(),
    )


def runs_page(paths: Sequence[Path], refresh_seconds: int | None = None) -> Page:
    """Return the page of runs; runs with the same name have their path in it. Raises UserError if a run is broken.

    refresh_seconds: interval after which the page reloads while a run is unfinished; None: never.
    """
    runs = [read_run(Path(path)) for path in paths]
    names = [run.name for run in runs]
    named = {name if names.count(name) == 1 else f"{name} ({run.path})": run for name, run in zip(names, runs)}
    if len(named) < len(runs):
        raise UserError("report: the same run was passed twice")
    looks = styles([*named, resizing.BEFORE], baseline=resizing.BEFORE)
    results = {name: run.result for name, run in named.items() if run.result}
    costs = {name: result.cost for name, result in results.items()}
    layer_tables = [tables.layer_table(name, cost).folded for name, cost in costs.items()]
    listed = {name: listed_run(Path(run.path)) for name, run in named.items() if run.result is None}
    refresh_seconds = refresh_seconds if listed else None
    curves = [figure for figure in _curves(named, looks) if figure is not None]
    cut = resizing.cut_section(named, looks)
    grown = [shorten(name, 60) for name, run in named.items() if run.growths]
    question = ""
    if cut:
        question = "What did the cut cost, and what does training give back?"
    elif grown:
        verb = "Does" if len(grown) == 1 else "Do"
        question = f"{verb} {joined(grown)} compute the same function after growth, and keep learning?"
    cut_figures = [part for part in cut.parts if isinstance(part, Figure)] if cut and len(runs) == 1 else []
    commands = dict.fromkeys(run.environment.get("command") for run in runs)
    environments = {name: run.environment for name, run in named.items()}
    if all(environment == runs[0].environment for environment in environments.values()):
        environments = {"": runs[0].environment}
    notes = []
    for name, result in results.items():
        lines = [f"! {doubt}" for doubt in result.doubts]
        start = "" if len(results) == 1 else f"{name}: "
        notes += [start + line for line in (*lines, *result.notes)]
    by_source = {
        name: {source: fixed(loss, 4) for source, loss in sorted(result.val_losses.items())}
        for name, result in results.items()
        if result.val_losses
    }
    return Page(
        "run" if len(runs) == 1 else "runs",
        runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        [*resizing.cut_answers(named), *resizing.growth_answers(named)] or _answers(results),
        lead=f"{_lead(runs, listed)}{reload_sentence(refresh_seconds)} {question}",
        badges=["doubtful last loss: see Results"] if any(result.doubts for result in results.values()) else [],
        first=[*curves[:1], *cut_figures] if cut_figures else curves[:2],
        sections=(
            cut,
            section(
                "Results",
                tables.progress_table(listed),
                _result_table(named),
                Text(notes) if notes else None,
                data_table(named),
                by_row("Held-out loss by source of the data", "Run", by_source),
                final_table(results),
            ),
            section("Curves", *curves, note("curves")),
            section("Norms of layers", *_norm_figures(named), note("norms-of-layers")),
            section("Samples", *_samples(named)),
            section("Evaluated", newest_table(named), note("evaluated")),
            section("Evaluations over training", *parts_over_training(named, looks)),
            resizing.growth_section({name: [run] for name, run in named.items()}, looks),
            dynamic_width_section(results, looks),
            virtual_width_section(results, looks),
            section("Width of every layer", note("width"), *width_figures(costs, looks, results)),
            section("Costs", tables.cost_table(results), *layer_tables),
            section("Environment", *map(tables.environment_table, environments.values(), environments)),
            section(
                "How to reproduce",
                *(Code(command) for command in commands if isinstance(command, str) and command),
                *map(recipe_code, named, named.values()),
            ),
        ),
        made_from="the run directories named above",
        refresh_seconds=refresh_seconds,
    )


def _answers(results: Mapping[str, RunResult]) -> list[str]:
    """Return the final held-out loss of a single run, or of the best of several runs."""
    ranked = sorted((result.val_loss, name) for name, result in results.items() if result.val_loss is not None)
    if not ranked:
        return []
    loss, name = ranked[0]
    lead = "The held-out loss ends" if len(ranked) == 1 else f"Of {len(ranked)} runs {shorten(name, 60)} ends lowest,"
    return [f"{lead} at {loss:.4f} nats per token."]


def _result_table(named: Mapping[str, Run]) -> Table:
    """Return a row for each run with its results; unfinished runs have only their number of steps."""
    cells: dict[str, dict[str, str]] = {}
    for name, run in named.items():
        result = run.result
        if result is None:
            last = max((record["step"] for record in run.metrics), default=0)
            cells[name] = {"seed": MISSING, "status": "unfinished", RUN_QUANTITIES["steps"].title: str(last)}
            continue
        cells[name] = {"seed": plain(result.seed), "status": clean(result.status)}
        for quantity in (*RUN_QUANTITIES.values(), MODEL_COSTS["params"]):
            if (value := quantity.of_run(result)) is not None:
                cells[name][quantity.title] = shown(value, quantity)
    return by_row("Results", "Run", cells)


def data_table(named: Mapping[str, Run]) -> Table:
    """Return one column if all runs used the same data, otherwise a column for each run."""
    columns = {name: _data_of(run) for name, run in named.items()}
    first = next(iter(columns.values()), {})
    return by_column("Data", {"Value": first} if all(column == first for column in columns.values()) else columns)


def _data_of(run: Run) -> dict[str, str]:
    """Return the column of a run: title of a property of its data -> text. Unknown properties are omitted."""
    column = {}
    if run.environment.get(DATA_KEY):
        rows = read_identity(run.environment, f"{run.path}/environment.json").rows()
        column = {item: clean(text) for item, text in rows.items()}
    result = run.result
    if result is None:
        return column
    data = result.data
    if data is not None:
        column["training text"] = f"{counted(data.n_train_tokens, 'token')}, {counted(data.n_train_bytes, 'byte')}"
    if result.tokens:
        column["read in training"] = counted(result.tokens, "token")
        if data is not None:
            column["read in training"] += f", {result.tokens / data.n_train_tokens:.3g} times the training text"
    if data is not None:
        n_tokens = counted(data.n_held_out_tokens, "token")
        column["held-out text"] = f"{n_tokens}, {counted(data.n_held_out_bytes, 'byte')}"
    if result.n_val_tokens:
        windows = f"{counted(len(result.val_window_losses), 'window')} of {result.cost.seq_len:,}, from the start"
        column["read for the held-out loss"] = f"{counted(result.n_val_tokens, 'token')}: {windows}"
    return column


def reload_sentence(refresh_seconds: int | None) -> str:
    """Return a sentence on the reloading of a page; "" if it does not reload."""
    if refresh_seconds is None:
        return ""
    return f" This page reloads itself every {refresh_seconds} s until training ends."


def _lead(runs: Sequence[Run], listed: Mapping[str, ListedRun]) -> str:
    """Return where the runs are and, if one is unfinished, its state, as `It is running, at step 120 of 400.`"""
    where = clean(runs[0].path) if len(runs) == 1 else f"{len(runs)} runs in the same figures"
    if not listed:
        return f"{where}."
    if len(runs) > 1:
        state = f"{len(listed)} of them {'has' if len(listed) == 1 else 'have'} not finished."
    else:
        (run,) = listed.values()
        place = f", at step {run.step or 0:,}" + ("" if run.n_steps is None else f" of {run.n_steps:,}")
        reason = f": {clean(run.reason)}" if run.reason else ""
        state = {
            "ready": "It has no step yet; start it with widthwise resume.",
            "stopped": f"It has stopped{place}; continue it with widthwise resume.",
            "running": f"It is running{place}{reason}.",
        }.get(run.state, f"It has failed{place}{reason}.")
    return f"{where}. {state} Results and costs appear when training ends."


def _curves(named: Mapping[str, Run], looks: Looks) -> Iterator[Figure | None]:
    def over_steps(key: str, title: str, curves: Mapping[str, Curve], crop: bool = True) -> Figure | None:
        return curve_figure(key, title, curves, looks, "step", title[:1].lower() + title[1:], crop)

    crop = all(run.shrinking is None for run in named.values())
    yield over_steps("validation-loss", "Held-out loss", resizing.held_out_curves(named), crop)
    for event, key, title, crop in _CURVES:
        yield over_steps(f"{event}-{key}", title, {n: by_step(run, event, key) for n, run in named.items()}, crop)
    heads = {name: by_index(run, "validation", "mtp_losses") for name, run in named.items()}
    for depth in range(1, 1 + max(map(len, heads.values()))):
        losses = {name: curves[depth - 1] for name, curves in heads.items() if len(curves) >= depth}
        yield over_steps(f"mtp-{depth}", f"Held-out loss, {depth} after the next", losses)
    for key, entry, title in _BY_NAME:
        by_subject: dict[str, dict[str, Curve]] = {}
        for name, run in named.items():
            for subject, curve in by_name(run, key, entry).items():
                by_subject.setdefault(clean(subject), {})[name] = curve
        for subject, curves in by_subject.items():
            yield over_steps(f"{key}-{entry}-{subject}".replace("_", "-"), title.format(subject), curves)


def _norm_figures(named: Mapping[str, Run]) -> Iterator[Figure | None]:
    """Yield figures with a curve for each layer, or for some of many layers, for the runs that recorded norms."""
    for i, (name, run) in enumerate(named.items()):
        for field, title in _NORMS.items():
            layers = by_index(run, "norms", field)
            if layers:
                curves = {f"layer {n}": layers[n - 1] for n in layer_ticks(len(layers))}
                caption = title if len(named) == 1 else f"{name}: {title.lower()}"
                key = f"{field.replace('_', '-')}-{i}"
                yield curve_figure(key, caption, curves, styles(curves), "step", title.lower())


def _samples(named: Mapping[str, Run]) -> Iterator[Part | None]:
    """Yield the continuations of each prompt during a run, latest first."""
    for name, run in named.items():
        for prompt in dict.fromkeys(record.get("prompt", "") for record in run.samples):
            of_prompt = [record for record in run.samples if record.get("prompt", "") == prompt]
            samples = [(record["step"], record.get("text", "")) for record in of_prompt]
            title = f"“{shorten(prompt, 60)}”" if prompt else "The beginning of a document"
            yield Text([title if len(named) == 1 else f"{clean(name)}: {title}"], is_quiet=False)
            shown = {round(i) for i in np.linspace(0, len(samples) - 1, N_SHOWN)}
            yield from (Code(prompt + samples[i][1], f"step {samples[i][0]:,}") for i in sorted(shown, reverse=True))
    yield note("samples")
