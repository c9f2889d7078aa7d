"""Tokens and training FLOPs at which two variants have the same held-out loss, from the validations of their runs.

Losses are interpolated linearly over the logarithm of tokens, where a loss curve is nearly straight. Two runs of a seed
are compared at the higher of their final losses, which both reach (`records.estimate`). So the ratio always has a
value, exchanging baseline and variant inverts it, and nothing is extrapolated. Ratios are averaged over seeds by their
logarithms. The virtual-width paper (arXiv:2511.11238, Fig. 1) states the inverse of the ratio; the savings of the
variable-width paper are 1 minus the ratio.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widthwise.evaluation.estimate import seed_interval
from widthwise.records.estimate import EqualLoss, Estimate, OverTokens, Validations
from widthwise.records.quantities import HELD_OUT_LOSSES
from widthwise.records.record import finite

FEWEST_VALIDATIONS = 5
"""Fewer points do not determine a curve."""


@dataclass(frozen=True)
class LossCurve:
    """The held-out losses of one run over training; arrays have one entry per validation, in order of steps."""

    tokens: np.ndarray
    training_flops: np.ndarray
    losses: Mapping[str, np.ndarray]
    """Dict from loss to its values, for the losses that every validation has."""
    final_lr_share: float = float("nan")
    """Learning rate of the last step over the highest one."""

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> "LossCurve":
        """Read the records of metrics.jsonl."""
        records = list(records)
        by_step = {record["step"]: record for record in records if record["event"] == "validation"}
        validations = [by_step[step] for step in sorted(by_step)]
        losses = dict[str, np.ndarray]()
        for name, loss in HELD_OUT_LOSSES.items():
            values = np.array([finite(loss.at_depth(row.get("loss"), row.get("mtp_losses"))) for row in validations])
            if len(values) and np.isfinite(values).all():
                losses[name] = values
        rates = [finite(record.get("lr")) for record in records if record["event"] == "train"]
        return cls(
            tokens=np.array([finite(validation.get("tokens")) for validation in validations]),
            training_flops=np.array([finite(validation.get("training_flops")) for validation in validations]),
            losses=losses,
            final_lr_share=rates[-1] / max(rates) if rates and max(rates) > 0 else float("nan"),
        )

    def tokens_at(self, loss: str, level: float) -> float:
        """Return the tokens at which a loss first falls to a level.

        NaN if unknown: the run never reaches the level, or was below it at its first validation.
        """
        values = self.losses[loss]
        log_tokens = np.log(self.tokens)
        reached = np.flatnonzero(values <= level)
        if not len(reached) or (reached[0] == 0 and values[0] < level):
            return float("nan")
        i = reached[0]
        if values[i] == level:
            return float(self.tokens[i])
        share = (values[i - 1] - level) / (values[i - 1] - values[i])
        return float(np.exp(log_tokens[i - 1] + share * (log_tokens[i] - log_tokens[i - 1])))

    def flops_at(self, tokens: float) -> float:
        """Return the training FLOPs after a number of tokens, interpolated linearly between validations."""
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


def equal_losses(variant: LossCurves, baseline: LossCurves) -> dict[str, EqualLoss]:
    """Return a dict from each held-out loss that all runs have to the tokens and FLOPs to equal loss."""
    equal = dict[str, EqualLoss]()
    for loss in _common_losses(variant, baseline):
        targets = [float(base_run.losses[loss][-1]) for base_run in baseline]
        tokens = [run.tokens_at(loss, target) for run, target in zip(variant, targets, strict=True)]
        tokens_ratios = list[float]()
        flops_ratios = list[float]()
        for run, base_run, target in zip(variant, baseline, targets, strict=True):
            common_loss = max(target, float(run.losses[loss][-1]))
            run_tokens = run.tokens_at(loss, common_loss)
            base_tokens = base_run.tokens_at(loss, common_loss)
            tokens_ratios.append(run_tokens / base_tokens)
            flops_ratios.append(run.flops_at(run_tokens) / base_run.flops_at(base_tokens))
        equal[loss] = EqualLoss(
            n_reached=sum(bool((run.losses[loss] <= target).any()) for run, target in zip(variant, targets)),
            tokens=seed_interval(tokens),
            training_flops=seed_interval([run.flops_at(n_tokens) for run, n_tokens in zip(variant, tokens)]),
            tokens_ratio=_geometric_mean(tokens_ratios),
            training_flops_ratio=_geometric_mean(flops_ratios),
        )
    return equal


def tokens_ratios(variant: LossCurves, baseline: LossCurves) -> dict[str, OverTokens]:
    """Return a dict from each held-out loss that all runs have to the ratio of tokens to equal loss over training.

    At each validation of the baseline, the ratio is the variant's tokens to the baseline's loss over the baseline's.
    """

    def ratios(loss: str, run: LossCurve, base_run: LossCurve) -> dict[float, float]:
        by_tokens = dict[float, float]()
        for tokens, level in zip(base_run.tokens.tolist(), base_run.losses[loss].tolist()):
            ratio = run.tokens_at(loss, level) / base_run.tokens_at(loss, level)
            if np.isfinite(ratio):
                by_tokens[tokens] = ratio
        return by_tokens

    return _over_tokens(variant, baseline, ratios, _geometric_mean)


def gaps(variant: LossCurves, baseline: LossCurves) -> dict[str, OverTokens]:
    """Return a dict from each held-out loss that all runs have to its difference to the baseline over tokens.

    The difference is taken at the variant's validations that every seed has, inside the range of the baseline's tokens;
    the baseline is interpolated over the logarithm of tokens.
    """

    def gap(loss: str, run: LossCurve, base_run: LossCurve) -> dict[float, float]:
        is_inside = (run.tokens >= base_run.tokens[0]) & (run.tokens <= base_run.tokens[-1])
        tokens = run.tokens[is_inside]
        baseline_loss = np.interp(np.log(tokens), np.log(base_run.tokens), base_run.losses[loss])
        return dict(zip(tokens.tolist(), (run.losses[loss][is_inside] - baseline_loss).tolist()))

    return _over_tokens(variant, baseline, gap, seed_interval)


def _common_losses(variant: LossCurves, baseline: LossCurves) -> list[str]:
    """Return the losses that all runs have; none without runs."""
    curves = (*variant, *baseline)
    return [name for name in HELD_OUT_LOSSES if curves and all(name in curve.losses for curve in curves)]


def _geometric_mean(ratios: Sequence[float]) -> Estimate:
    """Return the geometric mean over seeds, with the interval of the mean logarithm."""
    log_mean = seed_interval(np.log(ratios).tolist())
    mean, low, high = (float(np.exp(finite(value))) for value in (log_mean.mean, log_mean.low, log_mean.high))
    return Estimate(mean=mean, low=low, high=high, per_seed=list(ratios))


def _over_tokens(
    variant: LossCurves,
    baseline: LossCurves,
    values: Callable[[str, LossCurve, LossCurve], Mapping[float, float]],
    estimate: Callable[[list[float]], Estimate],
) -> dict[str, OverTokens]:
    """Return a dict from each common loss to estimates at the tokens where every seed has a value.

    values: function of a loss and the two runs of a seed that returns a dict from tokens to value.
    """
    over_tokens = dict[str, OverTokens]()
    for loss in _common_losses(variant, baseline):
        by_seed = [values(loss, run, base_run) for run, base_run in zip(variant, baseline, strict=True)]
        if tokens := sorted(set(by_seed[0]).intersection(*by_seed[1:])):
            estimates = [estimate([by_tokens[n] for by_tokens in by_seed]) for n in tokens]
            over_tokens[loss] = OverTokens(
                tokens=tokens,
                mean=[point.mean for point in estimates],
                low=[point.low for point in estimates],
                high=[point.high for point in estimates],
            )
    return over_tokens
