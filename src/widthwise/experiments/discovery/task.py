"""The task of a discovery: sizes of layers for a budget, from a recipe to points on curves."""

from collections.abc import Sequence
from dataclasses import dataclass

from widthwise.config_io import UserError
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.layer import LayerConfig
from widthwise.recipe.recipe import Recipe
from widthwise.records.discovery import Curve, LayerSizes
from widthwise.records.quantities import OF_MODELS
from widthwise.shape.kinds import Match
from widthwise.shape.template import ModelTemplate


@dataclass(frozen=True)
class Task:
    """What is searched for."""

    base: Recipe
    """Its model is the uniform one whose cost is the budget."""
    steps: int
    """Training steps of the search."""
    match: Match

    @property
    def template(self) -> ModelTemplate:
        assert isinstance(self.base.model, ModelTemplate)
        return self.base.model

    @property
    def budget(self) -> float:
        """The matched quantity of the uniform model."""
        return self.cost(self.base.explicit_model)

    def cost(self, model: ModelConfig) -> float:
        """The matched quantity of a model."""
        return OF_MODELS[self.match].of_cost(cost_summary(model, self.base.seq_len))

    def curve(self, layers: Sequence[LayerSizes]) -> Curve:
        """Sizes of layers as points: widths and blocks over those of the uniform model, the others over what the
        recipe's rules give at that width, and for so many blocks."""
        layer = template_layer(self.template)
        uniform, n_blocks = sizes_of(layer), layer.ffn.n_residual_additions
        blocks = [1 if each.blocks is None else each.blocks / n_blocks for each in layers]
        sizes = {
            "widths": [each.width / self.template.d_model for each in layers],
            "attention": [each.attention / uniform.attention for each in layers],
            "hidden": [each.hidden / uniform.hidden / n for each, n in zip(layers, blocks)],
        }
        return Curve.of_sizes(sizes if layers[0].blocks is None else sizes | {"blocks": blocks})


def sizes_of(layer: LayerConfig) -> LayerSizes:
    """Those that a search varies."""
    attention = layer.attention
    return LayerSizes(
        width=layer.d_model, attention=attention.n_heads * attention.head_dim, hidden=sum(layer.ffn.hidden_widths)
    )


def template_layer(template: ModelTemplate) -> LayerConfig:
    """A layer of the uniform model."""
    return template.uniform().model_copy(update={"n_layers": 1}).resolve(1).layers[0]


def check_uniform(recipe: Recipe) -> None:
    """Raises UserError where the recipe is not one of a uniform model, with one rule for all layers."""
    template = recipe.model
    if not isinstance(template, ModelTemplate) or template.layers:
        raise UserError("model.layers: a discovery finds the sizes of layers; leave changes to single layers out")
    if template.shape.kind != "uniform":
        raise UserError(f"model.shape.kind: got {template.shape.kind!r}; a discovery starts from the uniform model")
