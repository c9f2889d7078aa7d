"""The page of an analysis of models, with figures over layers, and over training for runs with checkpoints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np

from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.records.record import finite
from widthwise.reports import analysis_tables, charts
from widthwise.reports.analysis_tables import MEASURES, Measure
from widthwise.reports.charts import Figure, Looks, Plot, styles
from widthwise.reports.curves import EMPTY, Curve, curve_figure, thin
from widthwise.reports.formats import amount, clean, fixed, joined, shorten, si, tick, without_seed
from widthwise.reports.page import Code, Page, Text, note, section
from widthwise.reports.widths_used import dynamic_width_section, virtual_width_section

N_SHOWN = 5
"""Largest number of checkpoints of a run in a figure over layers."""
N_POINTS = 100
"""Points of a curve over hidden units in a small figure."""


def analysis_page(analysis: Analysis) -> Page:
    """Return the page of an analysis. Figures over layers show up to N_SHOWN checkpoints of a run, tables show all."""
    omitted = set()
    for checkpoints in analysis.checkpoints.values():
        shown = {round(i) for i in np.linspace(0, len(checkpoints) - 1, N_SHOWN)}
        omitted |= {model.name for i, model in enumerate(checkpoints) if i not in shown}
    models = [model for model in analysis.models if model.name not in omitted]
    drawn = analysis.with_changes(models=models)
    runs = list(analysis.checkpoints)
    by_name = {model.name: model for model in models}
    variants = {model.name: clean(model.name) if runs else without_seed(model.name) for model in models}
    looks = styles(list(dict.fromkeys(variants.values())), variants[models[0].name] if len(models) > 1 else None)
    model_looks = {name: looks[variant] for name, variant in variants.items()}
    text = analysis.text
    threshold = analysis.utilisation_threshold
    even = fixed(sum(1 / n for n in range(1, text.seq_len + 1)) / text.seq_len, 4)  # query n attends to n tokens
    subjects = list(dict.fromkeys(clean(without_seed(model.run or model.name)) for model in analysis.models))
    when = ", in the course of training" if runs else ""
    exits = pooled({model.name: exit_curve(model) for model in models}, variants)
    exit_figure = curve_figure("exits", "Loss of an early exit", exits, looks, "forward FLOPs per token", "loss, nats")
    by_measure = {}
    figures: dict[str, list[Figure | None]] = {measure.part: [] for measure in MEASURES}
    for measure in MEASURES:
        if measure.title:
            by_measure[measure] = _depth_figure(models, variants, looks, measure, threshold)
            figures[measure.part].append(by_measure[measure])
    described = [f"text: {text.source}"]
    for model in analysis.models:
        step = "" if model.step is None else f", step {model.step}"
        described.append(f"{clean(model.name)}: {clean(model.source)} ({clean(model.kind)}{step})")
    answers = analysis_tables.findings(analysis)
    layer_tables = [analysis_tables.layer_table(model, threshold).folded for model in analysis.models]
    notes = ["over-training", "left-out"] if omitted else ["over-training"]
    return Page(
        "analysis",
        analysis.title,
        [sentence for _, sentence in answers],
        lead=(
            f"What {'do' if len(subjects) > 1 else 'does'} {joined(subjects)} do inside{when}, on "
            f"{amount(text.n_tokens)} tokens of {clean(text.source)} in windows of {text.seq_len}?"
        ),
        first=[by_measure.get(measure) for measure, _ in answers],
        sections=(
            section("Means over layers", analysis_tables.summary_table(drawn), note("means-over-layers")),
            section(
                "Over training",
                *_training_figures(analysis, styles(runs, runs[0] if len(runs) > 1 else None)),
                note(*notes, n_left_out=len(omitted)),
                analysis_tables.checkpoints_table(analysis).folded if runs else None,
            ),
            section(
                "Feed-forward activations",
                note("feed-forward-activations"),
                _density_figure(drawn, variants, looks),
                *figures["units"],
            ),
            section(
                "Use of every hidden unit",
                note("use-of-every-hidden-unit", beyond=f"{threshold:g}"),
                *_utilisation_figures(models, variants, looks),
            ),
            section("Residual stream", note("residual-stream"), *figures["stream"]),
            section("Logit lens", note("logit-lens"), *figures["logit_lens"], exit_figure),
            section("Attention sinks", note("attention-sinks", even=even, seq_len=text.seq_len), *figures["sinks"]),
            dynamic_width_section(by_name, model_looks),
            virtual_width_section(by_name, model_looks),
            section("Every layer", *layer_tables),
            section(
                "How to reproduce",
                Text(["Run this command; every model reads the same text with its own tokenizer."]),
                Code(analysis.command),
                Code("\n".join(described), "Models and text"),
            ),
        ),
        made_from=f"{Analysis.file_name} of {analysis.created}",
    )


def pooled(curves: Mapping[str, Curve], variants: Mapping[str, str]) -> dict[str, Curve]:
    """Return the mean of the seeds of each variant, with a band from the lowest to the highest seed.

    curves: by model. variants: model -> variant. Seeds whose x differs from the x of the first seed are ignored.
    """
    by_variant: dict[str, list[Curve]] = {}
    for name, curve in curves.items():
        by_variant.setdefault(variants[name], []).append(curve)
    means = {}
    for variant, seeds in by_variant.items():
        same = [curve.y for curve in seeds if np.array_equal(curve.x, seeds[0].x)]
        values = np.array(same)
        ends = np.array([values.min(axis=0), values.max(axis=0)]) if len(same) > 1 else None
        means[variant] = Curve(seeds[0].x, values.mean(axis=0), ends)
    return means


def _depth_figure(
    models: Sequence[AnalysedModel], variants: Mapping[str, str], looks: Looks, measure: Measure, threshold: float
) -> Figure | None:
    """Return a line for each variant; None if no model has a value.

    If models differ in their number of layers, depths are fractions.
    """
    is_fraction = len({model.n_layers for model in models}) > 1
    of_models = {}
    for model in models:
        values = measure.by_depth(model)
        depths = np.array(list(values), dtype=float) / (model.n_layers if is_fraction else 1)
        curve = Curve(depths, np.array(list(values.values()), dtype=float))
        if not curve.is_empty:
            of_models[model.name] = curve
    if not of_models:
        return None
    curves = pooled(of_models, variants)
    ends = {}
    for name, curve in curves.items():
        low, high = (f"{si(curve.y[i])} at {tick(curve.x[i])}" for i in (np.nanargmin(curve.y), np.nanargmax(curve.y)))
        ends[name] = f"from {low} to {high}"
    x_title = "layers passed, as a share of all" if is_fraction else "layer"
    title = measure.title.format(threshold)
    if measure.key == "density":
        title += ", by layer"
    label = charts.text_alternative(f"{measure.unit} by {x_title}.", ends)
    axis = charts.x("x", x_title, format="~g")
    return _lines(f"{measure.part}-{measure.key}".replace("_", "-"), title, label, curves, looks, axis, measure.unit)


def _plot(curves: Mapping[str, Curve], looks: Looks, x: alt.X, y: str) -> tuple[Plot, list[dict[str, Any]]]:
    """Return a plot of a line for each variant, and its rows."""
    rows = [row for name, curve in curves.items() for row in curve.rows(name)]
    tip = charts.tips(name="|model", x=f",.3~f|{x['title']}", y=f".4f|{y}")
    return Plot(x, y, {name: looks[name] for name in curves}, tip), rows


def _lines(key: str, title: str, label: str, curves: Mapping[str, Curve], looks: Looks, x: alt.X, y: str) -> Figure:
    """Return a line with markers for each variant, with a band of its seeds."""
    plot, rows = _plot(curves, looks, x, y)
    layers = [plot.lines(rows), plot.points(rows, size=34)]
    if banded := [row for row in rows if "low" in row]:
        layers.insert(0, plot.bands(banded))
    return Figure(key, title, label, alt.layer(*layers), plot.looks)


def exit_curve(model: AnalysedModel) -> Curve:
    """Return the loss of exits after layers and blocks over their FLOPs; an empty curve if FLOPs are unknown."""
    if model.exit_flops is None:
        return EMPTY
    exits = [(model.exit_flops[point.depth], finite(point.target_log_prob)) for point in model.logit_lens]
    if model.block_exit_flops is not None:
        for point in model.block_exits:
            flops = model.block_exit_flops[point.layer - 1][point.block - 1]
            exits.append((flops, finite(point.target_log_prob)))
    flops, log_probs = np.array(sorted(exits), dtype=float).T
    return Curve(flops, -log_probs)


def _density_figure(analysis: Analysis, variants: Mapping[str, str], looks: Looks) -> Figure | None:
    """Return the share of the activations of all layers beyond each threshold."""
    thresholds = np.array(analysis.thresholds)
    curves = {}
    for model in analysis.models:
        if model.units:
            sizes = np.array([layer.d_ff for layer in model.units])
            densities = np.array([layer.densities for layer in model.units])
            curves[model.name] = Curve(thresholds, sizes @ densities / sizes.sum())
    if not curves:
        return None
    curves = pooled(curves, variants)
    middle = len(thresholds) // 2
    ends = f"from {thresholds[0]:g} to {thresholds[-1]:g}. At {thresholds[middle]:g}:"
    values = {name: fixed(float(curve.y[middle]), 3) for name, curve in curves.items()}
    label = charts.text_alternative(f"Share of the activations beyond a threshold, {ends}", values)
    x = charts.x("x", "threshold of the magnitude", log=bool(thresholds.min() > 0), format="~g")
    return _lines("density", "Activations beyond a threshold", label, curves, looks, x, "share beyond")


def _utilisation_figures(models: Sequence[AnalysedModel], variants: Mapping[str, str], looks: Looks) -> list[Figure]:
    """Return a small figure for each layer of the deepest model, with the layers of other models at the same depth."""
    units = {model.name: {layer_units.depth: layer_units for layer_units in model.units} for model in models}
    layer_counts = {model.n_layers for model in models}
    n_layers = max(layer_counts)
    x = charts.x("x", "units, the most used first", (0, 1))
    figures = []
    for layer in range(1, n_layers + 1):
        layers = {model.name: math.ceil(layer * model.n_layers / n_layers) for model in models}
        shown = {name: units[name][depth] for name, depth in layers.items() if depth in units[name]}
        if not shown:
            continue
        curves = {}
        uses = {}
        for name, layer_units in shown.items():
            ranks = (np.arange(layer_units.d_ff) + 0.5) / layer_units.d_ff
            curves[name] = thin(Curve(ranks, np.array(layer_units.utilisation)), N_POINTS)
            use = f"median unit {np.median(layer_units.utilisation):.3f}, {layer_units.dead_share:.1%} never active"
            uses[f"{shorten(name, 40)}, layer {layer_units.depth}:"] = use
        title = f"Layer {layer} of {n_layers}" if len(layer_counts) > 1 else f"Layer {layer}"
        narrowest = []  # models with this layer as the narrowest, or as the first of several narrowest
        for model in models:
            narrowest_depth = model.widths.index(min(model.widths)) + 1
            if model.name in shown and shown[model.name].depth == narrowest_depth and len(set(model.widths)) > 1:
                narrowest.append(shorten(model.name, 30))
        if narrowest:
            title += f": narrowest of {joined(narrowest)}"
        label = charts.text_alternative(f"{clean(title)}: how often each hidden unit is active.", uses)
        plot, rows = _plot(pooled(curves, variants), looks, x, "share of the tokens")
        lines = replace(plot, domain=(0, 1)).lines(rows)
        figures.append(Figure(f"utilisation-{layer}", title, label, lines, plot.looks, height=190, is_small=True))
    return figures


def _training_figures(analysis: Analysis, looks: Looks) -> list[Figure | None]:
    """Return a figure for each measure of whole models, with a line for each run over the tokens of its checkpoints."""
    figures = []
    for measure in analysis_tables.SUMMARIES:
        curves = {}
        for run, models in analysis.checkpoints.items():
            tokens = np.array([model.tokens for model in models], dtype=float)
            curves[run] = Curve(tokens, np.array([measure.of_model(model) for model in models]))
        title = measure.title.format(analysis.utilisation_threshold)
        figures.append(curve_figure(f"course-{measure.key}", title, curves, looks, "tokens", title))
    return figures
