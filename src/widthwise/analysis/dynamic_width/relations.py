"""What width goes with: correlations, groups of tokens, and the loss at forced widths; of a finished run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.dynamic_width.correlation import correlations
from widthwise.analysis.dynamic_width.groups import class_means, frequency_deciles
from widthwise.analysis.dynamic_width.meter import NO_SPREAD
from widthwise.data.loader import HeldOut
from widthwise.kernels.precision import autocast
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import dynamic_layers, flops_shares, forced_fractions
from widthwise.model.dynamic_modules import width_fractions
from widthwise.model.eval_mode import evaluating

SAMPLE_TOKENS = 16_384
"""Tokens the analysis looks at: whole windows from the front of the validation text, at least one."""
N_FORCED = 4
"""Widths that are forced, in equal steps from the narrowest to the full one."""
LOGITS_AT_ONCE = 2**22
"""Numbers; positions are taken in chunks whose logits are no more than that."""


def analyse_widths(model: Decoder, held_out: HeldOut, summary: dict[str, Any]) -> dict[str, Any]:
    """The summary of `WidthMeter`, completed by what takes passes of its own.

    correlations: one entry a dynamic layer, of the width at a token with the loss there (of predicting the next token),
    the token's unigram surprisal in the validation text, its position in the window, the entropy of the prediction,
    and the benefit of width: the loss at the narrowest forced width minus that at full width.
    """
    sample = _Sample(model, held_out, SAMPLE_TOKENS)
    layers = dynamic_layers(model.config)
    tokens = sample.windows[:, :-1].numpy()
    counts = np.zeros(model.config.vocab_size, dtype=np.int64)
    for batch in held_out.batches():
        counts += np.bincount(batch[:, :-1].flatten().numpy(), minlength=len(counts))
    losses, *widths = sample.losses_and_widths(None)
    fractions = forced_fractions(layers, N_FORCED)
    forced = [sample.losses_and_widths(fraction)[0] for fraction in fractions]
    related = {
        "loss": losses,
        "surprisal": -np.log(counts[tokens] / counts.sum()),
        "position": np.broadcast_to(np.arange(float(held_out.seq_len)), tokens.shape),
        "entropy": _entropies(sample),
        "benefit": forced[0] - forced[-1],
    }
    of_token = np.einsum("l,lwt->wt", flops_shares(layers), widths)
    related_to = [{name: correlations(width, each, NO_SPREAD) for name, each in related.items()} for width in widths]
    return {
        **summary,
        "layers": [{**layer, "correlations": found} for layer, found in zip(summary["layers"], related_to)],
        "by_frequency_decile": frequency_deciles(tokens, of_token, counts),
        "by_token_class": class_means(tokens, of_token, held_out.data.tokenizer),
        "forced": [{"fraction": fraction, "loss": float(each.mean())} for fraction, each in zip(fractions, forced)],
    }


def _entropies(sample: "_Sample") -> np.ndarray:
    """(n_windows, seq_len): of the predictions at the widths that tokens choose, in nats."""

    def found(batch: Tensor) -> Tensor:
        documents, positions = sample.told(batch)
        return _entropy(sample.model, sample.model.hidden(batch[:, :-1], documents=documents, positions=positions))[
            None
        ]

    return sample.of_every_batch(found)[0]


def _entropy(model: Decoder, hidden: Tensor) -> Tensor:
    """hidden: (B, T, d_model) -> (B, T)."""
    chunks = hidden.flatten(0, 1).split(max(1, LOGITS_AT_ONCE // model.config.vocab_size))
    logs = (model.logits(chunk).float().log_softmax(dim=-1) for chunk in chunks)
    return torch.cat([-(log.exp() * log).sum(dim=-1) for log in logs]).view(hidden.shape[:-1])


class _Sample:
    """Windows, and a model in evaluation mode that reads them without gradients, as a validation would."""

    def __init__(self, model: Decoder, held_out: HeldOut, n_tokens: int):
        """Takes whole windows from the front of the text, of at most n_tokens, but at least one."""
        self.model, self._held_out = model, held_out
        self.windows = torch.cat(list(held_out.batches(max(n_tokens, held_out.seq_len))))
        """Integers (n_windows, seq_len + 1)."""

    def losses_and_widths(self, width_fraction: float | None) -> np.ndarray:
        """(1 + n_dynamic_layers, n_windows, seq_len): the losses, then the width fractions of each dynamic layer.

        width_fraction: what every layer uses instead of choosing.
        """

        def found(batch: Tensor) -> Tensor:
            loss = self.model.loss(batch[:, :-1], batch[:, 1:], 0.0, width_fraction, *self.told(batch))
            return torch.stack([loss.losses, *width_fractions(loss.choices)])

        return self.of_every_batch(found)

    def told(self, batch: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The documents and the positions of the tokens of a batch, where a validation tells them."""
        tokens, boundaries = batch[:, :-1], self._held_out.boundaries
        return boundaries.documents(tokens), boundaries.positions(tokens)

    def of_every_batch(self, find: Callable[[Tensor], Tensor]) -> np.ndarray:
        """The results of `find` side by side, (n, n_windows, ...), in float64.

        find: windows (B, seq_len + 1) -> (n, B, ...).
        """
        found, size = [], self._held_out.batch_size
        with evaluating(self.model) as device:
            for windows in self.windows.split(size):
                with autocast(device, self._held_out.precision):
                    found.append(find(windows.to(device)).double().cpu())
        return torch.cat(found, dim=1).numpy()
