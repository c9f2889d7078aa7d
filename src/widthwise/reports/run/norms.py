"""How the norms of each layer went on in the course of a run."""

from collections.abc import Mapping

from markupsafe import Markup

from widthwise.records.run import Run
from widthwise.reports.page.curves import of_layer
from widthwise.reports.page.html import Panel, panels
from widthwise.reports.page.plots import Bundle, curve_figure, layer_ticks
from widthwise.reports.page.svg import styles
from widthwise.reports.run.growth import growth_steps

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
