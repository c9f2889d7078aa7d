"""MTP heads: their losses compared with the definition, and their costs."""

import pytest
import torch
from literal_decoder import capped, normalised, sublayers
from measured import counted_flops, kept_in_training
from model_cases import STREAMS, decoder, mtp_config, mtp_decoder, random_tokens
from torch.nn.functional import cross_entropy

from widthwise.kernels.rotary import rope_table
from widthwise.model.context import PassContext
from widthwise.model.decoder import Decoder

pytestmark = pytest.mark.usefixtures("float64")
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
MOE = {"ffn": {"kind": "moe", "n_experts": 5, "top_k": 2, "ratio": 0.5, "balance_coefficient": 0.3}}

WITHOUT_WINDOWS = [name for name in STREAMS if name != "windows"]
"""Streams of models whose attention sees all tokens."""


def is_main(name: str) -> bool:
    return not name.startswith("mtp.")


def without_heads(model: Decoder) -> Decoder:
    """Return the model without MTP heads, from the state dict without `mtp`."""
    bare = Decoder(model.config.model_copy(update={"mtp": None}))
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if is_main(name)})
    return bare


def literal_layer(model: Decoder, depth, slots: torch.Tensor) -> torch.Tensor:
    """Return the slots after the layer of a depth, with positions from 0 and a written-out causal mask."""
    residual, sizes, n = model.config.residual, model.config.mtp.layer, slots.shape[1]
    if residual.kind == "plain":
        h, (attend, feed) = slots.flatten(2), sublayers(depth.layer, sizes)
        h = h + residual.multiplier * attend(h)
        return (h + residual.multiplier * feed(h)).view_as(slots)
    rope = sizes.attention.rope
    tables = {} if rope is None else {rope: rope_table(torch.arange(n)[None], rope)}
    context = PassContext(tables, {None: torch.ones(n, n, dtype=torch.bool).tril()})
    return residual.to_slots(depth.layer(residual.from_slots(slots), context)[0], model.config.d_model)


def literal_logits(model: Decoder, text: torch.Tensor, n_inputs: int) -> list[torch.Tensor]:
    """Return the logits of every depth at all positions, written out. n_inputs: tokens that the model reads."""
    residual, d = model.config.residual, model.config.d_model
    state = residual.to_slots(model.stream(text[:, :n_inputs]), d)
    embedded = residual.to_slots(model.embed(text), d)
    logits = []
    for k, depth in enumerate(model.depths, start=1):
        n = n_inputs - k
        halves = normalised(depth.state_norm, state[:, :n]), normalised(depth.embedding_norm, embedded[:, k : k + n])
        state = literal_layer(model, depth, torch.cat(halves, dim=-1) @ depth.w_join.weight.T)
        hidden = depth.exit(residual.from_slots(state))
        logits.append(capped(hidden @ model.head.weight.T * model.config.logit_multiplier, model.config.logit_cap))
    return logits


@pytest.mark.parametrize("stream", WITHOUT_WINDOWS)
def test_objective_losses_and_gradients_equal_the_definition(stream):
    changes = {} if stream == "capped" else {"logit_multiplier": 0.5}
    model = mtp_decoder(stream, 3, mtp={"coefficient": 0.7}, **changes)
    text, n = random_tokens(2, 8), 7
    loss = model.loss(text[:, :-1], text[:, 1:])
    expected = []
    for k, logits in enumerate(literal_logits(model, text, n), start=1):
        assert logits.shape[1] == n - k
        losses = cross_entropy(logits.flatten(0, 1), text[:, k + 1 :].flatten(), reduction="none")
        expected.append(losses.view(2, n - k))
    torch.testing.assert_close(list(loss.mtp_losses), expected, **TIGHT)
    bare = without_heads(model)
    assert list(bare.state_dict()) == [name for name in model.state_dict() if is_main(name)]
    assert torch.equal(loss.losses, bare.loss(text[:, :-1], text[:, 1:]).losses)
    mtp_objective = loss.objective - cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    expected_objective = 0.7 * torch.stack([losses.mean() for losses in expected]).mean()
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(mtp_objective, parameters, allow_unused=True)
    expected_gradients = torch.autograd.grad(expected_objective, parameters, allow_unused=True)
    for gradient, truth in zip(gradients, expected_gradients, strict=True):
        if truth is not None:
            torch.testing.assert_close(gradient, truth, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("n_tokens", "n_used"), [(1, 0), (2, 1), (4, 3), (9, 5)])
