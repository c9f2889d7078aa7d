"""Options of scoring texts with a model."""

from typing import Annotated

import pydantic
import torch

from widthwise.computing import Precision
from widthwise.config_io import Config
from widthwise.evaluation.scorer import Scorer
from widthwise.runs.scored import Scored
from widthwise.sizes import Count, NTokens


def _known_device(name: str) -> str:
    """Raises ValueError for a device that torch has not here, or that holds no numbers."""
    try:
        has_numbers = torch.empty(0, device=name).device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        has_numbers = False
    if not has_numbers:
        raise ValueError(f"got {name!r}; torch has none of that name here")
    return name


TorchDevice = Annotated[str, pydantic.AfterValidator(_known_device)]
"""A device by its name in torch, such as cpu or cuda:1."""


class ScoringOptions(Config):
    """Options that all evaluations share."""

    batch_size: Count = 16
    """Windows or answers per forward pass."""
    max_length: NTokens | None = None
    """Most tokens read at once; by default the recipe's seq_len, of a Hugging Face folder at most 1024."""
    precision: Precision | None = None
    """Type of the matrix products; by default the recipe's, of a Hugging Face folder fp32."""
    device: TorchDevice | None = None
    """Where the model computes; by default cuda, if there is one."""

    def precision_of(self, scored: Scored) -> Precision:
        return self.precision or scored.precision

    def scorer(self, scored: Scored) -> Scorer:
        """Raises UserError where the model reads fewer tokens than max_length."""
        dtype = torch.bfloat16 if self.precision_of(scored) == "bf16" else None
        max_length = self.max_length or scored.seq_len
        return Scorer(scored.model, scored.tokenizer, max_length, self.batch_size, dtype)
