"""The `train.sample:` part of a recipe: texts that the model writes at each validation, to be read by people."""

import pydantic

from widthwise.config_io import Config
from widthwise.sizes import Count, VocabSize


class SampleConfig(Config):
    """What the model continues, and how its tokens are drawn: in the same way every time."""

    prompts: tuple[str, ...] = pydantic.Field(default=("",), min_length=1)
    """Texts to continue; an empty one begins a document."""
    n_tokens: Count = 64
    """Tokens of each continuation, which ends earlier where the model ends the document."""
    temperature: pydantic.NonNegativeFloat = 0.8
    """0 takes the most probable token."""
    top_k: VocabSize | None = None
    """Draw from the k most probable tokens only."""
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Draw from the fewest tokens whose probabilities reach this sum."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**63)
    """Seed of the draws, the same at every validation."""
