"""What growth, padding and baking promise for every component."""

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
    """The new model computes what a model with random weights did."""
    weights = {name: parameter.detach() for name, parameter in decoder(plan.old).named_parameters()}
    tokens = random_tokens(2, 7)
    models = [(plan.old, weights), (plan.new, dict(plan.weights(weights)))]
    with torch.no_grad():
        before, after = (decoder_of(config, each, torch.float64)(tokens) for config, each in models)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9 * float(before.abs().max()))


def planned_unless_refused(expansion: Expansion, old: ModelConfig, *paths: str) -> GrowthPlan | None:
    """The plan of a growth; None where it is refused at one of the paths."""
    try:
        return plan_growth(old, *expansion)
    except UserError as refused:
        if not str(refused).startswith(paths):
            raise
        return None


def assert_refused_or_preserved(old: ModelConfig, wanted: ModelConfig) -> None:
    plan = planned_unless_refused((wanted, Correspondence.same(old)), old, "")
    if plan is not None:
        assert_preserved(plan)


def with_other_values(config: Config, others: list[Config], left_out: set[str]) -> Iterator[Config]:
    """`config` with a single field as another of its kind has it, where that is valid."""
    seen: list[tuple[str, Any]] = []
    for name in type(config).model_fields.keys() - {"kind", *left_out}:
        for value in (getattr(other, name) for other in others):
            if value == getattr(config, name) or (name, value) in seen:
                continue
            seen.append((name, value))
            try:
                yield checked_copy(config, "config", **{name: value})
            except UserError:
                continue
