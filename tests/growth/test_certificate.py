"""A certificate finds what does not preserve the function or does not learn; `growth_cases.check` uses it."""

import math
from dataclasses import replace
from typing import Any

import expansions
import pytest
import torch
from growth_cases import SEQ_LEN, growth, planned, with_random_weights

from widthwise.growth import certificate
from widthwise.growth.certificate import certify, relative_difference
from widthwise.growth.correspondence import AxisMap
from widthwise.growth.plan import GrowthPlan
from widthwise.records.resizing import Certificate


def old_weights(plan: GrowthPlan) -> dict[str, torch.Tensor]:
    return {name: weight.float() for name, weight in with_random_weights(plan.old, seed=5).items()}


def certified(plan: GrowthPlan, old: dict[str, torch.Tensor] | None = None, **changed: torch.Tensor) -> Certificate:
    """changed: weights of the grown model other than those that the plan gives."""
    old = old or old_weights(plan)
    return certify(plan, old, {**dict(plan.weights(old, 3)), **changed}, seq_len=SEQ_LEN, lr=1e-3, seed=3)


def with_tensor(plan: GrowthPlan, name: str, **changes: Any) -> GrowthPlan:
    """The plan with another plan of one tensor."""
    return replace(plan, tensors={**plan.tensors, name: replace(plan.tensors[name], **changes)})


def test_an_entry_that_must_be_zero_and_is_not_is_found():
    plan, name = planned("units"), "layers.2.ffn.w_down.weight"
    rows, columns = plan.tensors[name].maps
    found = certified(with_tensor(plan, name, maps=(rows, AxisMap.of(columns.n_old, columns.index))))
    assert not found.is_preserved
    assert found.logit_difference > 1e-3
    assert "CHANGED" in found.lines()[0]


def test_gradients_find_what_logits_hide():
    plan, old = planned("units"), old_weights(planned("units"))
    for leaf in ("w_gate", "w_up"):  # two units that read the same and are heard in different ways
        old[f"layers.2.ffn.{leaf}.weight"][1] = old[f"layers.2.ffn.{leaf}.weight"][0]
    name = "layers.2.ffn.w_gate.weight"
    rows, columns = plan.tensors[name].maps
    swapped = rows.index.clone()
    swapped[:2] = torch.tensor([1, 0])
    found = certified(with_tensor(plan, name, maps=(AxisMap.of(rows.n_old, swapped), columns)), old)
    assert found.logit_difference <= found.logit_bound
    assert found.gradient_difference > 1e-6
    assert not found.is_preserved


@pytest.mark.parametrize("coefficients", [{}, {"coefficient": 0.0}])
def test_gradients_find_a_change_of_further_heads(coefficients):
    """Whatever their part in the objective is."""
    plan = growth({"mtp": {"n_depths": 2, **coefficients}}, expansions.widen_stream, 6)
    found = certified(with_tensor(plan, "mtp.0.w_join.weight", scale=1.5))
    assert found.logit_difference <= found.logit_bound
    assert not found.is_preserved


def test_stored_weights_are_those_that_are_judged():
    plan, name = planned("units"), "layers.0.attention.w_v.weight"
    found = certified(plan, **{name: old_weights(plan)[name] + 0.1})
    assert found.logit_difference <= found.logit_bound
    assert found.stored_logit_difference > found.stored_logit_bound
    assert not found.is_preserved


def test_two_zeros_that_multiply_each_other_are_dead():
    """What reads must not be 0 where what writes is: 7 units with gate and down 0, whose gradients are products."""
    plan = growth({}, expansions.widen_ffn, [1], 10 + 7)
    name = "layers.1.ffn.w_gate.weight"
    rows, columns = plan.tensors[name].maps
    found = certified(with_tensor(plan, name, maps=(AxisMap.of(rows.n_old, rows.index, zero=True), columns)))
    assert found.is_preserved
    assert found.dead == {f"layers.1.ffn.{leaf}.weight": 7 * 12 for leaf in ("w_gate", "w_up", "w_down")}
    assert any(f"{name}: 84 of 84 had no gradient" in line for line in found.lines())


def test_scarce_memory_means_float32_and_says_so(monkeypatch):
    monkeypatch.setattr(certificate, "free_memory", lambda: 1000)
    found = certified(planned("divided_groups"))
    assert found.dtype == "float32"
    assert found.is_preserved
    assert 1e-12 < found.logit_bound < 1e-3
    assert "would not fit into memory" in found.lines()[0]


def test_a_gradient_that_is_not_a_number_is_found_in_any_tensor():
    old = {"a": torch.tensor([2.0, -4.0]), "b": torch.tensor([1.0])}
    assert relative_difference(old, {"a": torch.tensor([2.0, -3.0]), "b": torch.tensor([1.0])}) == 0.25
    assert math.isnan(relative_difference(old, {"a": torch.tensor([2.0, -4.0]), "b": torch.tensor([math.nan])}))
