"""The report of single runs: one page for one run, or for several drawn into the same figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from widthwise.config_io import UserError
from widthwise.files import write_atomic
from widthwise.records.run import ListedRun, Run, RunResult
from widthwise.reports.page import plots, tables
from widthwise.reports.page.formats import clean, shorten
from widthwise.reports.page.html import FoldedRecipe, Panel, legend, panels, render
from widthwise.reports.page.plots import Bundle, by_name, by_step, curve_figure, further_heads, layer_ticks, of_layer
from widthwise.reports.page.shapes import used_widths, width_figures
from widthwise.reports.page.svg import Style, styles
from widthwise.reports.page.table import Table
from widthwise.reports.page.tables import data_table
from widthwise.reports.run.dynamic_width import dynamic_width_section
from widthwise.reports.run.evaluations import evaluations_section, side_by_side, task_table, text_table
from widthwise.reports.run.growth import growth_answers, growth_question, growth_section, growth_steps
from widthwise.reports.run.reading import listed_runs, progress_table, read_run, reload_sentence, state_sentence
from widthwise.reports.run.virtual_width import virtual_width_section

_CURVES = (
    ("validation", "loss", "Held-out loss", True),
    ("train", "loss", "Training loss", True),
    ("validation", "width_fraction", "Mean width fraction of tokens", False),
    ("train", "width_price", "Price of width", False),
    ("train", "lr", "Learning rate", False),
    ("train", "grad_norm", "Gradient norm", False),
    ("train", "tokens_per_second", "Tokens per second", False),
    ("train", "mfu", "Model FLOPs utilisation", False),
    ("train", "memory_bytes", "Memory in bytes", False),
)

_BY_NAME = (
    ("val_texts", "loss", "Loss on {}"),
    ("val_tasks", "acc", "Accuracy on {}"),
    ("val_tasks", "bits_per_byte", "Bits per byte of the answers of {}"),
)
"""Key of a validation record, entry of a text or task there, and the title of its figure."""


def write_run_report(run: Path, out: Path | None = None, refresh_seconds: int | None = None) -> Path:
    """Writes `report.html` of a run, finished or not, into `out` (default: the run). UserError if broken.

    refresh_seconds: as `write_runs_report`.
    """
    return write_runs_report([run], out or run, refresh_seconds)


def write_runs_report(runs: Sequence[Path], out: Path, refresh_seconds: int | None = None) -> Path:
    """Writes `out/report.html` with the curves of all runs in the same figures. Raises UserError if one is broken.

    refresh_seconds: after so long the page of runs of which one has not finished loads itself again; None: never.
    """
    if not runs:
        raise UserError("report: expected at least one run directory")
    page = Path(out) / "report.html"
    write_atomic(page, _page([read_run(Path(run)) for run in runs], refresh_seconds))
    return page


def _page(runs: Sequence[Run], refresh_seconds: int | None) -> str:
    named = _distinct_names(runs)
    chosen = styles(list(named))
    costs = {name: run.cost for name, run in named.items() if run.cost is not None}
    results = {name: run.result for name, run in named.items() if run.result}
    listed = listed_runs(named)
    refresh_seconds = refresh_seconds if listed else None
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return render(
        "run/runs.html",
        title=title,
        lead=_lead(runs, listed) + reload_sentence(refresh_seconds),
        refresh_seconds=refresh_seconds,
        progress_table=progress_table(listed),
        question=growth_question(named),
        answers=growth_answers(named),
        commands=list(dict.fromkeys(filter(None, map(_command, runs)))),
        run_table=tables.run_table(named),
        data_table=data_table(named),
        source_table=tables.source_table(results),
        notes=_notes(results),
        mtp_table=tables.mtp_table(results),
        text_table=text_table(results),
        task_table=task_table(results),
        curves=panels(_curves(named, chosen)),
        norms=norms_section(named),
        samples=sample_groups(named),
        evaluations=evaluations_section(named, chosen),
        side_by_side=side_by_side(named),
        legend=legend(chosen),
        dynamic_width=dynamic_width_section(results, chosen),
        virtual_width=virtual_width_section(results, chosen),
        growth=growth_section({name: [run] for name, run in named.items()}, chosen),
        widths=panels(width_figures(costs, chosen, used_widths(results))) if costs else [],
        cost_table=tables.cost_table(results),
        layer_tables=[tables.layer_table(name, cost) for name, cost in costs.items()],
        environment_tables=_environments(named),
        recipes=[FoldedRecipe(name, run.path, run.config_yaml) for name, run in named.items()],
    )


def _notes(results: Mapping[str, RunResult]) -> list[str]:
    """What the results say that a reader should know, such as steps that were skipped."""
    return [
        note if len(results) == 1 else f"{name}: {note}"
        for name, each in results.items()
        for note in (*(f"! {doubt}" for doubt in each.doubts), *_on_the_best(each), *each.notes)
    ]


def _on_the_best(result: RunResult) -> list[str]:
    return (
        []
        if result.best_step is None
        else [f"the best checkpoint, by held-out loss, is that of step {result.best_step}"]
    )


def _distinct_names(runs: Sequence[Run]) -> dict[str, Run]:
    """Name -> run; runs that share a name are told apart by their path."""
    names = [run.name for run in runs]
    named = {name if names.count(name) == 1 else f"{name} ({run.path})": run for name, run in zip(names, runs)}
    if len(named) < len(runs):
        raise UserError("report: the same run was named twice")
    return named


def _lead(runs: Sequence[Run], listed: Mapping[str, ListedRun]) -> str:
    where = clean(runs[0].path) if len(runs) == 1 else f"{len(runs)} runs laid over each other"
    if not listed:
        return f"{where}."
    rest = "Results and costs appear when training ends."
    if len(runs) == 1:
        return f"{where}. {state_sentence(*listed.values())} {rest}"
    return f"{where}. {len(listed)} of them {'has' if len(listed) == 1 else 'have'} not finished. {rest}"


def _command(run: Run) -> str | None:
    """The command that began the run, if it is recorded."""
    command = run.environment.get("command")
    return command if isinstance(command, str) else None


def _curves(named: Mapping[str, Run], chosen: Mapping[str, Style]) -> dict[str, Markup | None]:
    figures: dict[str, Markup | None] = {}
    grown = growth_steps(named.values())
    for event, key, title, crop in _CURVES:
        curves = {name: by_step(run, event, key) for name, run in named.items()}
        bundles = [plots.Bundle(name, chosen[name], [curve], curve) for name, curve in curves.items()]
        figures[title] = plots.curve_figure(f"{event}-{key}", bundles, "step", title.lower(), crop, grown)
    figures |= _further_heads(named, chosen)
    for key, entry, title in _BY_NAME:
        figures |= _by_name(named, chosen, key, entry, title)
    return figures


def _by_name(
    named: Mapping[str, Run], chosen: Mapping[str, Style], key: str, entry: str, title: str
) -> dict[str, Markup | None]:
    """A figure for each text or task that runs were validated on, with the runs that were."""
    found: dict[str, list[plots.Bundle]] = {}
    for name, run in named.items():
        for subject, curve in by_name(run, key, entry).items():
            found.setdefault(subject, []).append(plots.Bundle(name, chosen[name], [curve], curve))
    figures: dict[str, Markup | None] = {}
    for subject, bundles in found.items():
        grown = growth_steps(named[bundle.name] for bundle in bundles)
        shown, figure_key = title.format(clean(subject)), f"{key}-{entry}-{clean(subject)}".replace("_", "-")
        figures[shown] = plots.curve_figure(figure_key, bundles, "step", shown[:1].lower() + shown[1:], True, grown)
    return figures


def _further_heads(named: Mapping[str, Run], chosen: Mapping[str, Style]) -> dict[str, Markup | None]:
    """A figure for each depth of multi-token prediction, with the runs that have it."""
    curves = {name: further_heads(run) for name, run in named.items()}
    figures: dict[str, Markup | None] = {}
    for depth in range(1, 1 + max(map(len, curves.values()))):
        own = {name: found[depth - 1] for name, found in curves.items() if len(found) >= depth}
        bundles = [plots.Bundle(name, chosen[name], [curve], curve) for name, curve in own.items()]
        title = f"Held-out loss, {depth} after the next"
        y_label = f"held-out loss, {depth} after the next"
        grown = growth_steps(named[name] for name in own)
        figures[title] = plots.curve_figure(f"further-head-{depth}", bundles, "step", y_label, True, grown)
    return figures


def _environments(named: Mapping[str, Run]) -> list[Table]:
    """One table if all runs share an environment, otherwise one per run."""
    if all(run.environment == next(iter(named.values())).environment for run in named.values()):
        return [tables.environment_table(next(iter(named.values())).environment)]
    return [tables.environment_table(run.environment, name) for name, run in named.items()]


_TITLES = {
    "grad_norms": "Gradient norm of layers",
    "weight_norms": "Weight norm of layers",
    "update_norms": "Update norm of layers",
    "output_rms": "Output of layers, root mean square",
}


def norms_section(named: Mapping[str, Run]) -> list[Panel]:
    """Figures with a curve for each layer, or for some of many, of the runs that recorded norms."""
    found: dict[str, Markup | None] = {}
    for i, (name, run) in enumerate(named.items()):
        for key, title in _TITLES.items():
            shown = title if len(named) == 1 else f"{name}: {title.lower()}"
            found[shown] = _figure(f"{key.replace('_', '-')}-{i}", run, key, title.lower())
    return panels(found)


def _figure(figure_key: str, run: Run, key: str, label: str) -> Markup | None:
    counts = [len(record.get(key) or ()) for record in run.metrics if record.get("event") == "norms"]
    if not counts:
        return None
    curves = {f"layer {layer}": of_layer(run, "norms", key, layer) for layer in layer_ticks(max(counts))}
    chosen = styles(list(curves))
    bundles = [Bundle(name, chosen[name], [curve], curve) for name, curve in curves.items()]
    return curve_figure(figure_key, bundles, "step", label, growths=growth_steps([run]))


N_SHOWN = 6
"""Texts of one prompt on the page, spread over the run; the file has all."""


@dataclass(frozen=True)
class PromptSamples:
    """The continuations of one prompt in the course of a run."""

    title: str
    prompt: str
    texts: list[tuple[int, str]]
    """Step and text, the latest first."""


def sample_groups(named: Mapping[str, Run]) -> list[PromptSamples]:
    """A group for each run and prompt, in the order of the recipe."""
    groups = []
    for name, run in named.items():
        for prompt in dict.fromkeys(record["prompt"] for record in run.samples):
            found = [(record["step"], record["text"]) for record in run.samples if record["prompt"] == prompt]
            title = f"“{shorten(prompt, 60)}”" if prompt else "The beginning of a document"
            title = title if len(named) == 1 else f"{clean(name)}: {title}"
            groups.append(PromptSamples(title, prompt, _spread(found)[::-1]))
    return groups


def _spread(texts: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """At most N_SHOWN of them, the first and the last included."""
    if len(texts) <= N_SHOWN:
        return texts
    return [texts[round(i * (len(texts) - 1) / (N_SHOWN - 1))] for i in range(N_SHOWN)]
