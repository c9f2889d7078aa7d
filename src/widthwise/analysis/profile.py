"""All statistics of a finished model over a text, in constant memory.

    profile = Profile(model, ProfileOptions(thresholds=(0.01, 0.1, 1.0)))
    for windows in batches:  # integers (B, T + 1), as from `HeldOut.batches`
        profile.add(windows)
    profile.summary(name="x", source="runs/x", kind="widthwise", step=None)

The model is in evaluation mode. MTP heads are ignored.
"""

from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any, cast

import pydantic
import torch
from torch import Tensor

from widthwise.analysis.hooks import AttentionCalls, hook_block_exits, hook_units
from widthwise.analysis.meters import ActivationMeter, BlockExits, LogitLens, MatrixEntropy, SinkMeter, valley
from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.model.context import Stream
from widthwise.model.decoder import Decoder
from widthwise.model.layer_module import DecoderLayer
from widthwise.model.residual.over_width_module import PadEntry
from widthwise.records.analysis import AnalysedModel

Threshold = Annotated[float, pydantic.Field(ge=0)]
THRESHOLDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class ProfileOptions(Config):
    """Thresholds for the active units of a feed-forward."""

    thresholds: Annotated[tuple[Threshold, ...], pydantic.Field(min_length=1)] = THRESHOLDS
    """Absolute values of activations; the share of activations above each of them is measured."""
    utilisation_threshold: Threshold = 0.1
    """Threshold above which a unit counts as used by a token; 0.1 as in the variable-width paper."""


class Profile:
    """The profile of one model, in constant memory: about width^2 numbers for each depth.

    While a batch is added, each token also needs d_model numbers per layer, and per block of an hourglass.
    """

    def __init__(self, model: Decoder, options: ProfileOptions | None = None):
        self._model = model
        options = options or ProfileOptions()
        self._n_tokens = 0
        new_meter = partial(ActivationMeter, options.thresholds, options.utilisation_threshold)
        self._activations: dict[tuple[int, int], ActivationMeter] = defaultdict(new_meter)
        self._entropies: list[MatrixEntropy] = []
        self._lens = LogitLens()
        self._exits = BlockExits()
        self._sinks = [SinkMeter() for _ in model.config.widths]

    @torch.no_grad()
    def add(self, windows: Tensor) -> None:
        """Add windows, integers (B, T + 1), T >= 2: the model reads the first T tokens and predicts the last T.

        Raises UserError if states of the model are not finite.
        """
        if windows.shape[1] < 3:
            raise UserError(f"seq_len: got {windows.shape[1] - 1}; must be at least 2, for the statistics of sinks")
        targets = windows[:, 1:].flatten()
        hidden, block_hidden = self._run(windows[:, :-1])
        self._lens.add(hidden, targets, self._model.logits)
        self._exits.add(block_hidden, targets, self._model.logits)
        self._n_tokens += len(targets)

    def _run(self, tokens: Tensor) -> tuple[list[Tensor], dict[tuple[int, int], Tensor]]:
        """Run the layers uncompiled, and add their units, attention and streams.

        Returns the states (n, d_model) that the head would read: at each depth, and after each (layer, block) that
        `BlockExits` measures.
        """
        hidden: list[Tensor] = []
        block_hidden: dict[tuple[int, int], Tensor] = {}

        def on_units(layer: int, block: int, activations: Tensor) -> None:
            self._activations[layer, block].add(activations)

        def on_block_exit(layer: int, block: int, states: Tensor) -> None:
            block_hidden[layer, block] = states.flatten(0, 1)

        def on_output(depth: int, module: Any, args: Any, output: Any) -> None:
            hidden.append(self._add_stream(depth, output[0]))

        layers = cast(list[DecoderLayer], list(self._model.layers))
        with ExitStack() as stack:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            hook = layers[0].register_forward_pre_hook(lambda _, args: hidden.append(self._add_stream(0, args[0])))
            stack.enter_context(hook)
            for index, layer in enumerate(layers):
                stack.enter_context(layer.register_forward_hook(partial(on_output, index + 1)))
                stack.enter_context(hook_units(layer.ffn, partial(on_units, index)))
                stack.enter_context(hook_block_exits(layer, self._model.exit, partial(on_block_exit, index)))
            calls = stack.enter_context(AttentionCalls(lambda layer, call: self._sinks[layer].add_attention(call)))
            self._model.stream(tokens)
        if calls.n_calls != len(layers):  # the reference form of capped scores makes no call of attention
            raise UserError("WIDTHWISE_KERNELS: got reference; the analysis of capped scores needs fused")
        return hidden, block_hidden

    def _add_stream(self, depth: int, stream: Stream) -> Tensor:
        """Add the stream after a layer, and return the states (n, d_model) that the head would read.

        Depth 0 is the stream before the first layer. Statistics are over the coordinates written so far, or all slots.
        """
        config = self._model.config
        width = max((config.d_model, *config.widths[:depth]))
        states = config.residual.to_slots(stream, width).flatten(-2)
        if depth == 0 and type(self._model.entry) is PadEntry:
            states = states[..., :width]  # nothing has written the padding yet
        if not states.isfinite().all():
            raise UserError(f"the stream after layer {depth} has numbers that are not finite; use another checkpoint")
        if depth == len(self._entropies):
            self._entropies.append(MatrixEntropy(states.shape[-1], states.device))
        self._entropies[depth].add(states.flatten(0, 1))
        if depth > 0:
            self._sinks[depth - 1].add_stream(states)
        return self._model.exit(stream).flatten(0, 1)

    def summary(self, **about: Any) -> AnalysedModel:
        """Return the record of the model. about: fields that are not measured, such as its name and source.

        In a mixture of experts block 1 has the units of all routed experts, and block 2 the units of a shared expert.
        """
        stream = [entropy.summary(depth) for depth, entropy in enumerate(self._entropies)]
        blocks = sorted(self._activations)
        return AnalysedModel(
            **about,
            d_model=self._model.config.d_model,
            widths=self._model.config.widths,
            n_tokens=self._n_tokens,
            activations=[self._activations[layer, block].summary(layer, block) for layer, block in blocks],
            stream=stream,
            logit_lens=self._lens.summary(),
            block_exits=self._exits.summary(),
            sinks=[meter.summary(layer) for layer, meter in enumerate(self._sinks, start=1)],
            valley=valley([state.entropy for state in stream]),
        )
