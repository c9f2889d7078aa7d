"""Fields that hold one of several classes, of which more can be registered."""

from typing import Annotated, Literal

import pytest

from widthwise.config_io import Config, parse, to_data
from widthwise.mistakes import UserError
from widthwise.model.ffn.interface import FEED_FORWARDS, FFNConfig, FFNTemplate, register_ffn
from widthwise.model.kinds import Component


class Shape(Config): ...


class Circle(Shape):
    kind: Literal["circle"] = "circle"
    radius: float


class Square(Shape):
    kind: Literal["square"] = "square"
    sides: tuple[int, ...] = (1, 1)


SHAPES = Component(Shape, Shape)
SHAPES.register(Circle, Circle)


class Drawing(Config):
    """Declared before Square is registered."""

    shapes: tuple[Annotated[Shape, SHAPES.configs], ...]


SHAPES.register(Square, Square)


def test_a_kind_registered_later_is_valid_and_survives_yaml_data():
    drawing = parse(Drawing, {"shapes": [{"kind": "square", "sides": [2, 3]}, {"kind": "circle", "radius": 0.5}]})
    assert drawing.shapes == (Square(sides=(2, 3)), Circle(radius=0.5)) == Drawing(shapes=drawing.shapes).shapes
    assert parse(Drawing, to_data(drawing)) == drawing


def test_the_json_schema_has_every_kind():
    schema = Drawing.model_json_schema()
    mapping = schema["properties"]["shapes"]["items"]["discriminator"]["mapping"]
    assert {kind: schema["$defs"][path.rpartition("/")[2]]["title"] for kind, path in mapping.items()} == {
        "circle": "Circle",
        "square": "Square",
    }


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"kind": "squar"}, "shapes.0.kind: got 'squar', which is not registered; did you mean 'square'?"),
        ({"kind": ["x"]}, "shapes.0.kind: got ['x'], which is not registered; allowed: circle, square"),
        ({"radius": 1.0}, "shapes.0.kind: is required but missing"),
        ({"kind": "circle", "radius": "1"}, "shapes.0.radius: got '1'; input should be a valid number"),
        (
            {"kind": "circle", "radius": 1.0, "sides": []},
            "shapes.0.sides: unknown key of kind circle; allowed: kind, radius; "
            "to change the kind, replace the section: 'shapes.0={kind: circle, ...}'",
        ),
        (7, "shapes.0: got 7; input should be a valid dictionary or object to extract fields from"),
    ],
)
def test_a_mistake_is_described_as_in_a_closed_union(shape, message):
    with pytest.raises(UserError) as refused:
        parse(Drawing, {"shapes": [shape]}, "drawing")
    assert str(refused.value) == f"drawing: {message}"


def test_a_config_whose_template_is_refused_is_not_registered():
    class Triangle(Shape):
        kind: Literal["triangle"] = "triangle"

    class TriangleTemplate(Config):
        kind: Literal["triangle"] = "triangle"

    with pytest.raises(UserError, match=r"^TriangleTemplate: must be a Shape$"):
        SHAPES.register(Triangle, TriangleTemplate)
    assert Triangle not in [*SHAPES.configs]


def test_a_feed_forward_that_does_not_say_its_hidden_widths_is_refused_when_it_is_registered():
    class Silent(FFNConfig):
        kind: Literal["silent"] = "silent"

    class SilentTemplate(FFNTemplate):
        kind: Literal["silent"] = "silent"

    with pytest.raises(UserError, match=r"^Silent\.hidden_axes: must name the fields of hidden units"):
        register_ffn(Silent, SilentTemplate)
    assert Silent not in [*FEED_FORWARDS.configs]
