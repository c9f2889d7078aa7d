"""The `validation:` part of a recipe: what a run is validated on beside the held-out part of its data."""

from typing import Annotated

import pydantic

from widthwise.config_io import Config
from widthwise.sizes import Count

Name = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class ValidationText(Config):
    """A text, read in windows of the recipe's seq_len as the held-out text is, with the same tokenizer."""

    source: str
    """A prepared folder, of which the held-out part is read, or whatever `widthwise data prepare` takes."""
    field: str = "text"
    """Key of the text in JSONL, or column in Parquet."""
    max_tokens: pydantic.PositiveInt | None = None
    """Tokens that are predicted, from the front; all where not given."""


class ValidationTask(Config):
    """Questions with known answers; see `evaluation.local_tasks`."""

    file: str
    """A JSONL file."""
    delimiter: str = " "
    """What stands between question and answer."""
    limit: Count | None = None
    """Questions that are asked, from the front; all where not given."""


class ValidationConfig(Config):
    """Texts and tasks by name. Every validation of a run reads all texts and asks all questions."""

    texts: dict[Name, ValidationText] = pydantic.Field(default_factory=dict)
    tasks: dict[Name, ValidationTask] = pydantic.Field(default_factory=dict)
