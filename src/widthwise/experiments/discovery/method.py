"""What every method of discovery is: a search for the sizes of layers, from a recipe to points on curves."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.config_io import Config, UserError
from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.layer import LayerConfig
from widthwise.recipe.recipe import Recipe
from widthwise.records.discovery import Curve, Found, LayerSizes
from widthwise.records.quantities import OF_MODELS
from widthwise.shape.kinds import Match
from widthwise.shape.template import ModelTemplate
from widthwise.training.observer import Observer


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

    def curve(self, layers: "list[LayerSizes]") -> Curve:
        """Sizes of layers as points: widths as they are, the others over what the recipe's rules give at that width."""
        template, size = self.template, template_sizes(self.template)
        return Curve(
            widths=[each.width / template.d_model for each in layers],
            attention=[each.attention / each.width / size.attention * template.d_model for each in layers],
            hidden=[each.hidden / each.width / size.hidden * template.d_model for each in layers],
        )


class Method(Config, ABC):
    """A way to find sizes of layers."""

    if TYPE_CHECKING:
        kind: Any  # a Literal of each class

    def check(self, task: Task) -> None:
        """Raises UserError for a uniform model whose sizes it cannot search."""

    @abstractmethod
    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        """Searches, in a folder of its own, where it goes on if it was interrupted."""


def sizes_of(layer: LayerConfig) -> LayerSizes:
    """Those that a search varies."""
    attention = layer.attention
    return LayerSizes(
        width=layer.d_model, attention=attention.n_heads * attention.head_dim, hidden=sum(layer.ffn.hidden_widths)
    )


def template_sizes(template: ModelTemplate) -> LayerSizes:
    """The sizes of a layer of the uniform model, before rounding."""
    layer = template.uniform().model_copy(update={"n_layers": 1}).resolve(1).layers[0]
    return sizes_of(layer)


def check_uniform(recipe: Recipe) -> None:
    """Raises UserError where the recipe is not one of a uniform model, with one rule for all layers."""
    template = recipe.model
    if not isinstance(template, ModelTemplate) or template.layers:
        raise UserError("model.layers: a discovery finds the sizes of layers; leave changes to single layers out")
    if template.shape.kind != "uniform":
        raise UserError(f"model.shape.kind: got {template.shape.kind!r}; a discovery starts from the uniform model")
