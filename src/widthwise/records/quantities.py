"""All quantities of a model, a run or a variant that tables, figures, CSV files and fits show.

A new quantity needs one entry here, and its definition in reports/quantities.yaml.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from typing import Any, ClassVar

from widthwise.records.cost import PARTS, CostSummary
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Variant
from widthwise.records.record import Number, finite
from widthwise.records.run import RunResult

MOST_MTP_DEPTHS = 16
"""Largest number of tokens that multi-token prediction predicts after the next token."""
SPEED = "tokens_per_second"
"""The quantity that depends on other processes on the machine."""
RUN_COSTS = ("training_flops", "pflops_days", "peak_memory_bytes")
"""Quantities measured in training that tables of costs show next to the counted ones."""


@dataclass(frozen=True)
class Quantity(ABC):
    """A number of a model, a run or a comparison with a baseline, and its format in tables."""

    name: str
    """Name in recipes, on the command line and among ratios."""
    title: str
    """Title in tables and figures, with the unit."""
    _: KW_ONLY
    short: str = ""
    """Title on a terminal, if `title` is too long."""
    n_decimals: int | None = None
    """Decimals shown; None: three significant digits with a decimal prefix."""
    is_main: bool = False
    """True if the main table of a comparison shows the quantity."""
    has_ratio: bool = False
    """True if comparisons give the ratio to the baseline."""
    is_signed: ClassVar[bool] = False
    """True for differences, which are shown with their sign."""

    @property
    def csv_column(self) -> str:
        return self.name

    @property
    def brief_title(self) -> str:
        """Title in tables on a terminal."""
        return self.short or self.title

    def over_seeds(self, results: Sequence[RunResult]) -> list[float]:
        """Return one value per seed; NaN if unknown."""
        return [finite(self.of_run(result)) for result in results]

    def of_run(self, result: RunResult) -> Number | None:
        """Return the value for a run; None if unknown."""
        return None

    @abstractmethod
    def of_variant(self, variant: Variant) -> Estimate | None:
        """Return the mean for a variant, without an interval if all seeds have the same value; None if unknown."""

    def value(self, subject: Variant | RunResult) -> float | None:
        """Return the value for a run, or the mean over the seeds of a variant."""
        if isinstance(subject, RunResult):
            return self.of_run(subject)
        estimate = self.of_variant(subject)
        return None if estimate is None else estimate.mean

    def ratio(self, variant: Variant, baseline: Variant) -> float | None:
        """Return the ratio to the baseline: the recorded one, or else the ratio of the means.

        None if a value is unknown or the baseline's is 0, and for the speed if other processes used the machine.
        """
        if self.name == SPEED and (variant.shares_machine or baseline.shares_machine):
            return None
        if self.name in variant.ratio:
            return variant.ratio[self.name]
        value = self.value(variant)
        reference = self.value(baseline)
        return None if value is None or not reference else value / reference


@dataclass(frozen=True, kw_only=True)
class ModelCost(Quantity):
    """A size or cost of the last model, counted from its config: a field of CostSummary."""

    path: str = ""
    """Fields and keys in a CostSummary, joined by dots; default: the field `name`."""
    column: str = ""
    """Column in CSV files; default: the path with underscores."""

    @property
    def csv_column(self) -> str:
        return self.column or self.path.replace(".", "_") or self.name

    def read(self, cost: CostSummary) -> Number | None:
        """Return the value for a model; None if unknown."""
        value: Any = cost
        for key in (self.path or self.name).split("."):
            value = value.get(key) if isinstance(value, Mapping) else getattr(value, key)
        return value

    def of_cost(self, cost: CostSummary) -> Number:
        """Return the value for a newly counted model. Not for `dead_params` and sizes of slots, which it may lack."""
        value = self.read(cost)
        assert value is not None
        return value

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result.cost)

    def of_variant(self, variant: Variant) -> Estimate | None:
        value = self.read(variant.cost)
        return None if value is None else Estimate(mean=value)


class RunQuantity(Quantity):
    """A quantity measured in training: a field of RunResult."""

    def of_run(self, result: RunResult) -> Number | None:
        return getattr(result, self.name)

    def of_variant(self, variant: Variant) -> Estimate | None:
        return variant.measured.get(self.name) or getattr(variant, self.name, None)


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss(RunQuantity):
    """A loss on held-out text."""

    depth: int = 0
    """Depth of multi-token prediction; 0 for the next token."""

    def at_depth(self, of_model: Any, of_mtp: Sequence[Any] | None) -> Any:
        """Return the value at this depth; None if missing. of_model: at depth 0; of_mtp: at depths 1, 2, ..."""
        values = (of_model, *(of_mtp or ()))
        return values[self.depth] if self.depth < len(values) else None

    def of_run(self, result: RunResult) -> Number | None:
        return self.at_depth(result.val_loss, result.val_mtp_losses)

    def windows(self, run: RunResult) -> Sequence[float]:
        """Return the mean loss of every held-out window, for paired differences; empty if unknown."""
        return self.at_depth(run.val_window_losses, run.val_mtp_window_losses) or ()


@dataclass(frozen=True, kw_only=True)
class LossDifference(Quantity):
    """A loss minus the baseline's loss."""

    loss: str
    n_decimals: int | None = 4
    is_signed = True

    def of_variant(self, variant: Variant) -> Estimate | None:
        return variant.difference if self.loss == "val_loss" else variant.differences.get(self.loss)


@dataclass(frozen=True, kw_only=True)
class EqualLossQuantity(Quantity):
    """The cost of reaching the same held-out loss as the baseline."""

    loss: str
    field: str
    """Name of the field of `EqualLoss` that holds the quantity."""

    def of_variant(self, variant: Variant) -> Estimate | None:
        costs = variant.at_equal_loss.get(self.loss)
        return None if costs is None else getattr(costs, self.field)


