"""A made-up analysis on disk: two or more models whose numbers follow simple rules."""

from pathlib import Path
from typing import Any

from page_section import write


def model(name: str, widths: list[int], level: float, n_blocks: int = 1) -> dict[str, Any]:
    """Layers with 10 units a block, of which unit u is active for the share level * u / 10 of the tokens."""
    n_layers = len(widths)
    layers, depths, blocks = range(1, n_layers + 1), range(n_layers + 1), range(1, n_blocks + 1)
    units = {"d_ff": 10, "density": [0.9 * level, 0.45 * level, 0.1 * level], "dead_share": 0.1}
    units["utilisation"] = [level * unit / 10 for unit in range(10)]
    activations = [
        {"layer": layer, "block": block, **units}
        | {"participation": 2.0 + layer, "participation_share": (2.0 + layer) / 10}
        for layer in layers
        for block in blocks
    ]
    stream = [
        {"depth": depth, "entropy": level / (1 + depth), "width": max(widths), "rank": max(widths), "participation": 3}
        for depth in depths
    ]
    lens = [
        {"depth": depth, "target_log_prob": -6.0 + depth * level, "entropy": 5.0 - depth * level}
        | {"kl_to_next": None if depth == n_layers else 0.5 * level}
        for depth in depths
    ]
    sinks = [
        {"layer": layer, "first_token_share": 0.1 * level * layer, "heads": [0.0, 0.2 * layer], "norm_ratio": 40.0}
        for layer in layers
    ]
    about = {"name": name, "source": f"runs/{name}", "kind": "widthwise", "step": 900, "n_tokens": 8192}
    measured = {"activations": activations, "stream": stream, "logit_lens": lens, "sinks": sinks}
    return {**about, "d_model": widths[0], "widths": widths, **measured}


def write_analysis(folder: Path, *models: dict[str, Any]) -> Path:
    """A folder with an analysis.json; by default of a uniform model and an x-shaped one."""
    models = models or (model("uniform", [64] * 4, 0.5), model("x", [96, 64, 32, 96], 0.8))
    about = {"title": "two models", "command": "widthwise analyze", "created": "2026-11-21T10:00:00+00:00"}
    about["text"] = {"source": "held-out documents of python-stdlib", "seq_len": 256, "n_tokens": 8192}
    levels = {"thresholds": [0.01, 0.1, 1.0], "utilisation_threshold": 0.1}
    return write(folder / "analysis.json", {**about, **levels, "models": list(models)})
