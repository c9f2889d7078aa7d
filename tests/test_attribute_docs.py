"""Docstrings of fields, for the JSON schema."""

from widthwise.attribute_docs import attribute_docs
from widthwise.config_io import Config
from widthwise.model.attention import AttentionConfig
from widthwise.recipe.train_section import TrainConfig


class Base(Config):
    kept: int = 1
    """A field of the base."""
    changed: int = 1
    """A field of the base that is declared anew."""


class Derived(Base):
    """Not of a field."""

    changed: int = 2
    own: int = 3
    """Two
    lines."""
    bare: int = 4


def of_fields(config: type[Config]) -> dict[str, str]:
    return {name: text for name, text in attribute_docs(config).items() if name in config.model_fields}


def test_a_field_declared_anew_leaves_the_docstring_of_the_base_and_a_class_without_source_has_none():
    assert of_fields(Derived) == {"kept": "A field of the base.", "own": "Two\nlines."}
    namespace = {"Config": Config}
    exec("class Typed(Config):\n    size: int = 1\n    'A size.'", namespace)
    assert of_fields(namespace["Typed"]) == {}


def test_the_schema_describes_every_field_that_has_a_docstring():
    for config in (AttentionConfig, TrainConfig):
        properties = config.model_json_schema()["properties"]
        docs = of_fields(config)
        assert docs
        assert {name: properties[name]["description"] for name in docs} == docs
