"""Options of an evaluation."""

from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from widthwise.computing import Precision
from widthwise.config_io import Config
from widthwise.sizes import Count, NTokens


def _check_device(name: str) -> str:
    """Return the name of a device. Raises ValueError for an unavailable device and for meta."""
    import torch

    try:
        has_storage = torch.empty(0, device=name).device.type != "meta"
    except (RuntimeError, AssertionError, NotImplementedError):
        has_storage = False
    if not has_storage:
        raise ValueError(f"got {name!r}; torch has no such device on this machine")
    return name


def _as_text(paths: Any) -> Any:
    """Convert each `Path` of a tuple to text."""
    if not isinstance(paths, tuple):
        return paths
    return tuple(str(path) if isinstance(path, Path) else path for path in paths)


Paths = Annotated[tuple[str, ...], pydantic.BeforeValidator(_as_text)]


class EvaluationConfig(Config):
    """The texts and tasks of an evaluation, and how they are scored; default: the held-out text of the run's data."""

    batch_size: Count = 16
    """Windows or answers per forward pass."""
    max_length: NTokens | None = None
    """Longest context in tokens; default: the recipe's seq_len, for a Hugging Face folder at most 1024."""
    precision: Precision | None = None
    """Type of the matrix products; default: the recipe's, for a Hugging Face folder fp32."""
    device: Annotated[str, pydantic.AfterValidator(_check_device)] | None = None
    """cpu, cuda or cuda:1; default: cuda, if there is one."""
    no_bos: bool = False
    """Omit the beginning-of-text token that the tokenizer of an imported model puts before a text."""
    texts: Paths = ()
    """Raw text, as `data prepare` reads it: .txt .md .py .jsonl .parquet, or a folder; repeat for several. Documents
    are scored separately."""
    data: Paths = ()
    """Prepared folder, whose held-out part is scored as one stream; repeat for several."""
    task_files: Paths = ()
    """JSONL file of questions and answers; repeat for several."""
    tasks: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Tasks of lm-evaluation-harness (extra `eval`), such as piqa,arc_easy."""
    num_fewshot: pydantic.NonNegativeInt | None = None
    """Examples before each question of these tasks; default: set by the task."""
    field: str = "text"
    """Field of a JSONL or Parquet row that holds the text."""
    stride: pydantic.PositiveInt | None = None
    """Tokens that each window over a text predicts; fewer give more context and take longer; default: all of them."""
    max_tokens: pydantic.PositiveInt | None = None
    """Maximum number of tokens of each text; default: all, but as in validations for the run's held-out text."""
    limit: pydantic.PositiveInt | None = None
    """Maximum number of items of each task, from the front."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "EvaluationConfig":
        reads_text = bool(self.texts or self.data) or self.uses_default_text
        for key, has_effect, needed in (
            ("num_fewshot", self.tasks, "tasks of lm-evaluation-harness"),
            ("limit", self.tasks or self.task_files, "a task"),
            ("stride", reads_text, "a text"),
            ("max_tokens", reads_text, "a text"),
        ):
            if getattr(self, key) is not None and not has_effect:
                raise ValueError(f"{key}: got {getattr(self, key)} without {needed}, so it has no effect")
        return self

    @property
    def uses_default_text(self) -> bool:
        """True without texts and tasks."""
        return not (self.texts or self.data or self.task_files or self.tasks)
