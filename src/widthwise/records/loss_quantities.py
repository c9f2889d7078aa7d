"""The quantities that measure how good a model is, and those that compare two models by them."""

from collections.abc import Callable, Sequence
from typing import Any

from widthwise.records.comparison import Variant
from widthwise.records.quantity import OfHeldOut, OfPair, OfRun, Quantity

MOST_MTP_DEPTHS = 16
"""Tokens that multi-token prediction may predict beyond the next one."""


def _further_head(depth: int) -> Sequence[Quantity]:
    """The loss of a depth of multi-token prediction, named after the place of the token that it predicts."""
    name, place = f"val_loss_next_{depth + 1}", f"next-{depth + 1}"
    return (
        OfHeldOut(
            name,
            f"{place} held-out loss",
            lambda run: next(iter((run.val_mtp_losses or ())[depth - 1 : depth]), None),
            4,
            f"Cross-entropy of the token {depth + 1} places ahead, by depth {depth} of multi-token prediction, which "
            "is given those between; mean over seeds and its {confidence} interval.",
            f"loss {place}",
            is_main=True,
            is_loss=True,
            depth=depth,
            windows=lambda run: next(iter(run.val_mtp_window_losses[depth - 1 : depth]), ()),
        ),
        OfPair(
            f"difference_next_{depth + 1}",
            f"difference, {place}",
            lambda variant: variant.differences.get(name),
            4,
            f"The {place} loss minus that of {{baseline}}, paired and with an interval as the difference of the "
            "held-out loss.",
            is_main=True,
            is_signed=True,
        ),
    )


def _at_equal_loss(depth: int) -> Sequence[Quantity]:
    """What a variant needs beside the baseline for the same held-out loss: the model's own, or that of a depth."""
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
        return OfPair(name, f"{title} at equal {place}loss", read(f"{key}_ratio"), 3, note, is_main=depth == 0)

    return (
        ratio("tokens", "tokens"),
        ratio("training_flops", "training FLOPs"),
        OfPair(f"tokens_to_baseline_loss{end}", f"tokens to the baseline's {place}loss", read("tokens")),
        OfPair(
            f"training_flops_to_baseline_loss{end}",
            f"training FLOPs to the baseline's {place}loss",
            read("training_flops"),
        ),
    )


LOSSES: Sequence[Quantity] = (
    OfHeldOut(
        "val_loss",
        "held-out loss",
        lambda run: run.val_loss,
        4,
        "Mean over seeds of the cross-entropy per token on held-out text, in nats; below it the {confidence} interval "
        "of that mean over seeds (Student's t). Lower is better.",
        "loss",
        is_main=True,
        is_loss=True,
        windows=lambda run: run.val_window_losses,
    ),
    OfPair(
        "difference",
        "difference",
        lambda variant: variant.difference,
        4,
        "Held-out loss minus that of {baseline}, paired by seed and by held-out text, and its {confidence} interval "
        "(Student's t times a bootstrap standard error over seeds and held-out windows together). Negative is better.",
        "diff",
        is_main=True,
        is_signed=True,
        is_judged=True,
    ),
    *(quantity for depth in range(1, MOST_MTP_DEPTHS + 1) for quantity in _further_head(depth)),
    *(quantity for depth in range(MOST_MTP_DEPTHS + 1) for quantity in _at_equal_loss(depth)),
    OfRun(
        "train_loss",
        "training loss",
        lambda run: run.train_loss,
        4,
        "Mean over the last steps of training, as many as train.loss_window_steps says, and over seeds.",
        is_main=True,
        is_loss=True,
    ),
    OfPair(
        "difference_train_loss",
        "difference, training loss",
        lambda variant: variant.differences.get("train_loss"),
        4,
        "Training loss minus that of {baseline}, paired by seed, and its {confidence} interval (Student's t over "
        "seeds).",
        is_signed=True,
    ),
    OfRun("val_perplexity", "perplexity", lambda run: run.val_perplexity, 2),
    OfRun(
        "val_bits_per_byte",
        "bits per byte",
        lambda run: run.val_bits_per_byte,
        4,
        "Held-out loss divided by ln 2 and by the bytes per token: comparable between tokenizers.",
        "bits/B",
        is_main=True,
        is_loss=True,
        has_ratio=True,
    ),
)
