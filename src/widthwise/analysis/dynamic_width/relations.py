"""Mean widths of groups of tokens, and the loss at forced widths; of a finished run."""

from typing import Any

import numpy as np
import torch

from widthwise.analysis.dynamic_width.groups import class_means, frequency_deciles
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


def analyse_widths(model: Decoder, held_out: HeldOut, summary: dict[str, Any]) -> dict[str, Any]:
    """The summary of `WidthMeter`, completed by what takes passes of its own."""
    sample = _Sample(model, held_out, SAMPLE_TOKENS)
    layers = dynamic_layers(model.config)
    tokens = sample.windows[:, :-1].numpy()
    counts = np.zeros(model.config.vocab_size, dtype=np.int64)
    for batch in held_out.batches():
        counts += np.bincount(batch[:, :-1].flatten().numpy(), minlength=len(counts))
    _, *widths = sample.losses_and_widths(None)
    of_token = np.einsum("l,lwt->wt", flops_shares(layers), widths)
    forced = {each: float(sample.losses_and_widths(each)[0].mean()) for each in forced_fractions(layers, N_FORCED)}
    return {
        **summary,
        "by_frequency_decile": frequency_deciles(tokens, of_token, counts),
        "by_token_class": class_means(tokens, of_token, held_out.data.tokenizer),
        "forced": [{"fraction": fraction, "loss": loss} for fraction, loss in forced.items()],
    }


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

        found, boundaries = [], self._held_out.boundaries
        with evaluating(self.model) as device:
            for batch in self.windows.split(self._held_out.batch_size):
                batch = batch.to(device)
                tokens, targets = batch[:, :-1], batch[:, 1:]
                told = boundaries.documents(tokens), boundaries.positions(tokens)
                with autocast(device, self._held_out.precision):
                    loss = self.model.loss(tokens, targets, 0.0, width_fraction, *told)
                    found.append(torch.stack([loss.losses, *width_fractions(loss.choices)]).double().cpu())
        return torch.cat(found, dim=1).numpy()
