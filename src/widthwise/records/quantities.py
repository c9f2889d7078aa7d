"""The table of quantities that tables, figures, CSV, trends and fits show of a model, a run or a variant.

A new quantity is one entry of QUANTITIES, with its definition in NOTES; everything else reads it there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from widthwise.records.cost import PARTS, CostSummary, sum_of
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Variant
from widthwise.records.record import Number, finite
from widthwise.records.run import RunResult

MOST_MTP_DEPTHS = 16
"""Tokens that multi-token prediction may predict beyond the next one."""


@dataclass(frozen=True)
class Quantity(ABC):
    """A number that models, runs or comparisons of two have, and how tables show it."""

    name: str
    """Its name in recipes, on the command line and among ratios."""
    title: str
    """Its title in tables and figures, with its unit."""
    n_decimals: int | None = None
    """Decimals shown; None: three significant digits with a decimal prefix."""
    getter: Callable[[Any], Any] | None = field(default=None, repr=False)
    """Takes the number from a record; None: it stands at `path`."""
    note: str = ""
    """Its definition, for the footnotes of the main table; formatted with `confidence` and `baseline`."""
    short: str = ""
    """Its title on a terminal, if `title` is too long there."""
    path: str = ""
    """Its place in a record, if that is not the field `name`: fields and keys with dots between."""
    is_main: bool = False
    """The main table of a comparison shows it."""
    is_loss: bool = False
    """It measures the quality of a model, so that laws can be fitted to it."""
    has_ratio: bool = False
    """Comparisons give its ratio to the baseline's."""
    is_cost: bool = False
    """Tables of costs show it, though it was measured in training; counted quantities need no mark."""
    is_shape_cost: bool = False
    """Searches, plans and inspections show it of a shape."""
    is_speed: bool = False
    """Other processes on the machine change it."""
    is_signed: bool = False
    """It is a difference, shown with its sign."""
    is_judged: bool = False
    """The verdict is about it, and shown next to it."""

    @property
    def csv_column(self) -> str:
        return self.path.replace(".", "_") or self.name

    @property
    def brief_title(self) -> str:
        """The title for tables on a terminal."""
        return self.short or self.title

    @property
    def bare_title(self) -> str:
        """The title without a unit, for ratios."""
        return self.title.replace(" per token", "")

    def read(self, record: Any) -> Any:
        """Return the number that a record has; None if it lacks it."""
        if self.getter is not None:
            return self.getter(record)
        for key in (self.path or self.name).split("."):
            record = record.get(key) if isinstance(record, Mapping) else getattr(record, key)
        return record

    def over_seeds(self, results: Sequence[RunResult]) -> list[float]:
        """Return one value per seed; NaN for a run that lacks it."""
        return [finite(self.of_run(result)) for result in results]

    @abstractmethod
    def of_run(self, result: RunResult) -> Number | None:
        """Return its value for a run; None if the run lacks it."""

    @abstractmethod
    def of_variant(self, variant: Variant) -> Estimate | None:
        """Return its mean for a variant; None if the variant lacks it; without an interval if all seeds have the same
        value."""

    def value(self, subject: Variant | RunResult) -> float | None:
        """Return the value for a run, or the mean over the seeds of a variant."""
        if isinstance(subject, RunResult):
            return self.of_run(subject)
        estimate = self.of_variant(subject)
        return None if estimate is None else estimate.mean

    def ratio(self, variant: Variant, baseline: Variant) -> float | None:
        """Return the ratio to the baseline's value: as the comparison recorded it, otherwise that of the means.

        None if one is missing, and for speeds if other processes used the machine meanwhile.
        """
        if self.is_speed and (variant.shares_machine or baseline.shares_machine):
            return None
        if self.name in variant.ratio:
            return variant.ratio[self.name]
        own, other = finite(self.value(variant)), finite(self.value(baseline))
        return own / other if other and own == own and other == other else None


class OfModel(Quantity):
    """A quantity counted from the config of the last model: `read` takes a CostSummary."""

    def of_cost(self, cost: CostSummary) -> Number:
        """Return its value for a model whose costs were just counted, so that none is missing."""
        value = self.read(cost)
        assert value is not None
        return value

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result.cost)

    def of_variant(self, variant: Variant) -> Estimate | None:
        value = self.read(variant.cost)
        return None if value is None else Estimate(mean=value)


class OfRun(Quantity):
    """A quantity measured in training: `read` takes a RunResult."""

    def of_run(self, result: RunResult) -> Number | None:
        return self.read(result)

    def of_variant(self, variant: Variant) -> Estimate | None:
        return variant.measured_over_seeds(self.name)


