"""The model section of a recipe: a template with a shape, or every layer."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from widthwise.config_io import parse, to_data
from widthwise.merging import merge
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
"""Changes to a section, or another model with every layer written out."""


def changed_section(section: ModelSection, change: ModelChange, where: str) -> ModelSection:
    """A section changed as a recipe that extends it would change it. Raises UserError `where: ...`."""
    if isinstance(change, ModelConfig):
        return change
    return parse(type(section), merge(to_data(section), change), where)
