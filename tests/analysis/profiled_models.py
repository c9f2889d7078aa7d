"""Small models of every kind, their profiles, and what they do written out: streams and activations, kept."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import decoder
from torch import Tensor
from torch.nn.functional import silu

from widthwise.analysis.profile import Profile, ProfileOptions
from widthwise.config_io import parse
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.dynamic_module import DynamicWidth
from widthwise.model.ffn.hourglass_module import Hourglass
from widthwise.model.ffn.mlp_module import MLP
from widthwise.model.ffn.moe_module import MoE
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

VOCAB_SIZE = 31
SEQ_LEN = 9
X = [20, 12, 4, 16]
UNIFORM = {"shape": {"kind": "explicit", "widths": [8, 8, 8]}, "n_layers": 3}
SLOTS = {"kind": "hyper_connections", "slot_width": 4}
HOURGLASS = {"kind": "hourglass", "n_blocks": 3, "d_hidden": 5}

MODELS: dict[str, dict[str, Any]] = {
    "uniform": UNIFORM,
    "x": {},
    "x_full_ends": {"shape": {"endpoints": "full"}, "residual": {"kind": "plain", "multiplier": 0.4}},
    "mlp": {"ffn": {"kind": "mlp", "activation": "relu2", "bias": True}},
    "capped": {"attention": {"score_cap": 0.4}, "logit_multiplier": 2.0, "logit_cap": 0.8},
    "hourglass": {"ffn": HOURGLASS},
    "hourglass_between_norms": {"ffn": HOURGLASS, "norm": {"placement": "both"}},
    "virtual_hourglass": {"residual": {**SLOTS, "n_slots": 6}, "ffn": {**HOURGLASS, "n_blocks": 2}},
    "moe": {"ffn": {"kind": "moe", "n_experts": 5, "top_k": 2, "d_expert": 3, "n_shared_experts": 2}},
    "dynamic": {"ffn": {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.1, "start": 0.5, "execution": "sliced"}},
    "virtual": {"residual": {**SLOTS, "n_slots": 6}},
    "virtual_padded": {"residual": {**SLOTS, "n_slots": 6, "embedding": "pad"}},
}


def config_of(name: str) -> ModelConfig:
    data = {
        "vocab_size": VOCAB_SIZE,
        "d_model": 8,
        "n_layers": len(X),
        "shape": {"kind": "explicit", "widths": X},
        "attention": {"n_heads": 2},
        "ffn": {"kind": "swiglu", "ratio": 1.7},
        "init": {"std": 0.4, "depth_scaled": False},
    }
    return parse(ModelTemplate, merge(data, MODELS[name]), "model").resolve(SEQ_LEN)


def model_of(name: str, dtype: torch.dtype = torch.float64) -> Decoder:
    """With weights that start at 0 or 1 moved, so that gains, biases, scores and mixtures are of no special form."""
    return decoder(config_of(name), dtype=dtype).eval()


def windows_of(n_windows: int, length: int = SEQ_LEN, seed: int = 1) -> Tensor:
    """Integers (n_windows, length + 1)."""
    return torch.randint(VOCAB_SIZE, (n_windows, length + 1), generator=torch.Generator().manual_seed(seed))


OPTIONS = ProfileOptions(thresholds=(0.0, 0.03, 0.2, 1.5), utilisation_threshold=0.25)
ABOUT = {"name": "model", "source": "", "kind": "hf", "step": None}


def summary(model: Decoder, windows: Tensor, batch: int = 2) -> dict[str, Any]:
    """The profile of a model that sees so many windows at a time."""
    profile = Profile(model, OPTIONS)
    for some in windows.split(batch):
        profile.add(some)
    return profile.summary(**ABOUT).to_data()


def close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """The same structure, and numbers that agree."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key], tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            close(one, other, tolerance)
    else:
        assert found == (expected if expected is None else pytest.approx(expected, abs=tolerance))


