"""What a recipe says of a model: a template with a shape, or every layer."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from widthwise.config_io import merge, parse, to_data
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelTemplate


def _form(model: Any) -> str:
    layers = model.get("layers") if isinstance(model, dict) else getattr(model, "layers", None)
    return "resolved" if isinstance(layers, (list, tuple)) else "template"


ModelSection = Annotated[
    Annotated[ModelTemplate, Tag("template")] | Annotated[ModelConfig, Tag("resolved")], Discriminator(_form)
]
ModelChange = Annotated[
    Annotated[dict[str, Any], Tag("template")] | Annotated[ModelConfig, Tag("resolved")], Discriminator(_form)
]
"""Changes that are laid over a section, or a model of its own with every layer."""


def resolved(section: ModelSection, seq_len: int) -> ModelConfig:
    """The model with every layer written out. Raises UserError where the shape cannot be had."""
    return section if isinstance(section, ModelConfig) else section.resolve(seq_len)


def changed_section(section: ModelSection, change: ModelChange, where: str) -> ModelSection:
    """The section with a change laid over it as that of a child recipe would be. Raises UserError `where: ...`."""
    if isinstance(change, ModelConfig):
        return change
    return parse(type(section), merge(to_data(section), change), where)
