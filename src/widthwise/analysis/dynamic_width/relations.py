"""What width goes with: correlations, groups of tokens, and the loss at forced widths; of a finished run."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.dynamic_width.correlation import correlations
from widthwise.analysis.dynamic_width.groups import class_means, frequency_deciles
from widthwise.analysis.dynamic_width.meter import NO_SPREAD
from widthwise.analysis.dynamic_width.sample import Sample, windows_of
from widthwise.data.held_out import HeldOut
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import dynamic_layers, flops_shares, forced_fractions

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
    sample = Sample(model, held_out, windows_of(held_out, SAMPLE_TOKENS))
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


def _entropies(sample: Sample) -> np.ndarray:
    """(n_windows, seq_len): of the predictions at the widths that tokens choose, in nats."""

    def found(batch: Tensor, rows: slice) -> Tensor:
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