def assert_compiled_layers_show_the_same(
    model: Decoder, tokens: Tensor, summary: Callable[[Decoder, Tensor], Any]
) -> None:
    """An analysis finds what it found before the layers were compiled, and compiles nothing again."""
    expected, graphs = summary(model, tokens), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        before, n_graphs = model(tokens), len(graphs)
        assert summary(model, tokens) == expected
        assert torch.equal(model(tokens), before)
    assert n_graphs == len(graphs) > 0


class Trace:
    """What a model does with tokens (B, T); layers from 0 on."""

    def __init__(self, model: Decoder, tokens: Tensor):
        self.model = model
        self.streams: list[Tensor] = []
        """The stream at every depth, (B, T, coordinates written so far)."""
        self.lens_inputs: list[Tensor] = []
        """What the lens reads at every depth, (B, T, d_model), normalised."""
        self.block_lens_inputs: dict[tuple[int, int], Tensor] = {}
        """The same after each block but the last of every hourglass, by layer and block."""
        self.activations: dict[tuple[int, int], Tensor] = {}
        """Layer and block -> activations (B T, d_ff)."""
        with torch.no_grad():
            self.context = model._context(tokens, model.config.layers)
            (self._run_plain if model.config.residual.kind == "plain" else self._run_slots)(tokens)

    def _run_plain(self, tokens: Tensor) -> None:
        """One wide buffer, of which layers read and write a prefix."""
        model, config = self.model, self.model.config
        wide, written, multiplier = max(config.d_model, *config.widths), config.d_model, config.residual.multiplier
        buffer = torch.zeros(*tokens.shape, wide)
        buffer[..., : config.d_model] = model.embedding.weight[tokens] * config.embedding_multiplier
        self._keep_plain(buffer, written)
        for index, layer in enumerate(model.layers):
            sizes = layer.config
            buffer[..., : sizes.d_model] += multiplier * layer.attention(buffer[..., : sizes.d_in], self.context)
            for block, update in enumerate(literal_block_sums(layer.ffn, buffer[..., : sizes.d_model], self.context)):
                partial = buffer.clone()
                partial[..., : sizes.d_out] += multiplier * update[..., : sizes.d_out]
                self.block_lens_inputs[index, block] = self._plain_lens_input(partial)
            update = self._ffn(index, layer, buffer[..., : sizes.d_model].clone())
            buffer[..., : sizes.d_out] += multiplier * update
            written = max(written, sizes.d_model)
            self._keep_plain(buffer, written)

    def _keep_plain(self, buffer: Tensor, written: int) -> None:
        self.streams.append(buffer[..., :written].clone())
        self.lens_inputs.append(self._plain_lens_input(buffer))

    def _plain_lens_input(self, buffer: Tensor) -> Tensor:
        config, norm = self.model.config, self.model.exit.norm
        n = config.final_norm_width
        x = buffer[..., :n]
        x = x / (x.square().sum(-1, keepdim=True) / norm.norm_dim + norm.eps).sqrt()
        x = x * norm.weight
        x = torch.cat((x, buffer[..., n : config.d_model]), dim=-1) if n < config.d_model else x
        return x[..., : config.d_model]

    def _run_slots(self, tokens: Tensor) -> None:
        stream = self.model.embed(tokens)
        n_written = 8 if self.model.config.residual.embedding == "pad" else None
        self._keep_slots(stream, n_written)
        for index, layer in enumerate(self.model.layers):
            x, kept = layer.attention_residual.read(stream)
            stream = layer.attention_residual.write(kept, layer.attention(x, self.context))
            x, _ = layer.ffn_residual.read(stream)
            for block, update in enumerate(literal_block_sums(layer.ffn, x, self.context)):
                _, kept = layer.ffn_residual.read(stream)
                partial = layer.ffn_residual.write(kept, update[..., : layer.config.d_out])
                self.block_lens_inputs[index, block] = self.model.exit(partial)
            x, kept = layer.ffn_residual.read(stream)
            stream = layer.ffn_residual.write(kept, self._ffn(index, layer, x))
            self._keep_slots(stream)

    def _keep_slots(self, stream: Tensor, n_written: int | None = None) -> None:
        self.streams.append(stream.flatten(-2)[..., :n_written])
        self.lens_inputs.append(self.model.exit(stream))

    def _ffn(self, index: int, layer: Any, x: Tensor) -> Tensor:
        for block, activations in enumerate(literal_activations(layer.ffn, x, self.context)):
            self.activations[index, block] = activations.flatten(0, -2)
        return layer.ffn(x, self.context)[0]


