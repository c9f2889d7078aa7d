"""With how much of a baseline's compute, or width, a group of models reaches the same loss.

Curve against curve: the target loss is that of the baseline's curve at its largest model, so the noise of one model
counts little. Point against curve: the target loss is the one that the baseline's largest model has. The two together
show how much depends on that one model: 77.6% and 74.4% of the FLOPs for the variable-width paper's Table 2.
"""

from typing import Literal

import numpy as np

from widthwise.experiments.scaling.law_fit import Fit, t_interval
from widthwise.records.scaling import Saving, ScalingPoint


def savings(group: Fit, baseline: Fit, confidence: float) -> list[Saving]:
    """The savings curve against curve and point against curve. Both fits are of the same law.

    Intervals are computed for the ratio's logarithm. Resamples are paired if the groups have the same layout
    (`law_fit`); otherwise the degrees of freedom are those of Welch and Satterthwaite.
    """
    law, i = baseline.law, baseline.group.largest
    point = baseline.group.points[i]
    y_curve = law.y(baseline.parameters, np.array(point.x))
    y_drawn_curve = law.y(baseline.drawn_parameters, np.array(point.x))
    y_drawn_point = law.from_residual_scale(law.residual_scale(np.array(point.y)) + baseline.noise[:, i])
    return [
        _saving("curve", group, baseline, float(y_curve), y_drawn_curve, confidence),
        _saving("point", group, baseline, point.y, y_drawn_point, confidence),
    ]


def _saving(
    kind: Literal["curve", "point"], group: Fit, baseline: Fit, y: float, y_drawn: np.ndarray, confidence: float
) -> Saving:
    """y: the target loss; y_drawn: (n_draws,) the same in the resamples of the baseline."""
    law, point = group.law, baseline.group.points[baseline.group.largest]
    x, y_here = float(law.x(group.parameters, np.array(y))), np.array(y)
    drawn = law.x(group.drawn_parameters, y_drawn)
    n_free = float(group.degrees_of_freedom)
    if group.group.layout != baseline.group.layout:
        own, others = law.x(group.drawn_parameters, y_here), law.x(group.parameters, y_drawn)
        n_free = _welch(own / x, group.degrees_of_freedom, others / x, baseline.degrees_of_freedom)
    return Saving(
        group=group.group.name,
        baseline=baseline.group.name,
        fit=law.kind,
        kind=kind,
        at=ScalingPoint(name=point.name, x=point.x, y=y),
        ratio=t_interval(x / point.x, drawn / point.x, n_free, confidence, as_factor=True),
        is_extrapolated=not bool(group.group.x.min() <= x <= group.group.x.max()),
    )


def _welch(first: np.ndarray, first_free: int, second: np.ndarray, second_free: int) -> float:
    """Degrees of freedom of a sum of two independent errors, here of logarithms of resampled values."""
    variances = np.array([np.log(first).var(), np.log(second).var()])
    weighted = (variances**2 / np.array([first_free, second_free])).sum()
    return float(variances.sum() ** 2 / weighted) if weighted > 0 else float(first_free + second_free)
