"""Config fields that accept any registered kind of a component."""

from typing import Annotated, Literal

import pytest
from boxes import refusal

from widthwise.config_io import Config, parse, to_data
from widthwise.model.ffn.interface import FEED_FORWARDS, FFNConfig, register_ffn
from widthwise.model.ffn.swiglu import SwiGLUTemplate
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
        (7, "shapes.0: got 7; expected keys with values, as {key: value}"),
    ],
)
def test_error_messages_are_those_of_a_closed_union(shape, message):
    assert refusal(parse, Drawing, {"shapes": [shape]}, "drawing") == f"drawing: {message}"


def test_a_refused_registration_registers_neither_class():
    class Triangle(Shape):
        kind: Literal["triangle"] = "triangle"

    class TriangleTemplate(Config):
        kind: Literal["triangle"] = "triangle"

    class Silent(FFNConfig):
        kind: Literal["swiglu"] = "swiglu"

    assert refusal(SHAPES.register, Triangle, TriangleTemplate) == "TriangleTemplate: must be a Shape"
    assert "Silent.hidden_axes: must name the fields of hidden units" in refusal(register_ffn, Silent, SwiGLUTemplate)
    assert not {Triangle, Silent} & {*SHAPES.configs, *FEED_FORWARDS.configs}
