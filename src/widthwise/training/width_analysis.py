"""What width goes with: correlations, frequencies, token classes, and the loss at forced widths; of a finished run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.data.loader import held_out_batches
from widthwise.data.prepared import PreparedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.model.decoder import Decoder
from widthwise.training.config import Precision
from widthwise.training.dynamic_layers import dynamic_layers, flops_shares, forced_fractions
from widthwise.training.step import autocast
from widthwise.training.validation import evaluating
from widthwise.training.width_correlation import correlations
from widthwise.training.width_metrics import NO_SPREAD

SAMPLE_TOKENS = 16_384
"""Tokens the analysis looks at: whole windows from the front of the validation text, at least one."""
N_FORCED = 4
"""Widths that are forced, in equal steps from the narrowest to the full one."""
LOGITS_AT_ONCE = 2**22
"""Numbers; positions are taken in chunks whose logits are no more than that."""


def analyse_widths(
    model: Decoder,
    data: PreparedData,
    summary: dict[str, Any],
    *,
    seq_len: int,
    batch_size: int,
    max_tokens: int | None,
    precision: Precision,
) -> dict[str, Any]:
    """The summary of `WidthMeter`, completed by what takes passes of its own. Other arguments are those of `validate`.

    correlations: one entry a dynamic layer, of the width at a token with the loss there (of predicting the next token),
    the token's unigram surprisal in the validation text, its position in the window, the entropy of the prediction,
    and the benefit of width: the loss at the narrowest forced width minus that at full width.
    """
    n_tokens = SAMPLE_TOKENS if max_tokens is None else min(max_tokens, SAMPLE_TOKENS)
    windows = list(held_out_batches(data.held_out, seq_len, batch_size, max(n_tokens, seq_len)))
    layers = dynamic_layers(model.config)
    tokens = torch.cat(windows)[:, :-1].numpy()
    counts = np.zeros(model.config.vocab_size, dtype=np.int64)
    for batch in held_out_batches(data.held_out, seq_len, batch_size, max_tokens):
        counts += np.bincount(batch[:, :-1].flatten().numpy(), minlength=len(counts))
    sample = _Sample(model, windows, precision)
    losses, *widths = sample.losses_and_widths(None)
    fractions = forced_fractions(layers, N_FORCED)
    forced = [sample.losses_and_widths(fraction)[0] for fraction in fractions]
    related = {
        "loss": losses,
        "surprisal": -np.log(counts[tokens] / counts.sum()),
        "position": np.broadcast_to(np.arange(float(seq_len)), tokens.shape),
        "entropy": sample.entropies(),
        "benefit": forced[0] - forced[-1],
    }
    of_token = np.einsum("l,lwt->wt", flops_shares(layers), widths)
    related_to = [{name: correlations(width, each, NO_SPREAD) for name, each in related.items()} for width in widths]
    return {
        **summary,
        "layers": [{**layer, "correlations": found} for layer, found in zip(summary["layers"], related_to)],
        "by_frequency_decile": frequency_deciles(tokens, of_token, counts),
        "by_token_class": class_means(tokens, of_token, data.tokenizer),
        "forced": [{"fraction": fraction, "loss": float(each.mean())} for fraction, each in zip(fractions, forced)],
    }


class _Sample:
    """Windows to look at again and again: batches of integers (B, seq_len + 1)."""

    def __init__(self, model: Decoder, windows: list[Tensor], precision: Precision):
        self._model, self._windows = model, windows
        self._precision: Precision = precision

    def losses_and_widths(self, width_fraction: float | None) -> np.ndarray:
        """(1 + n_dynamic_layers, n_windows, seq_len): the losses, then the width fractions of each dynamic layer."""

        def found(batch: Tensor) -> Tensor:
            loss = self._model.loss(batch[:, :-1], batch[:, 1:], width_fraction=width_fraction)
            return torch.stack(
                [loss.losses] + [each["width_fraction"] for each in loss.choices if "width_fraction" in each]
            )

        return self._of_every_batch(found)

    def entropies(self) -> np.ndarray:
        """(n_windows, seq_len): of the predictions at the widths that tokens choose, in nats."""
        return self._of_every_batch(lambda batch: self._entropy(self._model.hidden(batch[:, :-1]))[None])[0]

    def _entropy(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, d_model) -> (B, T)."""
        chunks = hidden.flatten(0, 1).split(max(1, LOGITS_AT_ONCE // self._model.config.vocab_size))
        logs = (self._model.logits(chunk).float().log_softmax(dim=-1) for chunk in chunks)
        return torch.cat([-(log.exp() * log).sum(dim=-1) for log in logs]).view(hidden.shape[:-1])

    def _of_every_batch(self, find: Callable[[Tensor], Tensor]) -> np.ndarray:
        """find: (B, seq_len + 1) -> (n, B, seq_len). Its results side by side, (n, n_windows, seq_len)."""
        with evaluating(self._model) as device:
            found = []
            for batch in self._windows:
                with autocast(device, self._precision):
                    found.append(find(batch.to(device)).double().cpu())
        return torch.cat(found, dim=1).numpy()


def frequency_deciles(tokens: np.ndarray, widths: np.ndarray, counts: np.ndarray) -> list[float]:
    """Mean width of the tenth of all tokens that are of the commonest types, of the next tenth, and so on.

    tokens, widths: one entry a token; counts: how often each type occurs in the text. A type that lies in several
    tenths counts in each with its mean.
    """
    order = np.argsort(-counts, kind="stable")
    n_tokens = np.bincount(tokens.ravel(), minlength=len(counts))[order]
    sums = np.bincount(tokens.ravel(), weights=widths.ravel(), minlength=len(counts))[order]
    edges = np.linspace(0, tokens.size, 11)
    upto = np.interp(edges, np.append(0, n_tokens.cumsum()), np.append(0, sums.cumsum()))
    return (np.diff(upto) / np.diff(edges)).tolist()


def class_means(tokens: np.ndarray, widths: np.ndarray, tokenizer: Tokenizer) -> dict[str, float]:
    """Mean width by class of token; see `token_class`. tokens, widths: one entry a token."""
    ids, inverse = np.unique(tokens, return_inverse=True)
    names = [token_class(int(each), tokenizer) for each in ids]
    of_token = np.array(names)[inverse.reshape(tokens.shape)]
    return {name: float(widths[of_token == name].mean()) for name in sorted(set(names))}


def token_class(token: int, tokenizer: Tokenizer) -> str:
    """end of text, whitespace, letters, digits, punctuation, or other: mixtures and torn characters.

    White space around a token does not count: " the" is letters.
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
    is_marks = inner.isprintable() and not any(each.isalnum() or each in " \ufffd" for each in inner)
    return "punctuation" if is_marks else "other"
