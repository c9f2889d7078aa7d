"""A made-up sweep on disk: a grid of two keys, groups of one key, a baseline, and points that came to nothing."""

from pathlib import Path
from typing import Any

from fake_comparison import cost, estimate, write_run
from page_section import write

LAYERS, WIDTHS, SINGLE = [0.25, 0.5, 0.75], [0.3, 0.7], [0.3, 0.5]
LAYER_KEY, WIDTH_KEY = "model.shape.bottleneck_layer", "model.shape.bottleneck_width"
BASELINE_LOSS, HALF_WIDTH = 3.5, 0.02
SHAPE = [64, 48, 64]


def difference(layer: float, width: float) -> float:
    """A point of group x minus the baseline in loss: lowest at (0.25, 0.3), where alone the interval excludes 0."""
    return -0.03 + 0.08 * (layer - 0.25) + 0.05 * (width - 0.3)


def finished(name: str, group: str, values: dict[str, Any], offset: float | None) -> dict[str, Any]:
    """offset: difference to the baseline; None for the baseline itself."""
    verdict = "baseline" if offset is None else "better" if offset < -HALF_WIDTH else "cannot tell"
    above = offset or 0.0
    return {
        **unfinished(name, group, values, "finished"),
        "runs": [f"runs/{name}-seed{seed}" for seed in (1, 2, 3)],
        "val_loss": estimate(BASELINE_LOSS + above, HALF_WIDTH, 3),
        "val_bits_per_byte": estimate(2.0 + above, HALF_WIDTH, 3),
        "difference": None if offset is None else estimate(above, HALF_WIDTH, 3),
        "verdict": verdict,
        "cost": cost(SHAPE),
        "ratio": {"params": 1.0, "flops": 0.97},
        "measured": {"training_flops": estimate(5e12, 0, 3)},
    }


def unfinished(name: str, group: str, values: dict[str, Any], state: str, reason: str | None = None) -> dict[str, Any]:
    return {"name": name, "group": group, "values": values, "state": state, "reason": reason}


def sweep_data() -> dict[str, Any]:
    points = [finished("uniform", "", {}, None)]
    for layer in LAYERS:
        for width in WIDTHS:
            name, values = f"x-{layer}-{width}", {LAYER_KEY: layer, WIDTH_KEY: width}
            if (layer, width) == (0.75, 0.7):
                points.append(unfinished(name, "x", values, "failed", "x-0.75-0.7-seed2: the loss is nan at step 31"))
            elif (layer, width) == (0.5, 0.7):
                points.append(unfinished(name, "x", values, "waiting"))
            else:
                points.append(finished(name, "x", values, difference(layer, width)))
    for group, offset in (("growing", 0.012), ("narrowing", -0.004)):
        points += [finished(f"{group}-{width}", group, {WIDTH_KEY: width}, offset + 0.01 * width) for width in SINGLE]
    single = {WIDTH_KEY: SINGLE}
    study = {"storage": "postgresql://studies/shapes", "sampler": "grid", "n_failed": 1}
    about = {"title": "shapes", "command": "widthwise sweep configs/shapes.yaml"}
    about |= {"created": "2026-11-21T10:00:00+00:00", "confidence": 0.95, "seeds": [1, 2, 3]}
    return {
        **about,
        "matched": "params",
        "baseline": "uniform",
        "judged": [
            {"name": name, "beside": "uniform", "n_points": n, "difference": estimate(mean, HALF_WIDTH * factor, 3)}
            | {"confidence": level, "verdict": verdict}
            for name, n, mean, factor, level, verdict in (
                ("x-0.25-0.3", 8, difference(0.25, 0.3), 2, 0.99375, "cannot tell"),
                ("growing", 2, 0.035, 1, 0.95, "worse"),
            )
        ],
        "environment": {"python": "3.11.7", "torch": "2.13.0"},
        "axes": {"x": {LAYER_KEY: LAYERS, WIDTH_KEY: WIDTHS}, "growing": single, "narrowing": single},
        "points": points,
        "study": {**study, "n_points": len(points), "n_finished": len(points) - 2},
    }


def without_baseline(data: dict[str, Any]) -> dict[str, Any]:
    """The same sweep of a recipe that names none."""
    points = [
        {**point, **({"difference": None, "verdict": None, "ratio": {}} if point["state"] == "finished" else {})}
        for point in data["points"]
        if point["name"] != "uniform"
    ]
    return {**data, "baseline": None, "points": points, "judged": []}


def with_wide_grid(data: dict[str, Any]) -> dict[str, Any]:
    """The same sweep with a grid of nine by six, of which three points have finished."""
    layers, widths = [i / 10 for i in range(1, 10)], [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    points = []
    for layer in layers:
        for width in widths:
            name, values = f"wide-{layer}-{width}", {LAYER_KEY: layer, WIDTH_KEY: width}
            point = unfinished(name, "wide", values, "waiting")
            points.append(finished(name, "wide", values, difference(layer, width)) if layer == width < 0.5 else point)
    axes = {**data["axes"], "wide": {LAYER_KEY: layers, WIDTH_KEY: widths}}
    return {**data, "points": [*data["points"], *points], "axes": axes}


def write_sweep(folder: Path, data: dict[str, Any] | None = None, n_seeds_here: int = 1) -> Path:
    """n_seeds_here: how many runs of each point lie in this folder."""
    data = sweep_data() if data is None else data
    write(folder / "outcome.json", data)
    for point in data["points"]:
        for seed, run in enumerate(point.get("runs", ())[:n_seeds_here], start=1):
            write_run(folder / run, point["name"], seed, SHAPE, point["val_loss"]["mean"] - 3, n_records=20)
    return folder
