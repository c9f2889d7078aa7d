"""Tokens and training FLOPs at which two variants have the same held-out loss, from the validations of their runs.

A run reaches a loss where the line through its validations first comes down to it, over the logarithm of tokens, over
which a loss falls almost straight. Two runs of a seed are compared at the higher of their final losses, which both
reach (`records.estimate`): so the ratio always has a value, that of the baseline to the variant is its inverse, and
nothing is extrapolated. Ratios are averaged over seeds by their logarithms. The virtual-width paper (arXiv:2511.11238,
Fig. 1) states the inverse of the ratio, the variable-width paper's savings are 1 minus it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.experiments.statistics import seed_interval
from widthwise.records.estimate import EqualLoss, Estimate, OverTokens, Validations
from widthwise.records.quantities import OF_HELD_OUT
from widthwise.records.record import finite

FEWEST_VALIDATIONS = 5
"""Fewer points do not draw a curve."""


@dataclass(frozen=True)
class LossCurve:
    """The held-out losses in the course of one run; arrays with one entry per validation, in order of time."""

    tokens: np.ndarray
    training_flops: np.ndarray
    losses: Mapping[str, np.ndarray]
    """Name of a loss -> its values, for those that every validation has."""
    final_lr_share: float = float("nan")
    """Learning rate of the last step over the highest."""

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> "LossCurve":
        """Read the records of metrics.jsonl."""
        records = list(records)
        by_step = {each["step"]: each for each in records if each["event"] == "validation"}
        validations = [by_step[step] for step in sorted(by_step)]
        values = {
            name: np.array([finite(loss.at_depth(each["loss"], each.get("mtp_losses"))) for each in validations])
            for name, loss in OF_HELD_OUT.items()
        }
        rates = [finite(each.get("lr")) for each in records if each["event"] == "train"]
        return cls(
            np.array([finite(each["tokens"]) for each in validations]),
            np.array([finite(each["training_flops"]) for each in validations]),
            {name: own for name, own in values.items() if len(own) and np.isfinite(own).all()},
            rates[-1] / max(rates) if rates and max(rates) > 0 else float("nan"),
        )

    def tokens_at(self, loss: str, level: float) -> float:
        """Return the tokens at which a loss first comes down to a level.

        NaN if that is unknown: the run never comes down to it, or was below it at its first validation.
        """
        values, positions = self.losses[loss], np.log(self.tokens)
        reached = np.flatnonzero(values <= level)
        if not len(reached) or (reached[0] == 0 and values[0] < level):
            return float("nan")
        i = reached[0]
        if values[i] == level:
            return float(self.tokens[i])
        share = (values[i - 1] - level) / (values[i - 1] - values[i])
        return float(np.exp(positions[i - 1] + share * (positions[i] - positions[i - 1])))

    def flops_at(self, tokens: float) -> float:
        """Return the training FLOPs after so many tokens. Between two validations they are in proportion to tokens."""
        return float(np.interp(tokens, self.tokens, self.training_flops))


LossCurves = Sequence[LossCurve]
"""One per seed, in the order of the seeds."""


def validations_of(curves: Iterable[LossCurve]) -> Validations:
    """Return the validations that all runs of a comparison have in common."""
    curves = list(curves)
    shares = [curve.final_lr_share for curve in curves if np.isfinite(curve.final_lr_share)]
    return Validations(
        n_fewest=min(len(curve.tokens) for curve in curves),
        n_needed=FEWEST_VALIDATIONS,
        final_lr_share=min(shares, default=None),
    )


def equal_losses(own: LossCurves, baseline: LossCurves) -> dict[str, EqualLoss]:
    """Return name of a held-out loss -> tokens and FLOPs that both need for it, for the losses that both have."""
    found: dict[str, EqualLoss] = {}
    for loss in _common(own, baseline):
        tokens, flops, tokens_ratios, flops_ratios, n_reached = [], [], [], [], 0
        for mine, other in zip(own, baseline, strict=True):
            target, end = float(other.losses[loss][-1]), float(mine.losses[loss][-1])
            n_reached += bool((mine.losses[loss] <= target).any())
            tokens.append(mine.tokens_at(loss, target))
            flops.append(mine.flops_at(tokens[-1]))
            at = [curve.tokens_at(loss, max(target, end)) for curve in (mine, other)]
            tokens_ratios.append(at[0] / at[1])
            flops_ratios.append(mine.flops_at(at[0]) / other.flops_at(at[1]))
        found[loss] = EqualLoss(
            n_reached=n_reached,
            tokens=seed_interval(tokens),
            training_flops=seed_interval(flops),
            tokens_ratio=_geometric(tokens_ratios),
            training_flops_ratio=_geometric(flops_ratios),
        )
    return found


def tokens_ratios(own: LossCurves, baseline: LossCurves) -> dict[str, OverTokens]:
    """Return name of a held-out loss -> tokens to the baseline's loss over the baseline's tokens, at each of its
    validations; for the losses that both have."""

    def ratios(loss: str, mine: LossCurve, other: LossCurve) -> dict[float, float]:
        levels = zip(other.tokens.tolist(), other.losses[loss].tolist())
        found = {at: mine.tokens_at(loss, level) / other.tokens_at(loss, level) for at, level in levels}
        return {at: ratio for at, ratio in found.items() if np.isfinite(ratio)}

    return _over_tokens(own, baseline, ratios, _geometric)


def gaps(own: LossCurves, baseline: LossCurves) -> dict[str, OverTokens]:
    """Return name of a held-out loss -> its difference to the baseline's over tokens, for the losses that both have.

    At the variant's validations that every seed has, within the range of the baseline's, which is interpolated over the
    logarithm of tokens.
    """

    def gap(loss: str, mine: LossCurve, other: LossCurve) -> dict[float, float]:
        inside = (mine.tokens >= other.tokens[0]) & (mine.tokens <= other.tokens[-1])
        at = mine.tokens[inside]
        gap = mine.losses[loss][inside] - np.interp(np.log(at), np.log(other.tokens), other.losses[loss])
        return dict(zip(at.tolist(), gap.tolist()))

    return _over_tokens(own, baseline, gap, seed_interval)


def _common(own: LossCurves, baseline: LossCurves) -> list[str]:
    """Return the losses that all runs have; none without runs."""
    curves = (*own, *baseline)
    return [name for name in OF_HELD_OUT if curves and all(name in curve.losses for curve in curves)]


def _geometric(ratios: Sequence[float]) -> Estimate:
    """Return the geometric mean; its interval comes from the mean logarithm."""
    of_logarithm = seed_interval(np.log(ratios).tolist())
    mean, low, high = (float(np.exp(finite(end))) for end in (of_logarithm.mean, of_logarithm.low, of_logarithm.high))
    return Estimate(mean=mean, low=low, high=high, per_seed=list(ratios))


def _over_tokens(
    own: LossCurves,
    baseline: LossCurves,
    values: Callable[[str, LossCurve, LossCurve], Mapping[float, float]],
    estimate: Callable[[list[float]], Estimate],
) -> dict[str, OverTokens]:
    """Return name of a loss -> estimates at the tokens where every seed has a value.

    values: of a loss in the two runs of a seed, tokens -> value.
    """
    found: dict[str, OverTokens] = {}
    for loss in _common(own, baseline):
        of_seeds = [values(loss, mine, other) for mine, other in zip(own, baseline, strict=True)]
        if tokens := sorted(set(of_seeds[0]).intersection(*of_seeds[1:])):
            estimates = [estimate([each[at] for each in of_seeds]) for at in tokens]
            found[loss] = OverTokens(
                tokens=tokens,
                mean=[each.mean for each in estimates],
                low=[each.low for each in estimates],
                high=[each.high for each in estimates],
            )
    return found
