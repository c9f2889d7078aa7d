"""The plan of a growth from what a recipe or the options of a verb choose."""

from dataclasses import replace

from widthwise.config_io import UserError
from widthwise.growth.choices import GrowthChoices
from widthwise.growth.maps.correspondence import align
from widthwise.growth.plan.model_plan import GrowthPlan, plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes


def chosen_plan(old: ModelConfig, wanted: ModelConfig, choices: GrowthChoices) -> GrowthPlan:
    """The plan whose constants keep the function. Raises UserError where there is none."""
    return plan_growth(old, wanted, align(old, wanted, choices.layers), choices.new_layers)


def with_constants_of(wanted: ModelConfig, plan: GrowthPlan) -> GrowthPlan:
    """The same tensors in the model as its recipe describes it, which is another function.

    Raises UserError where the tensors of that model have other shapes.
    """
    if parameter_shapes(plan.new) != parameter_shapes(wanted):
        raise UserError("preserve: false needs a model whose tensors are those of the growth that preserves")
    return replace(plan, new=wanted)
