"""The figures of an analysis, each with all models in it; of runs over the tokens of their checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.records.record import finite
from widthwise.reports.analysis.tables import DepthAxis, LayerUnits, counterpart, exit_curve, layers_of, means
from widthwise.reports.page.formats import clean, fixed, shorten, si, tick
from widthwise.reports.page.html import Panel, panels, sequence
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, Bundle, Curve, curve_figure, label_axes, thin
from widthwise.reports.page.svg import Style, draw, line_legend
from widthwise.reports.page.ticks import TickFormatter

Values = Callable[[AnalysedModel], dict[int, float]]
"""Layer or depth -> value."""
N_POINTS = 100
"""Number of points of a curve over hidden units, in a small figure."""


def activation_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """Density over thresholds and by layer, participation absolute and over d_ff, and dead units."""
    beyond = f"Activations beyond {analysis.utilisation_threshold:g}, by layer"
    by_layer = {
        beyond: ("units-0", "share of the activations", _of_units(lambda units: units.density)),
        "Effective number of units": ("units-1", "participation ratio", _of_units(lambda units: units.participation)),
        "Effective number of units over d_ff": (
            "units-2",
            "participation ratio / d_ff",
            _of_units(lambda units: units.participation_share),
        ),
        "Units that are never active": ("units-3", "share of the units", _of_units(lambda units: units.dead_share)),
    }
    density = panels({"Activations beyond a threshold": _density_figure(analysis, styles)})
    return density + _depth_panels(analysis, styles, by_layer)


def stream_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """How much of the residual stream the tokens' states fill, by depth."""
    by_depth = {
        "Matrix entropy": ("entropy", "matrix entropy / log(rank)", _of_depths("stream", "entropy")),
        "Participation ratio of the stream": (
            "stream-participation",
            "participation ratio",
            _of_depths("stream", "participation"),
        ),
    }
    return _depth_panels(analysis, styles, by_depth)


def lens_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """The logit lens by depth."""
    quantities = {
        "Log-probability of the target": ("target_log_prob", "log-probability, nats"),
        "Change to the next layer": ("kl_to_next", "symmetrised KL, nats"),
        "Entropy of the prediction": ("entropy", "entropy, nats"),
    }
    by_depth = {
        title: (f"lens-{key}", label, _of_depths("logit_lens", key)) for title, (key, label) in quantities.items()
    }
    curves = {model.name: curve for model in analysis.models if (curve := exit_curve(model)) is not None}
    exits = [Bundle(name, styles[name], [curve], curve) for name, curve in curves.items()]
    drawn = curve_figure("exits", exits, "forward FLOPs per token", "loss, nats")
    return _depth_panels(analysis, styles, by_depth) + panels({"Loss of an early exit": drawn})


def sink_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """Attention to the first token and the size of its state, by layer."""
    by_layer = {
        "Attention to the first token": ("sinks", "share of the attention", _of_sinks("first_token_share")),
        "Size of the first token's state": ("norm-ratio", "norm / mean norm of the others", _of_sinks("norm_ratio")),
    }
    return _depth_panels(analysis, styles, by_layer)


def _depth_panels(
    analysis: Analysis, styles: Mapping[str, Style], figures: Mapping[str, tuple[str, str, Values]]
) -> list[Panel]:
    """figures: title -> key, y label and values."""
    drawn = {
        title: _depth_figure(key, analysis.models, styles, values, label)
        for title, (key, label, values) in figures.items()
    }
    return panels(drawn)


def utilisation_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """One small picture a layer of the deepest model; of others the layer that stands there."""
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
            title = _panel_title(layer, analysis.models, shown)
            found.append(Panel(title, _utilisation_figure(f"utilisation-{layer}", title, shown, styles)))
    return found


def _of_units(value: Callable[[LayerUnits], float]) -> Values:
    return lambda model: {layer: value(units) for layer, units in layers_of(model).items()}


def _of_depths(part: Literal["stream", "logit_lens"], key: str) -> Values:
    return lambda model: {each.depth: finite(getattr(each, key)) for each in getattr(model, part)}


def _of_sinks(key: str) -> Values:
    return lambda model: {each.layer: finite(getattr(each, key)) for each in model.sinks}


def _depth_figure(
    key: str, models: Sequence[AnalysedModel], styles: Mapping[str, Style], values: Values, y_label: str
) -> Markup | None:
    """One line per model; None if no model has any value."""
    axis = DepthAxis.of(models)
    curves = {model.name: axis.curve(model, values(model)) for model in models}
    curves = {name: curve for name, curve in curves.items() if not curve.is_empty}
    if not curves:
        return None

    def paint(axes: Axes) -> None:
        _paint_lines(axes, curves, styles)
        label_axes(axes, axis.name, y_label, whole=not axis.is_fraction)

    parts = [f"{shorten(name, 40)} {_extremes(curve)}" for name, curve in curves.items()]
    label = f"{y_label} by {axis.name}. {'; '.join(parts)}."
    return draw(key, label, INCHES, paint, line_legend({name: styles[name] for name in curves}))


