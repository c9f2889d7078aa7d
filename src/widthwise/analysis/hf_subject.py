"""A causal language model of transformers as a subject of the statistics."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from widthwise.analysis.subject import AttentionCall, Subject, Watcher, watched_layers
from widthwise.config_io import UserError


class ModuleNames(NamedTuple):
    """The module names of an architecture."""

    families: str
    layers: str
    norm: str
    """The norm before the head."""
    down: str
    """The down-projection within a layer."""


MODULE_NAMES = (
    ModuleNames("Llama, Mistral, Qwen 2 and 3, OLMo 2", "layers", "norm", "mlp.down_proj"),
    ModuleNames("GPT-2", "h", "ln_f", "mlp.c_proj"),
    ModuleNames("GPT-NeoX", "layers", "final_layer_norm", "mlp.dense_4h_to_h"),
)
TOLERANCE = 1e-3
"""Allowed difference of the logits, relative to the largest."""


class HFSubject(Subject):
    """In evaluation mode, with the attention called `sdpa`, the usual one.

    Raises UserError where its parts are not found, or do not make the logits that the model makes.
    """

    def __init__(self, model: Any):
        """model: a `PreTrainedModel` for causal language modelling."""
        self._model, self._kind = model, model.config.model_type
        self._layers, self._downs, self._norm = _parts(model, self._kind)
        self._head: nn.Linear = model.get_output_embeddings()
        self._check()

    @property
    def d_model(self) -> int:
        return self._head.weight.shape[1]

    @property
    def widths(self) -> list[int]:
        return [self.d_model] * len(self._layers)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)

    def run(self, tokens: Tensor, watcher: Watcher) -> None:
        def show(depth: int, stream: Tensor) -> None:
            watcher.see_stream(depth, stream, self._norm(stream))

        def see_down(layer: int, module: Any, args: Any) -> None:
            watcher.see_activations(layer, 0, args[0].flatten(0, -2))

        with ExitStack() as stack:
            stack.enter_context(watched_layers(self._layers, watcher, show))
            for index, down in enumerate(self._downs):
                stack.enter_context(down.register_forward_pre_hook(partial(see_down, index)))
            self._model.base_model(tokens, use_cache=False)

    @torch.no_grad()
    def _check(self) -> None:
        tokens, seen = torch.arange(2, device=self._head.weight.device)[None], _Seen()
        self.run(tokens, seen)
        if seen.n_calls != len(self._layers):
            raise UserError(
                f"{self._kind}: {seen.n_calls} of its {len(self._layers)} layers call torch's "
                "scaled_dot_product_attention, through which attention is seen; load it with attn_implementation sdpa"
            )
        expected = self._model(tokens, use_cache=False).logits
        difference = (self.logits(seen.hidden) - expected).abs().max()
        if not difference <= TOLERANCE * expected.abs().max():
            raise UserError(
                f"{self._kind}: its logits are not its head's of its normalised stream, so there is no logit lens"
            )


class _Seen(Watcher):
    """The last hidden states, and the number of calls of attention."""

    hidden: Tensor

    def __init__(self) -> None:
        self.n_calls = 0

    def see_stream(self, depth: int, stream: Tensor, hidden: Tensor) -> None:
        self.hidden = hidden

    def see_activations(self, layer: int, block: int, activations: Tensor) -> None:
        pass

    def see_block(self, layer: int, block: int, hidden: Tensor) -> None:
        pass

    def see_attention(self, layer: int, call: AttentionCall) -> None:
        self.n_calls += 1


def _parts(model: Any, kind: str) -> tuple[Sequence[nn.Module], list[nn.Module], nn.Module]:
    """Layers, their down-projections, the last norm. Raises UserError where no layout fits."""
    for layout in MODULE_NAMES:
        try:
            layers = list(model.base_model.get_submodule(layout.layers).children())
            downs = [layer.get_submodule(layout.down) for layer in layers]
            return layers, downs, model.base_model.get_submodule(layout.norm)
        except AttributeError:
            continue
    known = ", ".join(layout.families for layout in MODULE_NAMES)
    raise UserError(f"{kind}: its layers, their down-projections and last norm are not found; known are {known}")
