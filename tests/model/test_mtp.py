"""Heads that predict further tokens: their losses against the definition, and what they cost."""

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

OF_WHOLE_TEXTS = [name for name in STREAMS if name != "windows"]
"""Streams of models whose attention reads, and costs, all tokens."""


def is_main(name: str) -> bool:
    return not name.startswith("mtp.")


def without_heads(model: Decoder) -> Decoder:
    """The model alone, from the state dict without `mtp`."""
    bare = Decoder(model.config.model_copy(update={"mtp": None}))
    bare.load_state_dict({name: value for name, value in model.state_dict().items() if is_main(name)})
    return bare


def literal_layer(model: Decoder, depth, slots: torch.Tensor) -> torch.Tensor:
    """The slots after the layer of a depth over whole rows, with positions from 0 and a written-out mask."""
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
    """The logits of every depth at all positions, written out, where the model reads the first n_inputs tokens."""
    residual, d = model.config.residual, model.config.d_model
    state = residual.to_slots(model.stream(text[:, :n_inputs]), d)
    embedded = residual.to_slots(model.embed(text), d)
    found = []
    for k, depth in enumerate(model.depths, start=1):
        n = n_inputs - k
        halves = normalised(depth.state_norm, state[:, :n]), normalised(depth.embedding_norm, embedded[:, k : k + n])
        state = literal_layer(model, depth, torch.cat(halves, dim=-1) @ depth.w_join.weight.T)
        hidden = depth.exit(residual.from_slots(state))
        found.append(capped(hidden @ model.head.weight.T * model.config.logit_multiplier, model.config.logit_cap))
    return found


@pytest.mark.parametrize("stream", OF_WHOLE_TEXTS)
def test_objective_losses_and_gradients_equal_the_definition(stream):
    changes = {} if stream == "capped" else {"logit_multiplier": 0.5}
    model = mtp_decoder(stream, 3, mtp={"coefficient": 0.7}, **changes)
    text, n = random_tokens(2, 8), 7
    found = model.loss(text[:, :-1], text[:, 1:])
    expected = []
    for k, logits in enumerate(literal_logits(model, text, n), start=1):
        assert logits.shape[1] == n - k
        losses = cross_entropy(logits.flatten(0, 1), text[:, k + 1 :].flatten(), reduction="none")
        expected.append(losses.view(2, n - k))
    torch.testing.assert_close(list(found.mtp_losses), expected, **TIGHT)
    bare = without_heads(model)
    assert list(bare.state_dict()) == [name for name in model.state_dict() if is_main(name)]
    assert torch.equal(found.losses, bare.loss(text[:, :-1], text[:, 1:]).losses)
    further = found.objective - cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    objective = 0.7 * torch.stack([losses.mean() for losses in expected]).mean()
    parameters = list(model.parameters())
    ours, truths = (torch.autograd.grad(each, parameters, allow_unused=True) for each in (further, objective))
    for gradient, truth in zip(ours, truths, strict=True):
        if truth is not None:
            torch.testing.assert_close(gradient, truth, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("n_tokens", "n_asked"), [(1, 0), (2, 1), (4, 3), (9, 5)])
def test_depths_beyond_a_short_row_are_left_out(n_tokens, n_asked):
    model = mtp_decoder("virtual", 5)
    found = model.loss(random_tokens(2, n_tokens), random_tokens(2, n_tokens, seed=1))
    assert [losses.shape for losses in found.mtp_losses] == [(2, n_tokens - k) for k in range(1, n_asked + 1)]
    further = torch.stack([losses.mean() for losses in found.mtp_losses]).mean() if n_asked else torch.zeros(())
    torch.testing.assert_close(found.objective, found.losses.mean() + 0.3 * further, **TIGHT)
    found.objective.backward()
    for k, depth in enumerate(model.depths, start=1):
        for parameter in (p for name, p in depth.named_parameters() if "w_reduce" not in name):
            assert (parameter.grad is not None) == (k <= n_asked)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_auxiliary_losses_of_a_depth_join_its_own_loss():
    model = mtp_decoder("virtual", 2, mtp={"coefficient": 0.4}, **MOE)
    auxiliary = []
    for depth in model.depths:
        depth.register_forward_hook(lambda module, inputs, output: auxiliary.append(output[1]["auxiliary_loss"]))
    found = model.loss(random_tokens(2, 7), random_tokens(2, 7, seed=1))
    assert len(found.choices) == 5
    of_depths = [losses.mean() + term for losses, term in zip(found.mtp_losses, auxiliary, strict=True)]
    assert min(auxiliary) > 0
    of_model = found.losses.mean() + sum(chosen["auxiliary_loss"] for chosen in found.choices)
    torch.testing.assert_close(found.objective, of_model + 0.4 * sum(of_depths) / 2, **TIGHT)


@pytest.mark.parametrize("stream", OF_WHOLE_TEXTS)
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
def test_activation_bytes_are_those_autograd_keeps(stream):
    torch.set_default_dtype(torch.float32)
    n_depths, n = 2, 9
    resolved, one = mtp_config(stream, n_depths), mtp_config(stream, 1).costs()["mtp"]
    model, bare = (decoder(each, dtype=torch.float32) for each in (resolved, resolved.model_copy(update={"mtp": None})))
    added = kept_in_training(model, n) - kept_in_training(bare, n)
    asked = sum(n - k for k in range(1, n_depths + 1)) / n  # per token
    assert added == pytest.approx(asked * one.activation_bytes(4), rel=1e-12)
