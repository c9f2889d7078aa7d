"""A family of models of all sizes with one recipe: that of the variable-width paper (arXiv:2606.18246).

Its four sizes, 200M to 2B, all have 40 coordinates of d_model for each layer, the same multipliers, warm-up for 8% of
the steps, and steps of a power of two of tokens, about one for every 480 parameters.
"""

import math
from collections.abc import Sequence
from typing import Any

from widthwise.config_io import UserError, parse
from widthwise.recipe.recipe import Recipe
from widthwise.yaml_io import apply_overrides, merge

WIDTH_PER_LAYER = 40
HEAD_DIM = 64
"""As in the siblings of the paper's recipes for hardware; d_model is a multiple of it."""
PARAMS_PER_TOKEN_OF_STEP = 480
WARMUP = 0.08
MODEL: dict[str, Any] = {
    "vocab_size": 32768,
    "attention": {"head_dim": HEAD_DIM, "scale": "1/head_dim"},
    "ffn": {"kind": "swiglu", "ratio": 4},
    "residual": {"kind": "plain", "multiplier": 0.22},
    "embedding_multiplier": 12,
    "logit_multiplier": 0.125,
    "init": {"std": 0.1, "width_multiplier": 8},
}
BASE: dict[str, Any] = {
    "seq_len": 4096,
    "data": {"corpus": "python-stdlib", "tokenizer": "bpe-32768"},
    "optimizer": {"kind": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-10, "weight_decay": 0.1},
    "schedule": {"kind": "power"},
    "train": {"precision": "bf16", "compile": True},
}


class Family:
    """The models of the family with some changes to their recipe; `size` counts heads of the uniform model."""

    def __init__(self, changes: Sequence[str], shape: dict[str, Any], n_devices: int):
        """changes: a.b=c, as on the command line; shape: the `model.shape` section. Raises UserError."""
        self._changes, self._shape, self._n_devices = changes, shape, n_devices
        for change in changes:
            if change.split("=")[0] in ("model.d_model", "model.n_layers", "train.steps"):
                raise UserError(f"{change}: is what a plan without a recipe proposes; leave it out, or give a recipe")
        parse(Recipe, self._data(1, shape, n_tokens=0, batch_size=n_devices), "proposal")

    def uniform(self, size: int) -> Recipe:
        """The uniform model, for one step."""
        return parse(Recipe, self._data(size, {"kind": "uniform"}, n_tokens=0, batch_size=self._n_devices), "family")

    def recipe(self, size: int, n_tokens: float, train: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
        """The shaped model on so many tokens, and its data for a file. train: changes to that section."""
        uniform = self.uniform(size)
        n_params = uniform.explicit_model.cost().params
        tokens_per_step = 2 ** round(math.log2(n_params / PARAMS_PER_TOKEN_OF_STEP))
        batch_size = self._n_devices * max(1, round(tokens_per_step / uniform.seq_len / self._n_devices))
        data = merge(self._data(size, self._shape, n_tokens, batch_size), {"train": train})
        return parse(Recipe, data, "proposal"), data

    def _data(self, size: int, shape: dict[str, Any], n_tokens: float, batch_size: int) -> dict[str, Any]:
        d_model = HEAD_DIM * size
        sizes = {"d_model": d_model, "n_layers": max(1, round(d_model / WIDTH_PER_LAYER)), "shape": shape}
        data = merge(BASE, {"model": merge(MODEL, sizes), "train": {"steps": 1, "batch_size": batch_size}})
        apply_overrides(data, self._changes)
        n_steps = max(1, round(n_tokens / data["train"]["batch_size"] / data["seq_len"]))
        return merge(data, {"train": {"steps": n_steps}, "schedule": {"warmup_steps": int(WARMUP * n_steps)}})
