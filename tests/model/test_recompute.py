"""Activation checkpointing: layers run again in the backward pass compute what they computed before."""

import pytest
import torch
from measured import kept_bytes
from model_cases import CASES, SLOTS, config, decoder, random_tokens, variant
from torch.testing import assert_close

from widthwise.kernels.dispatch import VARIABLE
from widthwise.model.config import ModelConfig
from widthwise.model.recompute import RECOMPUTE

TOKENS, TARGETS = random_tokens(2, 9), random_tokens(2, 9, seed=1)
DYNAMIC = {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.1, "start": 0.5}
MIXTURE = {"kind": "moe", "n_experts": 5, "top_k": 2, "ratio": 0.5}


def losses_and_gradients(
    resolved: ModelConfig, kind: str, dtype=torch.float64, autocast=False, of_choices=False, width_fraction=None
) -> dict[str, torch.Tensor]:
    """The losses of each token, at every depth, and all gradients of the objective, or of what layers chose."""
    model = decoder(resolved, dtype=dtype)
    model.recompute = RECOMPUTE[kind]
    torch.manual_seed(7)  # for layers that draw
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model.loss(TOKENS, TARGETS, 1e-3, width_fraction)
    chosen = sum(value.sum() * (i + 1) for i, each in enumerate(loss.choices) for value in each.values())
    (chosen if of_choices else loss.objective).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert of_choices or len(gradients) > 5 * len(model.layers)
    return {"losses": loss.losses, "mtp_losses": loss.mtp_losses, "drawn after": torch.rand(()), **gradients}


def assert_the_same(resolved: ModelConfig, kinds=("layer", "selective"), atol=0.0, **how) -> None:
    kept = losses_and_gradients(resolved, "none", **how)
    for kind in kinds:
        assert_close(losses_and_gradients(resolved, kind, **how), kept, rtol=0, atol=atol)


@pytest.mark.parametrize(("shape", "name"), CASES)
def test_losses_and_gradients_are_bitwise_the_same_for_every_kind_of_model(shape, name):
    assert_the_same(variant(shape, name), kinds=("layer",))


@pytest.mark.parametrize(
    "name", ["plain", "reordered", "hourglass", "moe", "dynamic", "slots", "slots_static_padded", "slots_further_heads"]
)
def test_and_with_matrix_products_in_bf16(name):
    assert_the_same(variant("zigzag", name), dtype=torch.float32, autocast=True)


@pytest.mark.parametrize("name", ["plain", "moe_reordered", "slots", "slots_further_heads"])
def test_and_in_plain_torch_but_for_the_order_of_sums(name, monkeypatch):
    monkeypatch.setenv(VARIABLE, "reference")
    assert_the_same(variant("x", name), atol=1e-13)


@pytest.mark.parametrize(
    ("mask", "score"),
    [
        ("hard", "mlp"),
        ("ste", "linear"),
        ("soft", "random"),
        ("anneal", "rms_mean"),
        ("linear_ramp", "mlp"),
        ("nested", "mlp"),
    ],
)
def test_and_with_every_mask_also_where_widths_are_drawn(mask, score):
    assert_the_same(config("x", ffn={**DYNAMIC, "mask": {"kind": mask}, "score": {"kind": score}}))


def test_and_at_a_forced_width():
    assert_the_same(config("x", ffn=DYNAMIC), width_fraction=0.4)


@pytest.mark.parametrize("ffn", [DYNAMIC, MIXTURE], ids=["widths", "balance"])
def test_what_layers_choose_has_the_same_gradient(ffn):
    assert_the_same(config("zigzag", ffn=ffn), of_choices=True)


@pytest.mark.parametrize("state_every", [1, 3, 99])
@pytest.mark.parametrize("dynamic", [True, False])
def test_states_of_hyper_connections_are_made_again_within_a_layer(state_every, dynamic):
    residual = {**SLOTS, "n_slots": 11, "state_every": state_every, "dynamic": dynamic}
    assert_the_same(config("zigzag", residual=residual))


@pytest.mark.parametrize("name", ["plain", "slots"])
def test_a_second_backward_pass_gives_the_same_gradients(name):
    model = decoder(variant("x", name))
    model.recompute = RECOMPUTE["layer"]
    objective = model.loss(TOKENS, TARGETS).objective
    first, second = (
        torch.autograd.grad(objective, list(model.parameters()), retain_graph=True, allow_unused=True) for _ in range(2)
    )
    assert_close(second, first, rtol=0, atol=0)


def runs_of_layers(kind: str, pass_once) -> list[int]:
    """How often each layer, and then each further head, ran."""
    model = decoder(variant("uniform", "further_heads"))
    model.recompute = RECOMPUTE[kind]
    layers = [*model.layers, *model.depths]
    counts = [0] * len(layers)

    def count(layer, *_):
        counts[layers.index(layer)] += 1

    for layer in layers:
        layer.register_forward_pre_hook(count)
    pass_once(model)
    return counts


