"""States that hyper-connections do not keep for the backward pass."""

import pytest
import torch
from model_cases import config, decoder, random_tokens

OPTIONS = [{}, {"dynamic": False}, {"embedding": "expand", "group_norm": "none", "multiplier": 0.22}]


def loss_and_gradients(state_every: int, options: dict, precision: torch.dtype, changes: dict) -> list[torch.Tensor]:
    residual = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 11, "state_every": state_every, **options}
    model = decoder(config("zigzag", residual=residual, **changes), dtype=torch.float32)
    tokens, targets = random_tokens(2, 7, seed=1), random_tokens(2, 7, seed=2)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        objective = model.loss(tokens, targets).objective
    objective.backward()
    return [objective.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("precision", "changes"), [(torch.float32, {"mtp": {"n_depths": 2}, "endpoints": "full"}), (torch.bfloat16, {})]
)
def test_gradients_of_a_model_do_not_depend_on_them(options, precision, changes):
    changes = dict(changes)
    truth = loss_and_gradients(1, options, precision, changes)
    assert all((gradient != 0).any() for gradient in truth)
    for state_every in (2, 3, 10, 99):
        for ours, expected in zip(loss_and_gradients(state_every, options, precision, changes), truth, strict=True):
            assert torch.equal(ours, expected)


def test_a_model_of_which_one_layer_is_compiled_keeps_what_it_must():
    """A state that comes out of a graph has no write that could make it again."""
    residual = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 11, "state_every": 10}
    tokens = random_tokens(2, 7)
    gradients = []
    for compiled in ((), (2,)):
        model = decoder(config("zigzag", residual=residual))
        for layer in compiled:
            model.layers[layer].compile(backend="aot_eager", fullgraph=True)
        model.loss(tokens, tokens).objective.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for ours, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, expected)
