"""Models in memory, from recipes: built, grown, and divided into the parameter groups of an optimizer."""

from pathlib import Path
from typing import Any

import torch

from widthwise.growth.choices import NewSizes
from widthwise.growth.plan import plan_growth
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.decoder import build as build_decoder
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
    """The model of a recipe, of a recipe's file, or of a config, with its initial weights.

    seed: of the weights; by default the seed of the recipe, and for a config the default seed of recipes. A
    recipe that grows gives its first model. Raises UserError for a mistake in the recipe and where the weights do not
    fit into memory, and TypeError for a template, which has no sizes yet.
    """
    recipe = load_recipe(source) if isinstance(source, (str, Path)) else source
    if isinstance(recipe, Recipe):
        recipe.check()
        return build_decoder(recipe.explicit_model, recipe.train.seed if seed is None else seed, device, dtype)
    default = TrainConfig.model_fields["seed"].default
    return build_decoder(recipe, default if seed is None else seed, device, dtype)


def grow_model(model: Decoder, to: Recipe | ModelConfig | NewSizes | Path | str, seed: int = 0) -> Decoder:
    """A larger model that computes exactly the same, on the same device; the given one stays as it is.

    to: what it becomes as a recipe, a recipe's file or a config, or by sizes, as `NewSizes(d_model=96, add_layers=2)`.
    It keeps the constants of the given model. seed: of new entries that are drawn. Raises UserError where the function
    cannot be preserved; `widthwise grow` does the same for a run, with its optimizer state and a certificate.
    """
    recipe = load_recipe(to) if isinstance(to, (str, Path)) else to
    if isinstance(recipe, NewSizes):
        wanted = larger_model(model.config, recipe)
    else:
        wanted = recipe.explicit_model if isinstance(recipe, Recipe) else recipe
    plan = plan_growth(model.config, wanted)
    weight = model.embedding.weight
    grown = build_decoder(plan.new, 0, weight.device, weight.dtype)
    grown.set_weights(plan.weights({name: parameter.detach() for name, parameter in model.named_parameters()}, seed))
    return grown.train(model.training)


def parameter_groups(
    model: Decoder, lr: float, weight_decay: float = 0.1, lr_follows_layer_width: bool = False
) -> list[dict[str, Any]]:
    """The groups in which a recipe's AdamW optimises a model, as torch's optimizers take them.

    lr: the rate of embedding, head and gains; hidden matrices learn at lr / `init.width_multiplier`. weight_decay: of
    all but gains and biases. lr_follows_layer_width: see `optimizer.lr_follows_layer_width`. Every group has a name.

    `torch.optim.AdamW(parameter_groups(model, lr=0.004), betas=(0.9, 0.95))`
    """
    return [
        {
            "name": group.name,
            "params": list(group.parameters),
            "lr": lr * group.lr_factor,
            "weight_decay": weight_decay if group.decays else 0.0,
        }
        for group in grouped_parameters(model, lr_follows_layer_width)
    ]
