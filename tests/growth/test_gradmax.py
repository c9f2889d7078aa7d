"""New units chosen for the largest gradient: against singular values, and on the way through a whole model."""

import expansions
import pytest
import torch
from growth_cases import Measured, Weights, difference, logits_of, small_model, tokens_for, with_random_weights
from thinned import in_turn
from torch import Tensor
from torch.nn.functional import silu

from widthwise.growth.gradmax import with_largest_gradients
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.model.ffn.swiglu_module import SwiGLU

TOKENS = tokens_for(5, batch=9)
HOURGLASS = {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 4, "share_weights": True}}
SHARED = {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "d_expert": 4, "n_shared_experts": 1}}
D_FF = 10
FREE = {"outputs": "w_up", "inputs": "w_down"}
ZERO = {"outputs": "w_down", "inputs": "w_up"}


def float32_weights(config: ModelConfig) -> Weights:
    return {name: weight.float() for name, weight in with_random_weights(config, 1).items()}


def both(config: ModelConfig, expansion, zero_side: str = "outputs") -> tuple[GrowthPlan, Weights, Weights]:
    """The plan with chosen weights, what it makes, and what it would have drawn."""
    plan, weights = plan_growth(config, *expansion, zero_side=zero_side), float32_weights(config)
    chosen = with_largest_gradients(plan, weights, 3, TOKENS)
    return chosen, dict(chosen.weights(weights, 3)), dict(plan.weights(weights, 3))


def gradient_norms(config: ModelConfig, weights: Weights, name: str, zero_side: str) -> Tensor:
    """The norm of the gradient of each unit's zero factor."""
    doubles = {name: weight.double() for name, weight in weights.items()}
    gradient = Measured(config, doubles, TOKENS).gradients[name]
    return (gradient if zero_side == "inputs" else gradient.T).norm(dim=1)


@pytest.mark.usefixtures("float64")
@in_turn(
    ("zero_side", ["outputs", "inputs"]),
    (
        ("config", "expand", "module", "n_old"),
        [
            (small_model(), lambda m: expansions.widen_ffn(m, [1], D_FF + 4), "layers.1.ffn", D_FF),
            (small_model(**HOURGLASS), lambda m: expansions.widen_ffn(m, [0], 7), "layers.0.ffn.blocks.0", 4),
            (small_model(), lambda m: expansions.add_layers(m, [1]), "layers.1.ffn", 0),
            (small_model(**SHARED), lambda m: expansions.widen_shared_expert(m, [0], 9), "layers.0.ffn.shared", 4),
        ],
    ),
)
def test_the_first_new_unit_has_the_largest_gradient_there_is_and_all_have_more_than_drawn_ones(
    config, expand, module, n_old, zero_side
):
    plan, chosen, drawn = both(config, expand(config), zero_side)
    free, zero = (f"{module}.{part[zero_side]}.weight" for part in (FREE, ZERO))
    new, old = (gradient_norms(plan.new, weights, zero, zero_side)[n_old:] for weights in (chosen, drawn))
    assert new.square().sum() > 1.5 * old.square().sum()
    sizes = [(weights[free] if zero_side == "outputs" else weights[free].T)[n_old:] for weights in (chosen, drawn)]
    torch.testing.assert_close(sizes[0].norm(dim=1), sizes[1].norm(dim=1), rtol=1e-4, atol=0)
    assert torch.equal(chosen[zero], drawn[zero])
    others = {name: weight for name, weight in chosen.items() if not name.endswith(f"{FREE[zero_side]}.weight")}
    assert all(torch.equal(weight, drawn[name]) for name, weight in others.items())
    logits = [
        logits_of(each, {name: weight.double() for name, weight in weights.items()}, TOKENS[:, :-1])
        for each, weights in ((config, float32_weights(config)), (plan.new, chosen))
    ]
    assert difference(*logits) <= 1e-12


@pytest.mark.parametrize("zero_side", ["outputs", "inputs"])
def test_units_are_orthogonal_and_the_first_is_the_singular_vector(zero_side):
    """M is built here from what a hook on the whole feed-forward sees, not on its parts."""
    config = small_model()
    plan, chosen, _ = both(config, expansions.widen_ffn(config, [1], D_FF + 5), zero_side)
    model = build(plan.new, 0).eval()
    model.set_weights(chosen.items())
    ffn, seen = model.layers[1].ffn, {}
    assert isinstance(ffn, SwiGLU)

    def keep(module, inputs, output) -> None:
        seen["x"] = module.norm.before(inputs[0]).detach().double().flatten(0, 1)
        output[0].register_hook(lambda gradient: seen.update(back=gradient.double().flatten(0, 1)))

    ffn.register_forward_hook(keep)
    model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).objective.backward()
    gate = silu(seen["x"] @ ffn.w_gate.weight[D_FF].detach().double())
    matrix = torch.einsum("t,to,ti->oi", gate, seen["back"], seen["x"])
    left, values, right = torch.linalg.svd(matrix)
    expected = right[0] if zero_side == "outputs" else left[:, 0]
    units = chosen["layers.1.ffn.w_up.weight"] if zero_side == "outputs" else chosen["layers.1.ffn.w_down.weight"].T
    found = torch.nn.functional.normalize(units[D_FF:].double(), dim=1)
    image = matrix @ found[0] if zero_side == "outputs" else matrix.T @ found[0]
    assert image.norm().item() == pytest.approx(values[0].item(), rel=1e-3)
    assert abs(found[0] @ expected) > 0.97
    torch.testing.assert_close(found @ found.T, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-5)