def test_depths_without_targets_in_a_short_row_are_skipped(n_tokens, n_used):
    model = mtp_decoder("virtual", 5)
    loss = model.loss(random_tokens(2, n_tokens), random_tokens(2, n_tokens, seed=1))
    assert [losses.shape for losses in loss.mtp_losses] == [(2, n_tokens - k) for k in range(1, n_used + 1)]
    mtp_loss = torch.stack([losses.mean() for losses in loss.mtp_losses]).mean() if n_used else torch.zeros(())
    torch.testing.assert_close(loss.objective, loss.losses.mean() + 0.3 * mtp_loss, **TIGHT)
    loss.objective.backward()
    for k, depth in enumerate(model.depths, start=1):
        for parameter in (p for name, p in depth.named_parameters() if "w_reduce" not in name):
            assert (parameter.grad is not None) == (k <= n_used)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_auxiliary_losses_of_a_depth_are_added_to_its_loss():
    model = mtp_decoder("virtual", 2, mtp={"coefficient": 0.4}, **MOE)
    auxiliary = []
    for depth in model.depths:
        depth.register_forward_hook(lambda module, inputs, output: auxiliary.append(output[1]["auxiliary_loss"]))
    loss = model.loss(random_tokens(2, 7), random_tokens(2, 7, seed=1))
    assert len(loss.choices) == 5
    depth_objectives = [losses.mean() + term for losses, term in zip(loss.mtp_losses, auxiliary, strict=True)]
    assert min(auxiliary) > 0
    model_objective = loss.losses.mean() + sum(layer["auxiliary_loss"] for layer in loss.choices)
    torch.testing.assert_close(loss.objective, model_objective + 0.4 * sum(depth_objectives) / 2, **TIGHT)


@pytest.mark.parametrize("stream", WITHOUT_WINDOWS)
def test_cost_equals_the_built_heads_and_their_flops(stream, monkeypatch):
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    n_depths, n = 3, 11
    resolved = mtp_config(stream, n_depths)
    model = decoder(resolved)
    names = [name for name, _ in model.named_parameters() if not is_main(name)]
    cost = resolved.costs()["mtp"]
    assert cost.params == cost.active_params == sum(model.get_parameter(name).numel() for name in names)
    tokens, bare = random_tokens(2, n), without_heads(model)
    added = counted_flops(lambda: model.loss(tokens, tokens)) - counted_flops(lambda: bare.loss(tokens, tokens))
    one = mtp_config(stream, 1).costs()["mtp"]
    assert added == 2 * sum((n - k) * one.forward_flops(n - k) for k in range(1, n_depths + 1))
    assert cost.forward_flops(n) == n_depths * one.forward_flops(n)


@pytest.mark.parametrize("stream", ["plain_x", "plain_narrow_end", "layer_norm", "gqa"])
def test_activation_bytes_are_the_bytes_that_autograd_keeps(stream):
    torch.set_default_dtype(torch.float32)
    n_depths, n = 2, 9
    resolved, one = mtp_config(stream, n_depths), mtp_config(stream, 1).costs()["mtp"]
    model = decoder(resolved, dtype=torch.float32)
    bare = decoder(resolved.model_copy(update={"mtp": None}), dtype=torch.float32)
    added = kept_in_training(model, n) - kept_in_training(bare, n)
    targets_per_token = sum(n - k for k in range(1, n_depths + 1)) / n
    assert added == pytest.approx(targets_per_token * one.activation_bytes(4), rel=1e-12)
