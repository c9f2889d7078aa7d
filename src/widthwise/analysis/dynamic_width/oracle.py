"""The width that each token needs, measured from outside, and how near a model's own choice comes to it.

An oracle looks at the targets: it gives width to the tokens whose loss it lowers, of which a model cannot know. What it
reaches is therefore a bound for any choice, however it is made, and not an aim. How much of it can be known shows in
scores that are fitted to the oracle's measurements on other windows.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.dynamic_width.assignment import cheapest
from widthwise.analysis.dynamic_width.correlation import correlations
from widthwise.analysis.dynamic_width.meter import NO_SPREAD
from widthwise.analysis.dynamic_width.regression import fitted
from widthwise.analysis.dynamic_width.sample import Sample, forced, shuffled, whole_layers, windows_of
from widthwise.data.held_out import HeldOut
from widthwise.kernels import linear_cross_entropy
from widthwise.model.context import PassContext
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.model.dynamic_modules import dynamic_modules
from widthwise.model.ffn.width_choice_module import WidthChoosing

N_TOKENS = 2**14
"""Tokens that are looked at: whole windows from the front of the text, at least one."""
N_WIDTHS = 4
"""Widths that an oracle chooses from, in equal steps from the narrowest to the full one."""


def width_oracle(model: Decoder, held_out: HeldOut) -> dict[str, Any]:
    """The `WidthOracle` of a model with dynamic-width layers.

    Scores are fitted on the first half of the windows, and all losses are of the second, at one mean width: that which
    tokens choose there, or the middle of the range in a model that does not choose.
    """
    windows = windows_of(held_out, N_TOKENS)
    first, judged = (Sample(model, held_out, part) for part in windows.tensor_split([len(windows) // 2]))
    layers = dynamic_layers(model.config)
    shares, fractions = np.array(flops_shares(layers)), np.array(forced_fractions(layers, N_WIDTHS))
    losses, *widths = judged.losses_and_widths(None)
    chosen, chooses = np.stack(widths), chooses_width(model.config)
    means = chosen.mean(axis=(1, 2)) if chooses else np.full(len(layers), (fractions[0] + fractions[-1]) / 2)
    budget = float(shares @ means)
    at_mean = np.full_like(chosen, budget)
    gained = Gains.measured(judged, fractions, budget)
    of_tokens = np.stack([judged.losses_at(np.full_like(chosen, fraction)) for fraction in fractions])[:, None]
    best = cheapest(gained.losses, fractions, shares, budget)
    one_width = cheapest(of_tokens, fractions, np.ones(1), budget)
    assigned = {"uniform": at_mean, "oracle_of_tokens": np.broadcast_to(one_width, chosen.shape), "oracle": best}
    if chooses:
        assigned |= {"by_layer": whole_layers(means, chosen), "shuffled": shuffled(chosen)}
    if len(first.windows):
        guesses = Gains.measured(first, fractions, budget).guesses(gained.inputs)
        assigned["fitted"] = cheapest(guesses, fractions, shares, budget)
    found = {name: float(judged.losses_at(each).mean()) for name, each in assigned.items()}
    return {
        "n_tokens": losses.size,
        "n_fitted_tokens": first.windows[:, 1:].numel(),
        "mean_fraction": budget,
        "fractions": fractions.tolist(),
        "losses": ({"chosen": float(losses.mean())} if chooses else {}) | found,
        "layers": [
            {
                "layer": layer.index + 1,
                "chosen": float(own.mean()) if chooses else None,
                "oracle": float(aim.mean()),
                "correlation": correlations(own, aim, NO_SPREAD),
            }
            for layer, own, aim in zip(layers, chosen, best)
        ],
    }


@dataclass(frozen=True)
class Gains:
    """What the summed loss changes by where one layer gives one token another width, all others as they are.

    All tokens have one width, from which each is moved to every candidate in turn: exactly in what the layer writes,
    and to first order in what becomes of it, later tokens included.
    """

    losses: np.ndarray
    """(n_fractions, n_layers, n_windows, seq_len), nats."""
    inputs: Sequence[np.ndarray]
    """For each dynamic layer (n_windows, seq_len, d_layer): what its score would read."""

    @classmethod
    def measured(cls, sample: Sample, fractions: np.ndarray, around: float) -> "Gains":
        """fractions: the candidates; around: the width of all tokens."""
        inputs: list[list[np.ndarray]] = []

        def found(batch: Tensor, rows: slice) -> Tensor:
            layers, changes = _changes(sample, batch, fractions, around)
            inputs.append([each.float().cpu().numpy() for each in layers])
            return changes

        changes = sample.of_every_batch(found)
        n_layers = len(dynamic_modules(sample.model))
        losses = changes.reshape(len(fractions), n_layers, *changes.shape[1:])
        return cls(losses, [np.concatenate(parts) for parts in zip(*inputs)])

    def guesses(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """(n_fractions, n_layers, n_windows, seq_len): what linear scores, fitted to these, say of other tokens.

        inputs: of those tokens.
        """
        scores = [
            fitted(x.reshape(-1, x.shape[-1]), losses.reshape(len(losses), -1).T)
            for x, losses in zip(self.inputs, self.losses.swapaxes(0, 1))
        ]
        return np.stack([np.moveaxis(score(x), -1, 0) for score, x in zip(scores, inputs)], axis=1)


def _changes(sample: Sample, batch: Tensor, fractions: np.ndarray, around: float) -> tuple[list[Tensor], Tensor]:
    """What the scores of the layers would read, and the changes of the loss, (n_fractions * n_layers, B, T)."""
    model, modules = sample.model, list(dynamic_modules(sample.model).values())
    calls: list[tuple[WidthChoosing, Tensor, PassContext, Tensor]] = []

    def see(module: WidthChoosing, inputs: tuple[Tensor, PassContext], output: tuple[Tensor, object]) -> None:
        calls.append((module, *inputs, output[0]))

    tokens, targets = batch[:, :-1], batch[:, 1:]
    everywhere = np.full((len(modules), *tokens.shape), around)
    with torch.enable_grad(), forced(model, everywhere), ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(see))
        documents, positions = sample.told(batch)
        hidden = model.hidden(tokens, documents=documents, positions=positions)
        mean, *_ = linear_cross_entropy(hidden, model.head.weight, targets, model.config.logit_multiplier)
        gradients = torch.autograd.grad(mean * targets.numel(), [update for *_, update in calls])
    changes = [
        ((module(x, replace(context, width_fraction=context.progress.new_tensor(fraction)))[0] - update) * gradient)
        .double()
        .sum(dim=-1)
        for fraction in fractions.tolist()
        for (module, x, context, update), gradient in zip(calls, gradients)
    ]
    return [module.read_by_score(x).detach() for module, x, *_ in calls], torch.stack(changes).detach()
