"""Manifold-constrained hyper-connections against DeepSeek-V4's module in transformers and against their formulas."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from comparing import assert_same, random, randomised
from torch import Tensor

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.model.norm import NormConfig
from widthwise.model.residual.manifold import ManifoldConfig
from widthwise.shape.template import ModelTemplate

WIDTH = 7
MODEL = {
    "vocab_size": 9,
    "d_model": 8,
    "n_layers": 2,
    "attention": {"n_heads": 2},
    "ffn": {"kind": "swiglu", "d_ff": 4},
}


def site_and_exit(n: int, dtype=torch.float64, **options):
    """Return a site and an exit with random weights; the exit has no norm."""
    config = ManifoldConfig(slot_width=WIDTH, n_slots=n, **options)
    norm = NormConfig(kind="rms", norm_dim=WIDTH)
    site, exit_ = config.build(WIDTH, WIDTH, WIDTH), config.build_exit(WIDTH, WIDTH, norm)
    exit_.norm = torch.nn.Identity()
    return (randomised(module.to(dtype), seed=n) for module in (site, exit_))


def literal_reads(mixing, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reads of all slots, (B, T, n), and the other logits. state: (B, T, n, WIDTH)."""
    config = mixing.config
    flat = state.flatten(-2)
    root = (flat.square().sum(-1, keepdim=True) / flat.shape[-1] + config.eps).sqrt()
    scales = mixing.scale.weight.repeat_interleave(torch.tensor(mixing._sizes))
    logits = scales * (flat @ mixing.dynamic.weight.T) / root + mixing.static.weight
    return 1 / (1 + torch.exp(-logits[..., : config.n_slots])) + config.coefficient_eps, logits[..., config.n_slots :]


def literal_carry(config, logits: Tensor) -> Tensor:
    """Return the carry (B, T, n, n); entry (j, k) is the weight of slot j in the next slot k."""
    n, eps = config.n_slots, config.coefficient_eps
    if config.carry == "permutations":
        exponentials = torch.exp(logits)
        weights = exponentials / exponentials.sum(-1, keepdim=True)
        permutations = [torch.eye(n).double()[list(places)] for places in itertools.permutations(range(n))]
        return sum(weights[..., i, None, None] * permutation for i, permutation in enumerate(permutations))
    carry = torch.exp(logits).unflatten(-1, (n, n))
    carry = carry / carry.sum(-1, keepdim=True) + eps
    for axis in ([-2, -1] * config.n_iterations)[:-1]:  # columns first and last
        carry = carry / (carry.sum(axis, keepdim=True) + eps)
    return carry


@pytest.mark.parametrize("kernels", ["fused", "reference"])
@pytest.mark.parametrize(
    ("n", "options"),
    [
        (2, {}),
        (3, {"carry": "permutations"}),
        (4, {"coefficient_eps": 0.01, "eps": 0.3, "multiplier": 0.7}),
        (5, {"n_iterations": 3}),
    ],
)
def test_a_site_and_the_exit_equal_their_formulas(n, options, kernels, monkeypatch):
    monkeypatch.setenv("WIDTHWISE_KERNELS", kernels)
    site, exit_ = site_and_exit(n, **options)
    state, update = random(2, 3, n, WIDTH).requires_grad_(), random(2, 3, WIDTH, seed=2).requires_grad_()
    reads, logits = literal_reads(site.mixing, state)
    writes = site.config.multiplier * 2 / (1 + torch.exp(-logits[..., :n]))
    carry = literal_carry(site.config, logits[..., n:])
    written = writes[..., None] * update[..., None, :] + carry.transpose(-1, -2) @ state
    last_reads, _ = literal_reads(exit_.reduce, state)
    literal = [(reads[..., None] * state).sum(-2), written, (last_reads[..., None] * state).sum(-2)]
    x, skip = site.read(state)
    ours = [x, site.write(skip, update), exit_(state)]
    assert_same(ours, literal, [state, update, *site.parameters(), *exit_.parameters()], rtol=1e-12, atol=1e-12)


def with_weights_of(mixing: torch.nn.Module, theirs: torch.nn.Module, prefix: str = "") -> torch.nn.Module:
    """Copy our weights into a module of transformers and return it. prefix: of its names."""
    with torch.no_grad():
        for name, part in (("fn", mixing.dynamic), ("base", mixing.static), ("scale", mixing.scale)):
            getattr(theirs, prefix + name).copy_(part.weight)
    return theirs


def test_a_site_and_the_exit_equal_deepseek_v4_in_transformers():
    module = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    n = 4
    hf_config = SimpleNamespace(hc_mult=n, hidden_size=WIDTH, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6)
    site, exit_ = site_and_exit(n, torch.float32)
    connection = with_weights_of(site.mixing, module.DeepseekV4HyperConnection(hf_config))
    head = with_weights_of(exit_.reduce, module.DeepseekV4HyperHead(hf_config), "hc_")
    state, update = random(2, 3, n, WIDTH, dtype=torch.float32), random(2, 3, WIDTH, seed=2, dtype=torch.float32)
    post, comb, collapsed = connection(state)
    written = post[..., None] * update[..., None, :] + comb.transpose(-1, -2) @ state
    x, skip = site.read(state)
    ours = [x, site.write(skip, update), exit_(state)]
    torch.testing.assert_close(ours, [collapsed, written, head(state)], rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("residual", "changes", "message"),
    [
        ({}, {"shape": {"kind": "explicit", "widths": [8, 16]}}, "residual.kind: got manifold with a layer of width"),
        ({"n_slots": 5, "carry": "permutations"}, {}, "n_slots: got 5; must be at most 4"),
        ({"n_slots": 1}, {}, "n_slots: got 1; must be at least 2"),
        ({"kind": "virtual", "width": 2.5, "constraint": "manifold"}, {}, "width: got 2.5; must be whole"),
        ({"kind": "virtual", "width": 2, "constraint": "manifold", "reduce": "sum"}, {}, "reduce"),
    ],
)
def test_invalid_options_are_refused_in_one_line(residual, changes, message):
    with pytest.raises(UserError, match=message) as refused:
        parse(ModelTemplate, {**MODEL, **changes, "residual": {"kind": "manifold", **residual}}).resolve(4)
    assert "\n" not in str(refused.value)


def test_the_short_form_gives_a_manifold_config():
    short = {"kind": "virtual", "width": 4, "constraint": "manifold", "eps": 0.01}
    assert parse(ModelTemplate, {**MODEL, "residual": short}).resolve(4).residual == ManifoldConfig(
        slot_width=8, n_slots=4, eps=0.01
    )