def gated(ffn: Any, x: Tensor) -> Tensor:
    return silu(x @ ffn.w_gate.weight.T) * (x @ ffn.w_up.weight.T)


def literal_activations(ffn: Any, x: Tensor, context: Any) -> list[Tensor]:
    """The activations of every block of a feed-forward that reads x, each (B, T, d_ff)."""
    if isinstance(ffn, Hourglass):
        return [activations for activations, _ in literal_blocks(ffn, x, context)]
    stream, x = x, ffn.norm.before(x)
    if isinstance(ffn, MLP):
        return [ffn.w_up(x).relu().square()]
    if isinstance(ffn, MoE):
        return [_routed(ffn, x), gated(ffn.shared, ffn.shared.norm.before(x))]
    if isinstance(ffn, DynamicWidth):
        config = ffn.config
        level = torch.sigmoid(ffn.score(ffn.score.source(x, stream)) + ffn.bias())
        width = config.d_ff * (config.min_fraction + (1 - config.min_fraction) * level)
        return [gated(ffn, x) * (torch.arange(config.d_ff) + 0.5 < width[..., None])]
    return [gated(ffn, x)]


def literal_blocks(ffn: Hourglass, x: Tensor, context: Any) -> list[tuple[Tensor, Tensor]]:
    """Of each block its activations, and what it and the blocks before it add to the stream x, (B, T, d_model)."""
    found, h = [], x
    for block in ffn.blocks:
        activations, update = gated(block, block.norm.before(h)), block(h, context)[0]
        h = torch.cat((h[..., : update.shape[-1]] + update, h[..., update.shape[-1] :]), dim=-1)
        found.append((activations, h - x))
    return found


def literal_block_sums(ffn: Any, x: Tensor, context: Any) -> list[Tensor]:
    """What is added behind each block but the last of an hourglass."""
    return [added for _, added in literal_blocks(ffn, x, context)[:-1]] if isinstance(ffn, Hourglass) else []


def _routed(ffn: MoE, x: Tensor) -> Tensor:
    size, top_k = ffn.config.d_expert, ffn.config.top_k
    found = torch.zeros(*x.shape[:2], ffn.config.n_experts * size)
    for place in np.ndindex(*x.shape[:2]):
        for expert in (x[place] @ ffn.w_router.weight.T).argsort(descending=True)[:top_k].tolist():
            own = slice(expert * size, (expert + 1) * size)
            gate, up = ffn.w_gate.weight[own], ffn.w_up.weight[own]
            found[(*place, own)] = silu(gate @ x[place]) * (up @ x[place])
    return found


def spectrum(states: np.ndarray) -> dict[str, Any]:
    """Matrix entropy and participation, from the singular values of the matrix of all tokens. states: (n, width)."""
    n, width = states.shape
    p = np.linalg.svd(states, compute_uv=False) ** 2
    p = p / p.sum()
    entropy = -sum(share * math.log(share) for share in p if share > 0)
    rank = min(n, width)
    return {"width": width, "rank": rank, "entropy": entropy / math.log(rank), "participation": 1 / (p**2).sum()}


def unit_statistics(activations: np.ndarray, thresholds: tuple[float, ...], used: float) -> dict[str, Any]:
    """The statistics of a whole activation matrix (n, d_ff), as their definitions say."""
    energy = (activations**2).sum(axis=0)
    utilisation = (np.abs(activations) > used).mean(axis=0)
    participation = energy.sum() ** 2 / (energy**2).sum()
    return {
        "d_ff": activations.shape[1],
        "density": [float((np.abs(activations) > threshold).mean()) for threshold in thresholds],
        "utilisation": utilisation.tolist(),
        "dead_share": float((utilisation == 0).mean()),
        "participation": participation,
        "participation_share": participation / activations.shape[1],
    }
