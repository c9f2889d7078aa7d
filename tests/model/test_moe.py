"""Mixtures of experts: routing and its losses, token by token. Mixtures in a decoder are compared with the papers'
equation in test_decoder.py; properties of every feed-forward are in test_ffn_contract.py.
"""

import pytest
import torch
from comparing import CONTEXT, assert_same, random, randomised
from literal_decoder import mixture as literal_mixture

from widthwise.config_io import parse
from widthwise.model.ffn.moe import MoEConfig, MoETemplate
from widthwise.model.norm import NormConfig, NormSite, Place

D_MODEL, D_OUT, N_EXPERTS, TOP_K, D_EXPERT = 9, 7, 5, 2, 3
NO_NORM = NormSite(Place(), NormConfig(norm_dim=1))


def mixture(**changes):
    """Return a module with random fp64 weights and without a norm."""
    sizes = {"n_experts": N_EXPERTS, "top_k": TOP_K, "d_expert": D_EXPERT}
    return randomised(MoEConfig(**{**sizes, **changes}).build(D_MODEL, D_OUT, NO_NORM).double())


def inputs():
    return random(2, 5, D_MODEL).requires_grad_()


def literal_losses(module, x):
    """Return balance loss, router z-loss and expert load by their formulas."""
    c = module.config
    logits = x.flatten(0, 1) @ module.w_router.weight.T
    normalisers = logits.exp().sum(dim=1)
    probabilities = (logits.exp() / normalisers[:, None]).mean(dim=0)
    counts = logits.topk(c.top_k, dim=1).indices.flatten().bincount(minlength=c.n_experts)
    load = counts.double() / counts.sum()
    return c.n_experts * (probabilities * load).sum(), (normalisers.log() ** 2).mean(), load


@pytest.mark.parametrize("changes", [{}, {"top_k": 1}, {"top_k": 5}, {"d_shared": 4}, {"n_experts": 1, "top_k": 1}])
def test_equals_loops_over_experts_and_tokens_with_gradients(changes):
    module, x = mixture(**changes, balance_coefficient=0.3, z_coefficient=0.07), inputs()
    update, choices = module(x, CONTEXT)
    balance, router_z, load = literal_losses(module, x)
    torch.testing.assert_close(choices["balance_loss"], balance.detach())
    torch.testing.assert_close(choices["router_z_loss"], router_z.detach())
    torch.testing.assert_close(choices["expert_load"], load)
    assert {name for name, tensor in choices.items() if tensor.requires_grad} == {"auxiliary_loss"}
    truth = [literal_mixture(module, x), 0.3 * balance + 0.07 * router_z]
    assert_same([update, choices["auxiliary_loss"]], truth, [x, *module.parameters()])
    assert module.eval()(x, CONTEXT)[1].keys() == {"expert_load"}


def test_weights_and_losses_are_fp32_under_autocast():
    module, x = mixture().float(), inputs().detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        update, choices = module(x, CONTEXT)
        logits = module.w_router(x).flatten(0, 1)
    assert update.dtype == logits.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in choices.values()} == {torch.float32}
    assert choices["router_z_loss"] == logits.float().logsumexp(dim=-1).square().mean()


def test_widths_follow_the_layer_or_are_given():
    def widths(d_model, **options):
        template = parse(MoETemplate, {"kind": "moe", "n_experts": 4, "top_k": 2, **options})
        return template.at_width(d_model).hidden_widths

    assert widths(100, ratio=0.37) == (37, 37)
    assert widths(100, ratio=0.37, multiple_of=8, n_shared_experts=2) == (40, 40, 80)
    assert widths(1, ratio=0.01) == (1, 1)
    assert widths(100, d_expert=5, n_shared_experts=1) == (5, 5, 5)
