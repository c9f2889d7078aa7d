"""Checks of growth, padding and baking for every component."""

from collections.abc import Iterator
from typing import Any

import torch
from expansions import Expansion
from model_cases import decoder, random_tokens

from widthwise.config_io import Config, checked_copy
from widthwise.growth.certificate import decoder_of
from widthwise.growth.correspondence import Correspondence
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig


def assert_preserved(plan: GrowthPlan) -> None:
    """Assert that the logits do not change when a model with random weights grows."""
    weights = {name: parameter.detach() for name, parameter in decoder(plan.old).named_parameters()}
    tokens = random_tokens(2, 7)
    with torch.no_grad():
        before = decoder_of(plan.old, weights, torch.float64)(tokens)
        after = decoder_of(plan.new, dict(plan.weights(weights)), torch.float64)(tokens)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9 * float(before.abs().max()))


def planned_unless_refused(expansion: Expansion, old: ModelConfig, *paths: str) -> GrowthPlan | None:
    """Return the plan of a growth; None if it is refused with a message that starts with one of the paths."""
    try:
        return plan_growth(old, *expansion)
    except UserError as refused:
        if not str(refused).startswith(paths):
            raise
        return None


def assert_refused_or_preserved(old: ModelConfig, wanted: ModelConfig) -> None:
    """Assert that a growth is refused or preserves the function."""
    plan = planned_unless_refused((wanted, Correspondence.same(old)), old, "")
    if plan is not None:
        assert_preserved(plan)


def with_other_values(config: Config, others: list[Config], left_out: set[str]) -> Iterator[Config]:
    """Yield `config` with one field changed to its value in one of the other configs, if the result is valid.

    left_out: fields that do not change.
    """
    tried: list[tuple[str, Any]] = []
    for name in type(config).model_fields.keys() - {"kind", *left_out}:
        for value in (getattr(other, name) for other in others):
            if value == getattr(config, name) or (name, value) in tried:
                continue
            tried.append((name, value))
            try:
                yield checked_copy(config, "config", **{name: value})
            except UserError:
                continue