@pytest.mark.parametrize(
    ("kind", "expected"), [("none", [1] * 7), ("layer", [2] * 7), ("selective", [2, 1, 2, 1, 2, 2, 1])]
)
def test_layers_run_again_as_the_recipe_says(kind, expected):
    assert runs_of_layers(kind, lambda model: model.loss(TOKENS, TARGETS).objective.backward()) == expected


def test_no_layer_is_prepared_to_run_again_without_gradients_or_with_a_cache():
    def decode(model):
        model(TOKENS, model.new_cache(2, 9)).sum().backward()

    def evaluate(model):
        with torch.no_grad():
            model.loss(TOKENS, TARGETS)

    assert runs_of_layers("layer", decode) == [1] * 5 + [0] * 2
    assert runs_of_layers("layer", evaluate) == [1] * 7


def measured_bytes(resolved: ModelConfig, kind: str) -> float:
    """Bytes per token that two more sequences add to what autograd keeps."""
    model = decoder(resolved, dtype=torch.float32)
    model.recompute = RECOMPUTE[kind]

    def measured(batch: int) -> int:
        return kept_bytes(lambda: model.loss(random_tokens(batch, 9), random_tokens(batch, 9, seed=1)))

    return (measured(3) - measured(1)) / (2 * 9)


def assert_counted(resolved: ModelConfig, kind: str) -> None:
    cost = RECOMPUTE[kind].kept(resolved)
    assert measured_bytes(resolved, kind) == cost.activation_bytes(bytes_per_element=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert measured_bytes(resolved, kind) == cost.activation_bytes()


@pytest.mark.parametrize(("shape", "name"), [case for case in CASES if "further_heads" not in case[1]])
def test_bytes_kept_are_counted_where_every_layer_runs_again(shape, name):
    assert_counted(variant(shape, name), "layer")


@pytest.mark.parametrize("resize", ["carry", "zero", "projection"])
@pytest.mark.parametrize("kind", ["layer", "selective"])
def test_and_for_streams_of_several_parts(resize, kind):
    for shape, endpoints in (("x", "slim"), ("zigzag", "full"), ("growing", "slim")):
        assert_counted(config(shape, endpoints, residual={"kind": "plain", "resize": resize}), kind)


@pytest.mark.parametrize("name", ["gqa", "layer_norm_moe", "hourglass", "dynamic", "gpt2", "slots_tied", "slots_moe"])
def test_and_where_every_second_layer_runs_again(name):
    assert_counted(variant("zigzag", name), "selective")


@pytest.mark.parametrize("state_every", [1, 2, 5])
def test_and_of_two_states_a_layer_keeps_one_where_the_other_can_be_made_from_it(state_every):
    residual = {**SLOTS, "n_slots": 11, "state_every": state_every}
    for kind in ("layer", "selective"):
        assert_counted(config("zigzag", residual=residual), kind)


@pytest.mark.parametrize("kind", RECOMPUTE)
@pytest.mark.parametrize("name", ["further_heads", "slots_further_heads"])
def test_with_further_heads_no_more_is_kept_than_counted(name, kind):
    resolved = variant("diamond", name)
    counted = RECOMPUTE[kind].kept(resolved).activation_bytes(bytes_per_element=4)
    assert 0.85 * counted < measured_bytes(resolved, kind) <= counted  # depth k is asked at k positions fewer


@pytest.mark.parametrize("name", ["plain", "moe", "slots", "further_heads"])
def test_where_no_layer_runs_again_the_count_is_that_of_the_model(name):
    resolved = variant("x", name)
    assert RECOMPUTE["none"].kept(resolved) == RECOMPUTE["none"].activations(resolved)
    for size in (2, 4):
        counted = RECOMPUTE["none"].activations(resolved).activation_bytes(size)
        assert counted == resolved.cost().activation_bytes(size)


def test_the_most_at_any_moment_is_with_the_largest_layer():
    """A layer of width d and d_ff = 1.7 d: 36, the largest, reads 20 and keeps 20 + 4 x 36 + 36 + 3 x 61 numbers; its
    two heads and two norms keep 4 in fp32.
    """
    resolved, every = variant("x", "plain"), RECOMPUTE["layer"]
    d_ff = resolved.layers[0].ffn.d_ff
    kept, most = every.kept(resolved), every.activations(resolved)
    assert most.activation_elements - kept.activation_elements == 20 + 4 * 36 + 36 + 3 * d_ff
    assert most.activation_fp32_elements - kept.activation_fp32_elements == 4


def test_counting_needs_no_triton(monkeypatch):
    counted = RECOMPUTE["layer"].kept(variant("x", "slots"))
    monkeypatch.setenv(VARIABLE, "triton")
    assert RECOMPUTE["layer"].kept(variant("x", "slots")) == counted
