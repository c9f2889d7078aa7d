import pytest
import step_shares
import torch

from widthwise.kernels import attention, swiglu


def test_products_and_the_places_of_the_rest_are_told_apart():
    """A SwiGLU of 5 tokens: three products forward and five backward, as nothing asks for the gradient of x."""
    x, weights = torch.randn(5, 7), [torch.randn(size, requires_grad=True) for size in ((11, 7), (11, 7), (3, 11))]
    with step_shares.OperatorTimes() as operators:
        gate, up = (torch.nn.functional.linear(x, weight) for weight in weights[:2])
        torch.nn.functional.linear(swiglu(gate, up), weights[2]).square().sum().backward()
    assert set(operators.seconds) == {"matrix products", "SwiGLU", "other elementwise"}
    assert operators.product_flops == 2 * 5 * 11 * (2 * 7 + 3 + 2 * 7 + 2 * 3)


def test_products_inside_attention_are_products():
    heads = [torch.randn(1, 2, 32, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    with step_shares.OperatorTimes() as operators:
        attention(*heads, 0.25).sum().backward()
    assert {"matrix products", "attention"} <= set(operators.seconds)
    assert operators.product_flops == 2 * 2 * 32 * 32 * 16 * 7  # one block: two products forward, five backward


@pytest.mark.parametrize("variant", ["uniform", "dynamic"])
def test_shares_add_up_to_a_step(variant):
    found = step_shares.step_shares(variant, 1, "bf16", n_rounds=1, peak_size=64)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["n_params"] == step_shares.recipe_of(variant, 1, "bf16").explicit_model.cost().params
    assert ("dynamic width" in found["shares"]) == (variant == "dynamic")


def test_every_quickstart_model_is_measured():
    assert {part.name.split("/")[0] for part in step_shares.parts(quick=False)} == set(step_shares.VARIANTS)
    wide = step_shares.recipe_of("uniform", 4, "fp32").explicit_model
    assert (wide.d_model, wide.layers[0].attention.head_dim) == (512, 64)