@dataclass(frozen=True)
class OfHeldOut(OfRun):
    """A loss on held-out text."""

    depth: int = 0
    """The depth of multi-token prediction that it is of; 0: the model's own."""

    def at_depth(self, first: Any, further: Sequence[Any] | None) -> Any:
        """Return what is the model's own, or that of its depth among those of multi-token prediction; None without."""
        return next(iter((first, *(further or ()))[self.depth : self.depth + 1]), None)

    def of_run(self, result: RunResult) -> Number | None:
        return self.at_depth(result.val_loss, result.val_mtp_losses)

    def windows(self, run: RunResult) -> Sequence[float]:
        """Return the mean loss of every held-out window, by which differences are paired; empty if a run lacks them."""
        return self.at_depth(run.val_window_losses, run.val_mtp_window_losses) or ()


class OfPair(Quantity):
    """A quantity that compares a variant with the baseline: `read` takes a Variant."""

    def of_run(self, result: RunResult) -> Number | None:
        return None

    def of_variant(self, variant: Variant) -> Estimate | None:
        return self.read(variant)


NOTES = {
    "val_loss": "Mean over seeds of the cross-entropy per token on held-out text, in nats; below it the {confidence} "
    "interval of that mean over seeds (Student's t). Lower is better.",
    "difference": "Held-out loss minus that of {baseline}, paired by seed and by held-out text, and its {confidence} "
    "interval (Student's t, over seeds and held-out windows). Negative is better.",
    "train_loss": "Mean over the last steps of training, as many as train.loss_window_steps says, and over seeds.",
    "difference_train_loss": "Training loss minus that of {baseline}, paired by seed, and its {confidence} interval "
    "(Student's t over seeds).",
    "val_bits_per_byte": "Held-out loss divided by ln 2 and by the bytes per token: comparable between tokenizers.",
    "params": "All parameters, embedding and head included.",
    "layer_params": "Parameters of the layers: attention, feed-forward and residual, without norms, embedding and "
    "head.",
    "dead_params": "Parameters whose gradient is always 0: they read coordinates of the stream that nobody wrote, or "
    "write coordinates that nobody reads.",
    "flops": "Forward pass at the recipe's sequence length with full attention (every token attends to all positions), "
    "as papers count it. Causal counting, which needs half of that part, is in the cost table.",
    "average_width": "Mean over layers of the width of the layer.",
    "kv_bytes": "Key and value cache of one token over all layers, in bf16.",
    "tokens_per_second": "Training throughput on the machine named under Environment, mean over seeds. An asterisk: "
    "other processes used the machine meanwhile, so that it is not comparable.",
    "pflops_days": "Training compute of all steps, in 8.64e19 FLOPs: a PFLOP per second for a day. Mean over seeds.",
    "peak_memory_bytes": "Most memory held in training: by tensors on a GPU, otherwise by the whole process. Mean over "
    "seeds.",
}


def _difference_of(loss: str) -> Callable[[Variant], Estimate | None]:
    return lambda variant: variant.differences.get(loss)


def _of_mtp(depth: int) -> Sequence[Quantity]:
    """Return the loss of a depth of multi-token prediction and its difference, named after the place of the token that
    it predicts."""
    name, place = f"val_loss_next_{depth + 1}", f"next-{depth + 1}"
    return (
        OfHeldOut(
            name,
            f"{place} held-out loss",
            4,
            note=f"Cross-entropy of the token {depth + 1} places ahead, by depth {depth} of multi-token prediction, "
            "which is given those between; mean over seeds and its {confidence} interval.",
            short=f"loss {place}",
            is_main=True,
            is_loss=True,
            depth=depth,
        ),
        OfPair(
            f"difference_next_{depth + 1}",
            f"difference, {place}",
            4,
            _difference_of(name),
            f"The {place} loss minus that of {{baseline}}, paired and with an interval as the difference of the "
            "held-out loss.",
            is_main=True,
            is_signed=True,
        ),
    )


def _at_equal_loss(depth: int) -> Sequence[Quantity]:
    """Return the quantities at equal held-out loss with the baseline: the model's own loss, or that of a depth."""
    end, place = ("", "") if depth == 0 else (f"_next_{depth + 1}", f"next-{depth + 1} ")

    def read(field: str) -> Callable[[Variant], Any]:
        return lambda variant: getattr(variant.at_equal_loss.get(f"val_loss{end}"), field, None)

    def ratio(key: str, title: str) -> Quantity:
        note = (
            f"{title[0].upper()}{title[1:]} over those of {{baseline}} at the same {place}held-out loss, the higher of "
            "the final losses of the two; geometric mean over seeds and its {confidence} interval (Student's t of the "
            "logarithm). Below 1 it needs less."
        )
        name = f"{key}_at_equal_loss{end}"
        return OfPair(name, f"{title} at equal {place}loss", 3, read(f"{key}_ratio"), note, is_main=depth == 0)

    def to_baseline(key: str, title: str) -> Quantity:
        return OfPair(f"{key}_to_baseline_loss{end}", f"{title} to the baseline's {place}loss", getter=read(key))

    names = {"tokens": "tokens", "training_flops": "training FLOPs"}
    return (*(ratio(*each) for each in names.items()), *(to_baseline(*each) for each in names.items()))


