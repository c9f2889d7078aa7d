"""All statistics of a finished model over a text, in constant memory.

    profile = Profile(DecoderSubject(model), ProfileOptions(thresholds=(0.01, 0.1, 1.0)))
    for windows in batches:  # integers (B, T + 1), as from `HeldOut.batches`
        profile.add(windows)
    profile.summary(name="x", source="runs/x", kind="widthwise", step=None)

The model is in evaluation mode.
"""

from typing import Annotated, Any

import pydantic
import torch
from torch import Tensor

from widthwise.analysis.meters import ActivationMeter, BlockExits, LogitLens, MatrixEntropy, SinkMeter, valley
from widthwise.analysis.model_subjects import DecoderSubject
from widthwise.analysis.subject import AttentionCall, Watcher
from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.records.analysis import AnalysedModel

Threshold = Annotated[float, pydantic.Field(ge=0)]


class ProfileOptions(Config):
    """Thresholds for the active units of a feed-forward."""

    thresholds: Annotated[tuple[Threshold, ...], pydantic.Field(min_length=1)] = (
        *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
        *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    )
    """Absolute values of activations; the share of activations above each of them is measured."""
    utilisation_threshold: Threshold = 0.1
    """Threshold above which a unit counts as used by a token; 0.1 as in the variable-width paper."""


class Profile(Watcher):
    """The profile of one model, in constant memory: about width^2 numbers for each depth.

    A batch also needs d_model numbers for every token, layer, and further block of a layer.
    """

    def __init__(self, subject: DecoderSubject, options: ProfileOptions | None = None):
        self._subject = subject
        self._options = options or ProfileOptions()
        self._n_tokens = 0
        self._activations: dict[tuple[int, int], ActivationMeter] = {}
        self._entropies: list[MatrixEntropy] = []
        self._lens = LogitLens()
        self._exits = BlockExits()
        self._sinks = [SinkMeter() for _ in subject.widths]
        self._hidden: list[Tensor] = []
        self._hidden_in_layers: dict[tuple[int, int], Tensor] = {}

    @torch.no_grad()
    def add(self, windows: Tensor) -> None:
        """Add windows, integers (B, T + 1), T >= 2: the model reads the first T, the lens predicts the last T.

        Raises UserError if states of the model are not finite.
        """
        if windows.shape[1] < 3:
            raise UserError(f"seq_len: got {windows.shape[1] - 1}; must be at least 2, for the statistics of sinks")
        targets = windows[:, 1:].flatten()
        try:
            self._subject.run(windows[:, :-1], self)
            self._lens.add(self._hidden, targets, self._subject.logits)
            self._exits.add(self._hidden_in_layers, targets, self._subject.logits)
        finally:
            self._hidden = []
            self._hidden_in_layers = {}
        self._n_tokens += len(targets)

    def see_stream(self, depth: int, stream: Tensor, hidden: Tensor) -> None:
        if not stream.isfinite().all():
            raise UserError(f"the stream after layer {depth} has numbers that are not finite; use another checkpoint")
        if depth == len(self._entropies):
            self._entropies.append(MatrixEntropy(stream.shape[-1], stream.device))
        self._entropies[depth].add(stream.flatten(0, 1))
        self._hidden.append(hidden.flatten(0, 1))
        if depth > 0:
            self._sinks[depth - 1].add_stream(stream)

    def see_block(self, layer: int, block: int, hidden: Tensor) -> None:
        self._hidden_in_layers[layer, block] = hidden.flatten(0, 1)

    def see_activations(self, layer: int, block: int, activations: Tensor) -> None:
        if (layer, block) not in self._activations:
            options = self._options
            self._activations[layer, block] = ActivationMeter(options.thresholds, options.utilisation_threshold)
        self._activations[layer, block].add(activations)

    def see_attention(self, layer: int, call: AttentionCall) -> None:
        self._sinks[layer].add_attention(call)

    def summary(self, **about: Any) -> AnalysedModel:
        """Return the record of the model. about: its other fields, such as its name and source.

        In a mixture of experts block 1 has the units of all routed experts, and block 2 the units of a shared expert.
        """
        stream = [entropy.summary(depth) for depth, entropy in enumerate(self._entropies)]
        meters = sorted(self._activations.items(), key=lambda item: item[0])
        return AnalysedModel(
            **about,
            d_model=self._subject.d_model,
            widths=self._subject.widths,
            n_tokens=self._n_tokens,
            activations=[meter.summary(layer, block) for (layer, block), meter in meters],
            stream=stream,
            logit_lens=self._lens.summary(),
            block_exits=self._exits.summary(),
            sinks=[meter.summary(layer) for layer, meter in enumerate(self._sinks, start=1)],
            valley=valley([entry.entropy for entry in stream]),
        )
