"""The widths that tokens use in dynamic-width layers: their distribution, and their relation to token and loss."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.meters import Moments
from widthwise.data.loader import HeldOut
from widthwise.data.tokenizer import Tokenizer
from widthwise.kernels.dispatch import autocast
from widthwise.model.context import Choices
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import DynamicLayer, dynamic_layers, flops_shares, forced_fractions
from widthwise.model.execution import evaluating, is_compiled
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.records.analysis import ForcedLoss, LayerWidths, TokenWidths

N_BINS = 32
NEAR = 0.01
"""A fraction this close to the narrowest, or to 1, counts as equal to it, because a sigmoid never reaches its ends."""
NO_SPREAD = 1e-6
"""Largest standard deviation of fractions that is only rounding."""


class WidthMeter:
    """Width statistics over all tokens of a text."""

    def __init__(self, model: Decoder):
        self._meters = [_LayerMeter(layer, model) for layer in dynamic_layers(model.config)]

    def add(self, choices: Sequence[Choices]) -> None:
        """Add the tokens of a forward pass, in the mode and autocast of that pass."""
        for meter in self._meters:
            meter.add(choices[meter.layer.index]["width_fraction"].detach().flatten())

    def summary(self) -> TokenWidths | None:
        """Return the `token_widths` of a validation record; None for a model without dynamic-width layers.

        mean_fraction: weighted by the FLOPs of the layers. token_variance_share: share of the variance of all fractions
        that is between tokens of a layer; None if they do not vary. flops_per_token: forward, of the dynamic matrices:
        with all units, requested units, requested units rounded up to buckets, computed units.
        """
        meters = self._meters
        if not meters:
            return None
        means = np.array([float(meter.fractions.mean) for meter in meters])
        within = float(np.mean([float(meter.fractions.variance) for meter in meters]))
        total = within + float(means.var())
        flops = sum(meter.layer.flops_per_unit * meter.units / meter.fractions.n for meter in meters)
        return TokenWidths(
            n_tokens=meters[0].fractions.n,
            mean_fraction=float(means @ flops_shares([meter.layer for meter in meters])),
            token_variance_share=within / total if total > NO_SPREAD**2 else None,
            flops_per_token=dict(zip(("full", "asked", "bucketed", "executed"), np.asarray(flops).tolist())),
            layers=[meter.summary() for meter in meters],
        )


class _LayerMeter:
    """Sums over the tokens of one layer."""

    def __init__(self, layer: DynamicLayer, model: Decoder):
        module = model.layers[layer.index]
        assert isinstance(module.ffn, DynamicWidth)
        self.layer = layer
        self._ffn = module.ffn
        self._is_compiled = is_compiled(module)
        self.fractions = Moments()
        self._low = math.inf
        self._high = -math.inf
        self._histogram = np.zeros(N_BINS, dtype=np.int64)
        self._n_floor = 0
        self._n_ceiling = 0
        self.units = np.zeros(4)
        """Sums over tokens of the four numbers of units in `TokenWidths.flops_per_token`, in its order."""

    def add(self, fraction: Tensor) -> None:
        """Add the width fractions of n tokens, (n,)."""
        fractions = fraction.double().cpu()
        self.fractions.add(fractions)
        values = fractions.numpy()
        self._low = min(self._low, float(values.min()))
        self._high = max(self._high, float(values.max()))
        self._histogram += np.histogram(values, bins=N_BINS, range=(0.0, 1.0))[0]
        self._n_floor += int((values <= self.layer.narrowest + NEAR).sum())
        self._n_ceiling += int((values >= 1 - NEAR).sum())
        width = self.layer.config.full_width * fraction
        d_ff = self.layer.config.d_ff
        self.units += [
            len(values) * d_ff,
            float((d_ff * fraction).double().sum()),
            self._ffn.bucketed_units(width),
            self._ffn.computed_units(width, self._is_compiled),
        ]

    def summary(self) -> LayerWidths:
        """Return the record of the layer. With any mask, a token uses the units whose centres are within its width."""
        d_ff = self.layer.config.d_ff
        widest = torch.tensor(self._high * self.layer.config.full_width, dtype=torch.float64)
        max_units = int(self._ffn.used_units(widest))
        return LayerWidths(
            layer=self.layer.index + 1,
            d_ff=d_ff,
            mean=float(self.fractions.mean),
            sd=math.sqrt(self.fractions.variance),
            min=self._low,
            max=self._high,
            histogram=(self._histogram / self.fractions.n).tolist(),
            floor_share=self._n_floor / self.fractions.n,
            ceiling_share=self._n_ceiling / self.fractions.n,
            dead_share=1 - max_units / d_ff,
            max_units=max_units,
            **self._ffn.choice_scalars(),
        )


SAMPLE_TOKENS = 16_384
"""Number of analysed tokens: whole windows from the start of the validation text, at least one."""
N_FORCED = 4
"""Number of forced widths, in equal steps from the narrowest to the full one."""


def analyse_widths(model: Decoder, held_out: HeldOut, summary: TokenWidths) -> TokenWidths:
    """Return a summary of `WidthMeter` with the statistics that need further passes over the text."""
    windows = torch.cat(list(held_out.batches(max(SAMPLE_TOKENS, held_out.seq_len))))
    layers = dynamic_layers(model.config)
    tokens = windows[:, :-1].numpy()
    counts = np.zeros(model.config.vocab_size, dtype=np.int64)
    for batch in held_out.batches():
        counts += np.bincount(batch[:, :-1].flatten().numpy(), minlength=len(counts))
    widths = losses_and_widths(model, held_out, windows, None)[1:]
    token_widths = np.einsum("l,lwt->wt", flops_shares(layers), widths)
    forced = [
        ForcedLoss(fraction=fraction, loss=float(losses_and_widths(model, held_out, windows, fraction)[0].mean()))
        for fraction in forced_fractions(layers, N_FORCED)
    ]
    return summary.with_changes(
        by_frequency_decile=frequency_deciles(tokens, token_widths, counts),
        by_token_class=class_means(tokens, token_widths, held_out.data.tokenizer),
        forced=forced,
    )


def losses_and_widths(model: Decoder, held_out: HeldOut, windows: Tensor, width_fraction: float | None) -> np.ndarray:
    """Return (1 + n_dynamic_layers, n_windows, seq_len): the losses, then the width fractions of each dynamic layer.

    windows: integers (n_windows, seq_len + 1), read as in a validation; width_fraction: forced on every layer, or None.
    """
    rows = []
    with evaluating(model) as device:
        for batch in windows.split(held_out.batch_size):
            batch = batch.to(device)
            tokens = batch[:, :-1]
            documents = held_out.boundaries.documents(tokens)
            positions = held_out.boundaries.positions(tokens)
            with autocast(device, held_out.precision):
                loss = model.loss(tokens, batch[:, 1:], 0.0, width_fraction, documents, positions)
                fractions = [chosen["width_fraction"] for chosen in loss.choices if "width_fraction" in chosen]
                rows.append(torch.stack([loss.losses, *fractions]).double().cpu())
    return torch.cat(rows, dim=1).numpy()


def frequency_deciles(tokens: np.ndarray, widths: np.ndarray, counts: np.ndarray) -> list[float]:
    """Return the mean width of ten equal parts of all tokens, sorted by the frequency of their ids, commonest first.

    tokens, widths: id and width of each token; counts: occurrences of each id in the text. An id whose tokens fall in
    several parts counts in each of them with its mean width.
    """
    order = np.argsort(-counts, kind="stable")
    n_tokens = np.bincount(tokens.ravel(), minlength=len(counts))[order]
    sums = np.bincount(tokens.ravel(), weights=widths.ravel(), minlength=len(counts))[order]
    edges = np.linspace(0, tokens.size, 11)
    cumulative = np.interp(edges, np.append(0, n_tokens.cumsum()), np.append(0, sums.cumsum()))
    return (np.diff(cumulative) / np.diff(edges)).tolist()


def class_means(tokens: np.ndarray, widths: np.ndarray, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the mean width of each `token_class`. tokens, widths: id and width of each token."""
    ids, inverse = np.unique(tokens, return_inverse=True)
    names = [token_class(int(token), tokenizer) for token in ids]
    classes = np.array(names)[inverse.reshape(tokens.shape)]
    return {name: float(widths[classes == name].mean()) for name in sorted(set(names))}


def token_class(token: int, tokenizer: Tokenizer) -> str:
    """Return "end of text", "whitespace", "letters", "digits", "punctuation", or "other".

    Surrounding whitespace is ignored: " the" is letters. Mixtures and parts of characters are other.
    """
    if token == tokenizer.eos_id:
        return "end of text"
    text = tokenizer.decode([token])
    inner = text.strip()
    if not inner:
        return "whitespace" if text else "other"
    if inner.isalpha():
        return "letters"
    if inner.isdecimal():
        return "digits"
    is_punctuation = inner.isprintable() and not any(letter.isalnum() or letter in " \ufffd" for letter in inner)
    return "punctuation" if is_punctuation else "other"