def _flops(part: str) -> Callable[[CostSummary], Number | None]:
    return lambda cost: cost.flops_by_part.get(part)


_TABLE: Sequence[Quantity] = (
    OfRun("steps", "steps", 0),
    OfRun("tokens", "tokens"),
    OfHeldOut("val_loss", "held-out loss", 4, short="loss", is_main=True, is_loss=True),
    OfPair("difference", "difference", 4, short="diff", is_main=True, is_signed=True, is_judged=True),
    *(quantity for depth in range(1, MOST_MTP_DEPTHS + 1) for quantity in _of_mtp(depth)),
    *(quantity for depth in range(MOST_MTP_DEPTHS + 1) for quantity in _at_equal_loss(depth)),
    OfRun("train_loss", "training loss", 4, is_main=True, is_loss=True),
    OfPair("difference_train_loss", "difference, training loss", 4, _difference_of("train_loss"), is_signed=True),
    OfRun("val_perplexity", "perplexity", 2),
    OfRun("val_bits_per_byte", "bits per byte", 4, short="bits/B", is_main=True, is_loss=True, has_ratio=True),
    OfModel(
        "params",
        "parameters",
        getter=lambda cost: cost.params.get("total"),
        short="params",
        is_main=True,
        has_ratio=True,
        is_shape_cost=True,
    ),
    *(OfModel(f"params_{part}", f"parameters, {part}", path=f"params.{part}") for part in PARTS),
    OfModel(
        "layer_params",
        "parameters, layers without norms",
        getter=lambda cost: sum_of(cost.params, ("attention", "ffn", "residual")),
        short="layer params",
        is_main=True,
        has_ratio=True,
        is_shape_cost=True,
    ),
    OfModel("active_params", "parameters, active", path="params.active", short="active", has_ratio=True),
    OfModel(
        "dead_params",
        "parameters that never learn",
        getter=lambda cost: cost.params.get("dead") or None,
        short="dead",
        is_main=True,
    ),
    OfModel(
        "flops",
        "FLOPs per token, forward",
        path="flops_per_token.forward",
        short="FLOPs",
        is_main=True,
        has_ratio=True,
        is_shape_cost=True,
    ),
    # Forward FLOPs leave multi-token prediction out.
    *(
        OfModel(f"flops_{part}", f"FLOPs per token, forward, {part}", None, _flops(part))
        for part in PARTS
        if part != "mtp"
    ),
    OfModel("flops_causal", "FLOPs per token, forward, causal", path="flops_per_token.forward_causal", has_ratio=True),
    OfModel("flops_training", "FLOPs per token, training", path="flops_per_token.training"),
    OfModel("flops_training_mtp", "FLOPs per token, training, mtp", path="flops_per_token.training_mtp"),
    OfModel("d_model", "d_model", 0),
    OfModel("average_width", "average width", 1, short="width", is_main=True, has_ratio=True),
    OfModel("stream_width", "width of the stream", 0),
    OfModel("virtual_width", "virtual width, times d_model", 2),
    OfModel(
        "kv_bytes",
        "KV bytes per token (bf16)",
        path="kv_bytes_per_token",
        short="KV B",
        is_main=True,
        has_ratio=True,
        is_shape_cost=True,
    ),
    OfModel(
        "activation_bytes",
        "activation bytes per token (bf16)",
        path="activation_bytes_per_token",
        short="act. B",
        has_ratio=True,
        is_shape_cost=True,
    ),
    OfRun("tokens_per_second", "tokens per second", short="tok/s", is_main=True, has_ratio=True, is_speed=True),
    OfRun("wall_seconds", "seconds", 1),
    OfRun("training_flops", "training FLOPs", None, has_ratio=True, is_cost=True),
    OfRun("pflops_days", "PFLOP/s-days", is_main=True, is_cost=True),
    OfRun("peak_memory_bytes", "peak memory in bytes", is_main=True, is_cost=True),
)
QUANTITIES = tuple(replace(each, note=NOTES.get(each.name, each.note)) for each in _TABLE)
QUANTITY = {quantity.name: quantity for quantity in QUANTITIES}
OF_MODELS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfModel)}
SHAPE_COSTS = [quantity for quantity in OF_MODELS.values() if quantity.is_shape_cost]
OF_RUNS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfRun)}
OF_HELD_OUT = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfHeldOut)}
TITLES = {quantity.name: quantity.title for quantity in QUANTITIES}
