"""First-order gain, against losses after a step along the gradient."""

import expansions
import pytest
import torch
from growth_cases import small_model, tokens_for, with_random_weights

from widthwise.growth.certificate import STEPS, Step, decoder_of, first_order_gains
from widthwise.growth.plan import plan_growth

BATCHES = [tokens_for(seed, batch=3) for seed in range(4)]
CONFIG = small_model()
OLD = {name: weight.float() for name, weight in with_random_weights(CONFIG, 1).items()}


def widened(layers: list[int]):
    return plan_growth(CONFIG, *expansions.widen_ffn(CONFIG, layers, 17))


def loss(plan, weights) -> float:
    model = decoder_of(plan.new, {name: weight.double() for name, weight in weights.items()}, torch.float64)
    with torch.no_grad():
        return float(sum(model.loss(batch[:, :-1], batch[:, 1:]).objective for batch in BATCHES) / len(BATCHES))


def gradient_of_zeros(plan, weights, name: str, batches=BATCHES):
    """Of the mean loss of the batches, in float64."""
    model = decoder_of(plan.new, weights, torch.float64)
    for batch in batches:
        (model.loss(batch[:, :-1], batch[:, 1:]).objective / len(batches)).backward()
    return dict(model.named_parameters())[name].grad * plan.tensors[name].must_be_zero()


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_gain_is_what_a_small_step_lowers_the_loss_by(step: Step):
    plan, rate = widened([1]), 1e-5
    doubled = [batch for batch in BATCHES for _ in range(2)]  # both halves are the same
    gains = first_order_gains(plan, OLD, doubled, 3, step)
    name = "layers.1.ffn.w_down.weight"
    assert set(gains) == {name}
    weights = {key: weight.double() for key, weight in plan.weights(OLD, 3)}
    stepped = weights | {name: weights[name] - rate * step(gradient_of_zeros(plan, weights, name))}
    assert loss(plan, weights) - loss(plan, stepped) == pytest.approx(rate * float(gains[name].sum()), rel=0.02)


def test_a_step_for_each_half_is_measured_by_the_other_and_units_follow_each_other():
    plan, name = widened([1]), "layers.1.ffn.w_down.weight"
    weights = {key: weight.double() for key, weight in plan.weights(OLD, 3)}
    first, second = (gradient_of_zeros(plan, weights, name, [batch]) for batch in BATCHES[:2])
    expected = float((first * second.sign()).sum() + (second * first.sign()).sum()) / 2
    found = first_order_gains(plan, OLD, BATCHES[:2], 3, STEPS["sign"])[name]
    assert float(found.sum()) == pytest.approx(expected, rel=1e-3)
    n_new = int(plan.tensors[name].must_be_zero()[0].sum())
    found = first_order_gains(plan, OLD, BATCHES[:2], 3)[name].view(n_new, -1)  # one unit after the other
    torch.testing.assert_close(found.sum(dim=1), (first * second)[:, -n_new:].sum(dim=0), rtol=1e-3, atol=1e-12)


def test_growths_planned_as_one_have_the_gains_they_have_alone():
    together = first_order_gains(widened([0, 1]), OLD, BATCHES, 3)
    first = first_order_gains(widened([0]), OLD, BATCHES, 3)
    assert set(together) == {"layers.0.ffn.w_down.weight", "layers.1.ffn.w_down.weight"}
    # New units are drawn from the name of the tensor and the size of the old model, and so are the same ones.
    torch.testing.assert_close(*(each["layers.0.ffn.w_down.weight"] for each in (together, first)), rtol=1e-4, atol=0)