def _paint_lines(axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, Style]) -> None:
    for name, curve in curves.items():
        axes.plot(curve.x, curve.y, label=named(name), **styles[name].line)


def _extremes(curve: Curve) -> str:
    low, high = int(np.nanargmin(curve.y)), int(np.nanargmax(curve.y))
    return f"from {si(curve.y[low])} at {tick(curve.x[low])} to {si(curve.y[high])} at {tick(curve.x[high])}"


def _density_figure(analysis: Analysis, styles: Mapping[str, Style]) -> Markup | None:
    """Over all units of all layers."""
    thresholds = np.array(analysis.thresholds)
    curves = {model.name: _density_curve(model, thresholds) for model in analysis.models if model.activations}
    if not curves:
        return None

    def paint(axes: Axes) -> None:
        _paint_lines(axes, curves, styles)
        label_axes(axes, "threshold of the magnitude", "share of the activations beyond")
        axes.set_ylim(0, None)
        if thresholds.min() > 0:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(TickFormatter())
            axes.tick_params(length=0, which="minor")

    middle = len(thresholds) // 2
    values = "; ".join(f"{shorten(name, 40)} {fixed(float(curve.y[middle]), 3)}" for name, curve in curves.items())
    label = f"Share of the activations beyond a threshold, from {thresholds[0]:g} to {thresholds[-1]:g}."
    legend = line_legend({name: styles[name] for name in curves})
    return draw("density", f"{label} At {thresholds[middle]:g}: {values}.", INCHES, paint, legend)


def _density_curve(model: AnalysedModel, thresholds: np.ndarray) -> Curve:
    layers = layers_of(model).values()
    sizes = np.array([units.d_ff for units in layers])
    shares = np.array([[units.density_at(i) for i in range(len(thresholds))] for units in layers])
    return Curve(thresholds, sizes @ shares / sizes.sum())


def _panel_title(layer: int, models: Sequence[AnalysedModel], shown: Mapping[str, LayerUnits]) -> str:
    narrowest = [model.name for model in models if model.name in shown and _is_bottleneck(model, shown[model.name])]
    title = f"Layer {layer}"
    if DepthAxis.of(models).is_fraction:
        title += f" of {max(model.n_layers for model in models)}"
    return title + (f": narrowest of {sequence([shorten(name, 30) for name in narrowest])}" if narrowest else "")


def _is_bottleneck(model: AnalysedModel, units: LayerUnits) -> bool:
    """Whether the layer is the first of the narrowest, in a model whose layers differ."""
    return len(set(model.widths)) > 1 and model.widths.index(min(model.widths)) == units.layer - 1


def _utilisation_figure(key: str, title: str, shown: Mapping[str, LayerUnits], styles: Mapping[str, Style]) -> Markup:
    def paint(axes: Axes) -> None:
        for name, units in shown.items():
            style, shares = styles[name], units.utilisation
            ranks = (np.arange(len(shares)) + 0.5) / len(shares)
            curve = thin(Curve(ranks, shares), N_POINTS)
            look = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.9}
            axes.plot(curve.x, curve.y, label=named(name, f"layer {units.layer}"), **look)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        label_axes(axes, "units, the most used first", "share of the tokens")

    parts = [
        f"{shorten(name, 40)}, layer {units.layer}: median unit {np.median(units.utilisation):.3f}, "
        f"{units.dead_share:.1%} never active"
        for name, units in shown.items()
    ]
    label = f"{clean(title)}: how often each hidden unit is active. {'; '.join(parts)}."
    return draw(key, label, INCHES, paint, line_legend({name: styles[name] for name in shown}))


N_SHOWN = 5
"""Checkpoints of a run that a figure over layers shows: more lines could not be told apart."""


def with_some_checkpoints(analysis: Analysis) -> Analysis:
    """The analysis with at most N_SHOWN checkpoints of each run, spread evenly from the first to the last."""
    left_out = set()
    for own in analysis.courses.values():
        shown = {round(i) for i in np.linspace(0, len(own) - 1, N_SHOWN)}
        left_out |= {model.name for i, model in enumerate(own) if i not in shown}
    return analysis.with_changes(models=[model for model in analysis.models if model.name not in left_out])


def course_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """A figure for each mean over layers, with a line for each run over the tokens of its checkpoints."""
    figures = {}
    for i, mean in enumerate(means(analysis)):
        bundles = []
        for run, models in analysis.courses.items():
            x = np.array([model.tokens for model in models], dtype=float)
            curve = Curve(x, np.array([mean.value(model) for model in models]))
            bundles.append(Bundle(run, styles[run], [curve], curve))
        title = mean.title[:1].upper() + mean.title[1:]
        figures[title] = curve_figure(f"course-{i}", bundles, "tokens", mean.title)
    return panels(figures)
