"""Models in memory, from recipes: building, growth, and parameter groups for an optimizer."""

from pathlib import Path
from typing import Any

import torch

from widthwise.growth.choices import NewSizes
from widthwise.growth.plan import plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.decoder import build as build_decoder
from widthwise.model.execution import unwrapped
from widthwise.model.mup import grouped_parameters
from widthwise.recipe.larger import larger_model
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.recipe.train_section import TrainConfig


def build(
    source: Recipe | ModelConfig | Path | str,
    seed: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Build the model of a recipe, of a recipe's file, or of a config, with its initial weights.

    seed: of the weights; by default the seed of the recipe, or for a config the default seed of recipes. If the model
    grows, build its first form. Raises UserError for a mistake in the recipe and if the weights do not fit into memory,
    and TypeError for a template, which has no explicit sizes.
    """
    recipe = load_recipe(source) if isinstance(source, (str, Path)) else source
    if isinstance(recipe, Recipe):
        recipe.check()
        return build_decoder(recipe.explicit_model, recipe.train.seed if seed is None else seed, device, dtype)
    return build_decoder(recipe, TrainConfig.model_fields["seed"].default if seed is None else seed, device, dtype)


def grow_model(model: Decoder, to: Recipe | ModelConfig | NewSizes | Path | str, seed: int = 0) -> Decoder:
    """Return a larger model of exactly the same function, on the same device. The given model is not changed.

    to: the larger model as a recipe, a recipe's file or a config, or sizes such as `NewSizes(d_model=96,
    add_layers=2)`. It keeps the constants of the given model. seed: for new entries that are drawn. Raises UserError if
    the function cannot be preserved. For a run, with optimizer state and certificate, use `widthwise grow`.
    """
    recipe = load_recipe(to) if isinstance(to, (str, Path)) else to
    if isinstance(recipe, NewSizes):
        wanted = larger_model(model.config, recipe)
    else:
        wanted = recipe.explicit_model if isinstance(recipe, Recipe) else recipe
    plan = plan_growth(model.config, wanted)
    weight = model.embedding.weight
    grown = build_decoder(plan.new, 0, weight.device, weight.dtype)
    grown.set_weights(plan.weights(dict(unwrapped(model).named_parameters()), seed))
    return grown.train(model.training)


def parameter_groups(
    model: Decoder, lr: float, weight_decay: float = 0.1, lr_follows_layer_width: bool = False
) -> list[dict[str, Any]]:
    """Return the parameter groups of a recipe's AdamW for a torch optimizer.

    lr: the rate of embedding, head and gains; hidden matrices have lr / `init.width_multiplier`. weight_decay: of
    all parameters except gains and biases. lr_follows_layer_width: see `optimizer.lr_follows_layer_width`. Every group
    has a name.

    `torch.optim.AdamW(parameter_groups(model, lr=0.004), betas=(0.9, 0.95))`
    """
    return [
        {
            "name": group.name,
            "params": list(group.parameters),
            "lr": lr * group.lr_factor,
            "weight_decay": weight_decay if group.decays else 0.0,
        }
        for group in grouped_parameters(unwrapped(model), lr_follows_layer_width)
    ]
