"""Options of scoring texts with the model of a run."""

import torch

from widthwise.config_io import Config
from widthwise.evaluation.scorer import Scorer
from widthwise.kernels.precision import Precision
from widthwise.recipe.recipe import Recipe
from widthwise.runs.trained import Trained
from widthwise.sizes import Count, NTokens


class ScoringOptions(Config):
    """Options that all evaluations share."""

    batch_size: Count = 16
    """Windows or answers per forward pass."""
    max_length: NTokens | None = None
    """Most tokens that the model reads at once; by default the recipe's seq_len."""
    precision: Precision | None = None
    """Type of the matrix products; by default the recipe's."""

    def precision_of(self, recipe: Recipe) -> Precision:
        return self.precision or recipe.train.precision

    def scorer(self, trained: Trained) -> Scorer:
        """Raises UserError where the model has fewer learned positions than max_length."""
        dtype = torch.bfloat16 if self.precision_of(trained.recipe) == "bf16" else None
        max_length = self.max_length or trained.recipe.seq_len
        return Scorer(trained.model, trained.tokenizer, max_length, self.batch_size, dtype)