def _mtp_losses(depth: int) -> Iterator[Quantity]:
    """Yield the loss of a depth of multi-token prediction and its difference, named by the position of the token."""
    loss = f"val_loss_next_{depth + 1}"
    token = f"next-{depth + 1}"
    yield HeldOutLoss(loss, f"{token} held-out loss", short=f"loss {token}", n_decimals=4, is_main=True, depth=depth)
    yield LossDifference(f"difference_next_{depth + 1}", f"difference, {token}", is_main=True, loss=loss)


def _at_equal_loss(depth: int) -> Iterator[Quantity]:
    """Yield tokens and FLOPs to equal held-out loss, as ratios and as numbers. depth: of `HeldOutLoss`."""
    suffix = "" if depth == 0 else f"_next_{depth + 1}"
    token = "" if depth == 0 else f"next-{depth + 1} "
    loss = f"val_loss{suffix}"
    titles = {"tokens": "tokens", "training_flops": "training FLOPs"}
    for key, title in titles.items():
        name = f"{key}_at_equal_loss{suffix}"
        at_equal = f"{title} at equal {token}loss"
        yield EqualLossQuantity(name, at_equal, n_decimals=3, is_main=depth == 0, loss=loss, field=f"{key}_ratio")
    for key, title in titles.items():
        to_baseline = f"{title} to the baseline's {token}loss"
        yield EqualLossQuantity(f"{key}_to_baseline_loss{suffix}", to_baseline, loss=loss, field=key)


QUANTITIES: Sequence[Quantity] = (
    RunQuantity("steps", "steps", n_decimals=0),
    RunQuantity("tokens", "tokens"),
    HeldOutLoss("val_loss", "held-out loss", short="loss", n_decimals=4, is_main=True),
    LossDifference("difference", "difference", short="diff", is_main=True, loss="val_loss"),
    *chain.from_iterable(_mtp_losses(depth) for depth in range(1, MOST_MTP_DEPTHS + 1)),
    *chain.from_iterable(_at_equal_loss(depth) for depth in range(MOST_MTP_DEPTHS + 1)),
    RunQuantity("train_loss", "training loss", n_decimals=4, is_main=True),
    LossDifference("difference_train_loss", "difference, training loss", loss="train_loss"),
    RunQuantity("val_perplexity", "perplexity", n_decimals=2),
    RunQuantity("val_bits_per_byte", "bits per byte", short="bits/B", n_decimals=4, is_main=True, has_ratio=True),
    ModelCost(
        "params", "parameters", short="params", path="params.total", column="params", is_main=True, has_ratio=True
    ),
    *(ModelCost(f"params_{part}", f"parameters, {part}", path=f"params.{part}") for part in PARTS),
    ModelCost("layer_params", "parameters, layers without norms", short="layer params", is_main=True, has_ratio=True),
    ModelCost("active_params", "parameters, active", short="active", path="params.active", has_ratio=True),
    ModelCost("dead_params", "parameters that never learn", short="dead", is_main=True),
    ModelCost(
        "flops", "FLOPs per token, forward", short="FLOPs", path="flops_per_token.forward", is_main=True, has_ratio=True
    ),
    # Forward FLOPs exclude multi-token prediction.
    *(
        ModelCost(
            f"flops_{part}", f"FLOPs per token, forward, {part}", path=f"flops_by_part.{part}", column=f"flops_{part}"
        )
        for part in PARTS
        if part != "mtp"
    ),
    ModelCost(
        "flops_causal", "FLOPs per token, forward, causal", path="flops_per_token.forward_causal", has_ratio=True
    ),
    ModelCost("flops_training", "FLOPs per token, training", path="flops_per_token.training"),
    ModelCost("flops_training_mtp", "FLOPs per token, training, mtp", path="flops_per_token.training_mtp"),
    ModelCost("d_model", "d_model", n_decimals=0),
    ModelCost("average_width", "average width", short="width", n_decimals=1, is_main=True, has_ratio=True),
    ModelCost("stream_width", "width of the stream", n_decimals=0),
    ModelCost("virtual_width", "virtual width, times d_model", n_decimals=2),
    ModelCost(
        "kv_bytes", "KV bytes per token (bf16)", short="KV B", path="kv_bytes_per_token", is_main=True, has_ratio=True
    ),
    ModelCost(
        "activation_bytes",
        "activation bytes per token (bf16)",
        short="act. B",
        path="activation_bytes_per_token",
        has_ratio=True,
    ),
    RunQuantity(SPEED, "tokens per second", short="tok/s", is_main=True, has_ratio=True),
    RunQuantity("wall_seconds", "seconds", n_decimals=1),
    RunQuantity("training_flops", "training FLOPs", has_ratio=True),
    RunQuantity("pflops_days", "PFLOP/s-days", is_main=True),
    RunQuantity("peak_memory_bytes", "peak memory in bytes", is_main=True),
)
QUANTITY = {quantity.name: quantity for quantity in QUANTITIES}
TITLES = {quantity.name: quantity.title for quantity in QUANTITIES}
MODEL_COSTS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, ModelCost)}
RUN_QUANTITIES = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, RunQuantity)}
HELD_OUT_LOSSES = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, HeldOutLoss)}
SHAPE_COSTS = [MODEL_COSTS[name] for name in ("params", "layer_params", "flops", "kv_bytes", "activation_bytes")]
"""Costs that searches, plans and inspections show of a shape."""
LOSSES = (*HELD_OUT_LOSSES, "train_loss", "val_bits_per_byte")
"""Quantities that measure the quality of a model, to which laws can be fitted."""
