"""The page of an analysis, whose figures show all models together; of runs over the tokens of their checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import altair as alt
import numpy as np

from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.records.record import finite
from widthwise.reports import charts
from widthwise.reports.analysis_tables import (
    DepthAxis,
    LayerUnits,
    checkpoints_table,
    counterpart,
    exit_curve,
    layer_table,
    layers_of,
    means,
    summary_table,
)
from widthwise.reports.charts import Figure, Style, styles
from widthwise.reports.curves import Bundle, Curve, curve_figure, thin
from widthwise.reports.dynamic_width import dynamic_width_section
from widthwise.reports.formats import capital, clean, fixed, sequence, shorten, si, tick, without_seed
from widthwise.reports.page import Code, Page, Text, in_words, note, section
from widthwise.reports.virtual_width import virtual_width_section

N_SHOWN = 5
"""Checkpoints of a run that a figure over layers shows: more lines could not be told apart."""
N_POINTS = 100
"""Points of a curve over hidden units, in a small figure."""
Values = Callable[[AnalysedModel], dict[int, float]]
"""Layer or depth -> value."""


def analysis_page(whole: Analysis) -> Page:
    """Return the page; of runs with many checkpoints it shows some in the figures over layers, all in tables."""
    analysis = with_some_checkpoints(whole)
    runs, models, text = list(whole.courses), analysis.models, analysis.text
    names = [model.name for model in models]
    looks = styles(names, names[0] if len(names) > 1 else None)
    of_runs = styles(runs, runs[0] if len(runs) > 1 else None)
    by_name = {model.name: model for model in models}
    n_left_out = len(whole.models) - len(models)
    beyond = f"{analysis.utilisation_threshold:g}"
    even = fixed(sum(1 / n for n in range(1, text.seq_len + 1)) / text.seq_len, 4)
    subjects = list(dict.fromkeys(clean(model.run or model.name) for model in whole.models))
    when = ", in the course of training" if runs else ""
    stream, lens = (_depth_figures(models, looks, figures) for figures in (_STREAM, _LENS))
    return Page(
        "analysis",
        whole.title,
        findings(whole),
        lead=(
            f"What {'do' if len(subjects) > 1 else 'does'} {sequence(subjects)} do inside{when}, on "
            f"{si(text.n_tokens)} tokens of {clean(text.source)} in windows of {text.seq_len}?"
        ),
        first=[*stream, *lens[:1]][:2],
        sections=(
            section(
                "Means over layers",
                summary_table(analysis),
                note("means-over-layers"),
                in_words(whole.sentence.splitlines()),
            ),
            section(
                "Over training",
                *_course_figures(whole, of_runs),
                note("course", "left-out" * bool(n_left_out), n_left_out=n_left_out),
                checkpoints_table(whole).folded,
            )
            if runs
            else None,
            section(
                "Feed-forward activations",
                note("feed-forward-activations"),
                _density_figure(analysis, looks),
                *_depth_figures(models, looks, _activations(beyond)),
            ),
            section(
                "Use of every hidden unit",
                note("use-of-every-hidden-unit", beyond=beyond),
                *_utilisation_figures(analysis, looks),
            ),
            section(
                "Residual stream",
                note("residual-stream"),
                *stream,
            ),
            section(
                "Logit lens",
                note("logit-lens"),
                *lens,
                _exit_figure(models, looks),
            ),
            section(
                "Attention sinks",
                note("attention-sinks", even=even, seq_len=text.seq_len),
                *_depth_figures(models, looks, _SINKS),
            ),
            dynamic_width_section(by_name, looks),
            virtual_width_section(by_name, looks),
            section("Every layer", *(layer_table(model, whole.utilisation_threshold).folded for model in whole.models)),
            section(
                "How to reproduce",
                Text(["Run this command; every model reads the same text with its own tokenizer."]),
                Code(whole.command),
                Code("\n".join([f"text: {text.source}", *map(_described, whole.models)]), "Models and text"),
            ),
        ),
        made_from=f"{Analysis.file_name} of {whole.created}",
    )


def findings(analysis: Analysis) -> list[str]:
    """Return a sentence for each of the largest differences between variants, each pooled over its seeds.

    Variants are compared with the first one; only the last checkpoint of a run counts.
    """
    last = {model.run or model.name: model for model in analysis.models}
    pooled: dict[str, list[AnalysedModel]] = {}
    for name, model in last.items():
        pooled.setdefault(without_seed(name), []).append(model)
    first, *others = pooled
    if not others:
        return analysis.sentence.splitlines()[:1]
    found = []
    for mean in means(analysis):
        values = {name: float(np.mean([mean.value(model) for model in own])) for name, own in pooled.items()}
        name = max(others, key=lambda each: abs(np.nan_to_num(values[each] - values[first])))
        if values[first] and np.isfinite(values[name] / values[first]):
            change = values[name] / values[first] - 1
            seeds = f", mean of {len(pooled[name])} seeds" if len(pooled[name]) > 1 else ""
            side = "higher" if values[name] > values[first] else "lower"
            found.append(
                (abs(change), f"{capital(mean.title)}: {side} by {abs(change):.0%} in {name} than in {first}{seeds}.")
            )
    return [sentence for _, sentence in sorted(found, reverse=True)[:3]]


def _described(model: AnalysedModel) -> str:
    step = "" if model.step is None else f", step {model.step}"
    return f"{clean(model.name)}: {clean(model.source)} ({clean(model.kind)}{step})"


def with_some_checkpoints(analysis: Analysis) -> Analysis:
    """Return the analysis with at most N_SHOWN checkpoints of each run, spread evenly from the first to the last."""
    left_out = set()
    for own in analysis.courses.values():
        shown = {round(i) for i in np.linspace(0, len(own) - 1, N_SHOWN)}
        left_out |= {model.name for i, model in enumerate(own) if i not in shown}
    return analysis.with_changes(models=[model for model in analysis.models if model.name not in left_out])


def _of_units(value: Callable[[LayerUnits], float]) -> Values:
    return lambda model: {layer: value(units) for layer, units in layers_of(model).items()}


def _of_depths(part: Literal["stream", "logit_lens"], key: str) -> Values:
    return lambda model: {each.depth: finite(getattr(each, key)) for each in getattr(model, part)}


def _of_sinks(key: str) -> Values:
    return lambda model: {each.layer: finite(getattr(each, key)) for each in model.sinks}


Figures = Mapping[str, tuple[str, str, Values]]
"""Title -> key, title of the y axis, and values."""


def _activations(beyond: str) -> Figures:
    return {
        f"Activations beyond {beyond}, by layer": (
            "units-0",
            "share of the activations",
            _of_units(lambda units: units.density),
        ),
        "Effective number of units": ("units-1", "participation ratio", _of_units(lambda units: units.participation)),
        "Effective number of units over d_ff": (
            "units-2",
            "participation ratio / d_ff",
            _of_units(lambda units: units.participation_share),
        ),
        "Units that are never active": ("units-3", "share of the units", _of_units(lambda units: units.dead_share)),
    }


_STREAM: Figures = {
    "Matrix entropy": ("entropy", "matrix entropy / log(rank)", _of_depths("stream", "entropy")),
    "Participation ratio of the stream": (
        "stream-participation",
        "participation ratio",
        _of_depths("stream", "participation"),
    ),
}
_LENS: Figures = {
    "Log-probability of the target": (
        "lens-target_log_prob",
        "log-probability, nats",
        _of_depths("logit_lens", "target_log_prob"),
    ),
    "Change to the next layer": ("lens-kl_to_next", "symmetrised KL, nats", _of_depths("logit_lens", "kl_to_next")),
    "Entropy of the prediction": ("lens-entropy", "entropy, nats", _of_depths("logit_lens", "entropy")),
}
_SINKS: Figures = {
    "Attention to the first token": ("sinks", "share of the attention", _of_sinks("first_token_share")),
    "Size of the first token's state": ("norm-ratio", "norm / mean norm of the others", _of_sinks("norm_ratio")),
}


def _depth_figures(models: Sequence[AnalysedModel], looks: Mapping[str, Style], figures: Figures) -> list[Figure]:
    """Return figures with one line per model, without those of which no model has any value."""
    axis, found = DepthAxis.of(models), []
    for title, (key, y_title, values) in figures.items():
        curves = {model.name: axis.curve(model, values(model)) for model in models}
        curves = {name: curve for name, curve in curves.items() if not curve.is_empty}
        if curves:
            parts = [f"{shorten(name, 40)} {_extremes(curve)}" for name, curve in curves.items()]
            label = f"{y_title} by {axis.name}. {'; '.join(parts)}."
            found.append(_lines(key, title, label, curves, looks, axis.name, y_title))
    return found


def _lines(
    key: str,
    title: str,
    label: str,
    curves: Mapping[str, Curve],
    looks: Mapping[str, Style],
    x_title: str,
    y_title: str,
    log: bool = False,
) -> Figure:
    """Return a line with markers for each model."""
    own = {name: looks[name] for name in curves}
    rows = [
        {"name": clean(name), "x": float(a), "y": float(b)}
        for name, curve in curves.items()
        for a, b in zip(curve.x, curve.y)
    ]
    axes = {"x": charts.x("x", x_title, log=log, format="~g"), "y": charts.y("y", y_title)}
    tip = charts.tips(name="|model", x=f",.3~f|{x_title}", y=f".4f|{y_title}")
    base = charts.chart(rows).encode(**axes, tooltip=tip)
    layers = alt.layer(
        base.mark_line().encode(**charts.coloured(own, "color", "strokeDash")),
        base.mark_point(size=34).encode(**charts.coloured(own, "color", "shape")),
    )
    return Figure(key, title, label, layers, own)


def _extremes(curve: Curve) -> str:
    low, high = int(np.nanargmin(curve.y)), int(np.nanargmax(curve.y))
    return f"from {si(curve.y[low])} at {tick(curve.x[low])} to {si(curve.y[high])} at {tick(curve.x[high])}"


def _exit_figure(models: Sequence[AnalysedModel], looks: Mapping[str, Style]) -> Figure | None:
    curves = {model.name: curve for model in models if (curve := exit_curve(model)) is not None}
    exits = [Bundle(name, looks[name], [curve], curve) for name, curve in curves.items()]
    return curve_figure("exits", "Loss of an early exit", exits, "forward FLOPs per token", "loss, nats")


def _density_figure(analysis: Analysis, looks: Mapping[str, Style]) -> Figure | None:
    """Return the share of activations over thresholds, over all units of all layers."""
    thresholds = np.array(analysis.thresholds)
    curves = {}
    for model in analysis.models:
        if layers := list(layers_of(model).values()):
            sizes = np.array([units.d_ff for units in layers])
            shares = np.array([[units.density_at(i) for i in range(len(thresholds))] for units in layers])
            curves[model.name] = Curve(thresholds, sizes @ shares / sizes.sum())
    if not curves:
        return None
    middle = len(thresholds) // 2
    values = "; ".join(f"{shorten(name, 40)} {fixed(float(curve.y[middle]), 3)}" for name, curve in curves.items())
    label = f"Share of the activations beyond a threshold, from {thresholds[0]:g} to {thresholds[-1]:g}."
    label += f" At {thresholds[middle]:g}: {values}."
    axes = ("threshold of the magnitude", "share beyond", bool(thresholds.min() > 0))
    return _lines("density", "Activations beyond a threshold", label, curves, looks, *axes)


def _utilisation_figures(analysis: Analysis, looks: Mapping[str, Style]) -> list[Figure]:
    """Return one small picture a layer of the deepest model; of others the layer that stands there."""
    units = {model.name: layers_of(model) for model in analysis.models}
    n_layers = max(model.n_layers for model in analysis.models)
    found = []
    for layer in range(1, n_layers + 1):
        shown = {
            model.name: units[model.name][own]
            for model in analysis.models
            if (own := counterpart(layer, n_layers, model)) in units[model.name]
        }
        if shown:
            found.append(_utilisation_figure(layer, _layer_title(layer, analysis.models, shown), shown, looks))
    return found


def _layer_title(layer: int, models: Sequence[AnalysedModel], shown: Mapping[str, LayerUnits]) -> str:
    """Return the number of a layer, and of which models whose layers differ it is the first of the narrowest."""
    narrowest = [
        model.name
        for model in models
        if model.name in shown
        and len(set(model.widths)) > 1
        and model.widths.index(min(model.widths)) == shown[model.name].layer - 1
    ]
    title = f"Layer {layer}"
    if DepthAxis.of(models).is_fraction:
        title += f" of {max(model.n_layers for model in models)}"
    return title + (f": narrowest of {sequence([shorten(name, 30) for name in narrowest])}" if narrowest else "")


def _utilisation_figure(layer: int, title: str, shown: Mapping[str, LayerUnits], looks: Mapping[str, Style]) -> Figure:
    curves = {}
    for name, units in shown.items():
        ranks = (np.arange(len(units.utilisation)) + 0.5) / len(units.utilisation)
        curves[name] = thin(Curve(ranks, units.utilisation), N_POINTS)
    parts = [
        f"{shorten(name, 40)}, layer {units.layer}: median unit {np.median(units.utilisation):.3f}, "
        f"{units.dead_share:.1%} never active"
        for name, units in shown.items()
    ]
    label = f"{clean(title)}: how often each hidden unit is active. {'; '.join(parts)}."
    across, up = charts.x("x", "units, the most used first", (0, 1)), charts.y("y", "share of the tokens", (0, 1))
    own = {name: looks[name] for name in curves}
    rows = [{"name": clean(n), "x": float(a), "y": float(b)} for n, c in curves.items() for a, b in zip(c.x, c.y)]
    chart = (
        charts.chart(rows)
        .mark_line()
        .encode(
            x=across,
            y=up,
            tooltip=charts.tips(name="|model", x=".2f|rank", y=".3f"),
            **charts.coloured(own, "color", "strokeDash"),
        )
    )
    return Figure(f"utilisation-{layer}", title, label, chart, own, height=190, is_small=True)


def _course_figures(analysis: Analysis, looks: Mapping[str, Style]) -> list[Figure]:
    """Return a figure for each mean over layers, with a line for each run over the tokens of its checkpoints."""
    figures = []
    for i, mean in enumerate(means(analysis)):
        bundles = []
        for run, models in analysis.courses.items():
            tokens = np.array([model.tokens for model in models], dtype=float)
            curve = Curve(tokens, np.array([mean.value(model) for model in models]))
            bundles.append(Bundle(run, looks[run], [curve], curve))
        figures.append(curve_figure(f"course-{i}", capital(mean.title), bundles, "tokens", mean.title))
    return [figure for figure in figures if figure is not None]
