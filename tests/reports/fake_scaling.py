"""Made-up laws on disk: two groups on exact power laws, of which the second needs 80% of the first's x."""

from pathlib import Path
from typing import Any

from page_section import write

A, B, SHARE = 3.0, 0.05, 0.8
SIZES = [2e17, 1e18, 5e18, 2e19]


def interval(mean: float, half_width: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width}


def law(x: float, share: float) -> float:
    return A * (x / share / 1e18) ** -B


def group(name: str, share: float) -> dict[str, Any]:
    a = A * (share * 1e18) ** B
    band = {"x": SIZES, **{end: [by * law(x, share) for x in SIZES] for end, by in (("low", 0.99), ("high", 1.01))}}
    fit = {"form": "y = a*x^-b", "parameters": {"a": interval(a, 0.1), "b": interval(B, 0.004)}, "band": band}
    fit |= {"rms": 0.001, "r_squared": 0.9991, "reason": None}
    points = [{"name": f"{name}-{x:g}", "x": x, "y": law(x, share), "n_seeds": 3} for x in SIZES]
    return {"name": name, "points": points, "fits": {"power": fit}, "chosen": "power"}


def saving(kind: str, ratio: float) -> dict[str, Any]:
    at = {"name": "uniform-2e+19", "x": SIZES[-1], "y": law(SIZES[-1], 1.0)}
    between = {"group": "x", "baseline": "uniform", "fit": "power", "kind": kind}
    return {**between, "at": at, "ratio": interval(ratio, 0.05), "is_extrapolated": kind == "point"}


def scaling_data() -> dict[str, Any]:
    about = {"title": "ladder", "command": "widthwise fit runs/ladder", "created": "2026-11-21T10:00:00+00:00"}
    return {
        **about,
        "confidence": 0.95,
        "x": "training FLOPs",
        "y": "loss",
        "baseline": "uniform",
        "sentence": "x reaches uniform's fitted loss with 80.0% of the training FLOPs.",
        "groups": [group("uniform", 1.0), group("x", SHARE)],
        "savings": [saving("curve", SHARE), saving("point", 0.783)],
    }


def write_scaling(folder: Path) -> Path:
    return write(folder / "scaling.json", scaling_data())
