"""Scoring texts with a model: the options that all evaluations share, and the held-out text of the model's own run."""

from collections import Counter
from typing import Annotated

import pydantic
import torch

from widthwise.computing import Precision
from widthwise.config_io import Config, UserError
from widthwise.data.config import open_data
from widthwise.data.mixture import MixedData
from widthwise.data.prepared import PreparedData
from widthwise.evaluation.hf_model import HFModel
from widthwise.evaluation.scorer import Scorer
from widthwise.model.decoder import Decoder
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import has_seen_data, identity_of, recorded_identity
from widthwise.runs.loaded import LoadedModel, loading
from widthwise.sizes import Count, NTokens

HELD_OUT = "held-out"
"""Name of a run's own held-out text; of a mixture each source has its own, HELD_OUT/NAME."""


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

    def precision_of(self, loaded: LoadedModel) -> Precision:
        return self.precision or ("fp32" if loaded.recipe is None else loaded.recipe.train.settled_precision)

    def scorer(self, loaded: LoadedModel) -> Scorer:
        """Raises UserError where the model reads fewer tokens than max_length."""
        dtype, model = torch.bfloat16 if self.precision_of(loaded) == "bf16" else None, loaded.model
        if not isinstance(model, Decoder):
            with loading(loaded.path):
                model = HFModel(model, loaded.n_positions)
        return Scorer(model, loaded.tokenizer, self.max_length or loaded.seq_len, self.batch_size, dtype)


def own_texts(loaded: LoadedModel) -> dict[str, tuple[PreparedData, int]]:
    """The held-out texts of a run's data by name, and the targets of each that validations use.

    One for each source of a mixture. The targets are whole windows of the recipe's seq_len, whatever this evaluation's;
    of a source that has none, one. Raises UserError where there is no text, or another than the run was trained on.
    """
    run, recipe = RunDir(loaded.path), loaded.recipe
    if recipe is None:
        raise UserError(f"{run.path}: a Hugging Face folder brings no held-out text; name a text with --text or --data")
    if not has_seen_data(run):
        raise UserError(f"{run.path}: has seen no data yet; name a text with --text or --data")
    data, seq_len = open_data(recipe.data), recipe.seq_len
    before, now = recorded_identity(run), identity_of(data)
    if before != now:
        was, is_now = before.compared(now)
        raise UserError(f"{run.path}: was trained on {was}, which is now {is_now}; name a text with --text or --data")
    held_out = recipe.held_out(data)
    if not isinstance(data, MixedData):
        return {HELD_OUT: (data, held_out.n_windows * seq_len)}
    n_windows = Counter(held_out.sources)
    return {f"{HELD_OUT}/{name}": (source, max(1, n_windows[name]) * seq_len) for name, source in data.sources.items()}
