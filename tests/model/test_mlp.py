"""The feed-forward without a gate; what every feed-forward promises is in test_ffn_contract.py."""

import pytest
import torch
from literal_decoder import mlp
from model_cases import config

from widthwise.model.context import PassContext
from widthwise.model.decoder import build
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.mlp_module import ACTIVATIONS
from widthwise.model.norm import NormConfig, NormSite

D_MODEL, D_OUT, D_FF = 9, 7, 11
CONTEXT = PassContext(torch.zeros(2, 5, dtype=torch.long), rope={}, mask=None, progress=torch.ones(()))


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_and_gradients_are_the_formula(activation, bias):
    without_norm = NormSite("none", NormConfig(norm_dim=D_MODEL))
    module = MLPConfig(d_ff=D_FF, activation=activation, bias=bias).build(D_MODEL, D_OUT, without_norm).double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed))
    x, weights = random(2, 5, D_MODEL).requires_grad_(), random(2, 5, D_OUT, seed=9)
    ours, literal = module(x, CONTEXT)[0], mlp(module, x)
    torch.testing.assert_close(ours, literal, rtol=1e-12, atol=1e-12)
    inputs = (x, *module.parameters())
    assert len(inputs) == (5 if bias else 3)
    for a, b in zip(*(torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, literal)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_biases_start_at_zero_and_matrices_as_those_of_any_feed_forward():
    recipe = {"ffn": {"kind": "mlp", "d_ff": 400, "bias": True}, "init": {"std": 0.3, "depth_scaled": True}}
    model = build(config("uniform", **recipe), seed=1)
    for layer in model.layers:
        assert all((w.bias.weight == 0).all() for w in (layer.ffn.w_up, layer.ffn.w_down))
        for w, std in ((layer.ffn.w_up, 0.3), (layer.ffn.w_down, 0.3 / 10**0.5)):  # 5 layers of 2 updates
            assert w.weight.std().item() == pytest.approx(std, rel=0.05)
