import pytest
import torch
from tiny_runs import tiny_recipe

from widthwise.model.axes import Embedding, Linear, RMSNorm, Vector
from widthwise.model.decoder import build
from widthwise.training.config import AdamWConfig
from widthwise.training.optimizer import build_optimizer, set_lr


@pytest.fixture
def model():
    return build(tiny_recipe("model.init.width_multiplier=8").explicit_model, seed=0)


def groups_by_parameter(model, optimizer):
    owner = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    assert len(owner) == sum(len(group["params"]) for group in optimizer.param_groups)
    return {name: owner[id(parameter)] for name, parameter in model.named_parameters()}


def test_only_gains_do_not_decay(model):
    groups = groups_by_parameter(model, build_optimizer(model, AdamWConfig(lr=0.01, weight_decay=0.3)))
    for name, group in groups.items():
        is_gain = isinstance(model.get_submodule(name.rpartition(".")[0]), RMSNorm)
        assert group["weight_decay"] == (0.0 if is_gain else 0.3), name


@pytest.mark.parametrize("decays_embedding", [False, True])
@pytest.mark.parametrize("decays_gains", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_gains_decay_when_asked(decays_embedding, decays_gains, tied):
    """A head of its own decays like any matrix; a tied one is the embedding. Vectors never decay."""
    tying, choice = (
        f"model.tie_embeddings={str(tied).lower()}",
        "model.ffn={kind: dynamic, d_ff: 9, score: {kind: const}}",
    )
    model = build(tiny_recipe(tying, choice).explicit_model, seed=0)
    config = AdamWConfig(lr=0.01, weight_decay=0.3, decays_embedding=decays_embedding, decays_gains=decays_gains)
    kinds = {Embedding: decays_embedding, RMSNorm: decays_gains, Vector: False, Linear: True}
    seen = set()
    for name, group in groups_by_parameter(model, build_optimizer(model, config)).items():
        (kind,) = (kind for kind in kinds if isinstance(model.get_submodule(name.rpartition(".")[0]), kind))
        assert group["weight_decay"] == (0.3 if kinds[kind] else 0.0), name
        seen.add(kind)
    assert seen == set(kinds)


def test_hidden_matrices_learn_at_the_rate_over_the_width_multiplier(model):
    optimizer = build_optimizer(model, AdamWConfig(lr=0.01))
    set_lr(optimizer, 0.004)
    groups = groups_by_parameter(model, optimizer)
    assert groups["embedding.weight"]["lr"] == groups["head.weight"]["lr"] == groups["norm.weight"]["lr"] == 0.004
    assert groups[hidden_matrix(model)]["lr"] == 0.0005


def hidden_matrix(model):
    return next(
        name for name, parameter in model.named_parameters() if name.startswith("layers") and parameter.dim() == 2
    )


def test_first_step_is_adamw_by_the_formula(model):
    config = AdamWConfig(lr=0.01, weight_decay=0.1, eps=1e-3)
    optimizer = build_optimizer(model, config)
    set_lr(optimizer, 0.02)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    groups = groups_by_parameter(model, optimizer)
    for name, parameter in model.named_parameters():
        lr, decay, grad = groups[name]["lr"], groups[name]["weight_decay"], parameter.grad
        expected = before[name] * (1 - lr * decay) - lr * grad / (grad.abs() + config.eps)
        torch.testing.assert_close(parameter.detach(), expected)
