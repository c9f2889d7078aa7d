"""A setting of the explorer's controls, its changes to a recipe, and the controls that fit a recipe."""

import math
from typing import Annotated, Any, Literal, get_args

import pydantic

from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.model.attention import with_kv_group_size
from widthwise.model.ffn.interface import FEED_FORWARDS, HiddenWidthTemplate
from widthwise.model.kinds import kind_of
from widthwise.recipe.design import ShapeRequest, solved_change
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.shape.kinds import Match, Shape, SolvedShape, UniformShape
from widthwise.shape.schedule import SCHEDULES
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

SOLVED: dict[str, type[SolvedShape]] = {
    kind_of(shape): shape for shape in get_args(get_args(Shape)[0]) if issubclass(shape, SolvedShape)
}
"""Kind of a shape with a solved d_model -> its class."""
DEFAULT_FFN = kind_of(type(ModelTemplate.model_fields["ffn"].default))
MOST_LAYERS = 512
"""Largest allowed n_layers, whose costs take about a second. A recipe may have more."""


class Setting(Config):
    """A position of all controls.

    None means the value of the recipe, or the default if the recipe has another kind of shape or feed-forward. Values
    may be text, as in an address.
    """

    model_config = pydantic.ConfigDict(strict=False)

    shape: str | None = None
    """Kind of the shape."""
    turn_layer: float | None = None
    """Depth of the narrowest or widest layer, as a share of n_layers."""
    turn_width: float | None = None
    """Width of that layer, as a share of d_model."""
    quantum: Literal["smallest"] | int | None = None
    """Multiple of all widths; `smallest`: the smallest that gives whole heads, even if the recipe has another one."""
    match: str | None = None
    rounding: str | None = None
    budget: str | None = None
    """Amount of the matched quantity, such as "30M"; d_model is solved for it."""
    d_model: int | None = None
    n_layers: Annotated[int, pydantic.Field(le=MOST_LAYERS)] | None = None
    n_heads: int | None = None
    """In every layer, in place of head_dim."""
    head_dim: int | None = None
    """In every layer, in place of n_heads."""
    kv_group_size: int | None = None
    ffn: str | None = None
    """Kind of the feed-forward."""
    ratio: float | None = None
    """Hidden width of the feed-forward over the width of its layer."""

    def applied(self, base: dict[str, Any], where: str) -> tuple[dict[str, Any], ShapeRequest]:
        """Return the data of a recipe with this setting, and the request for its shape.

        base: data of the recipe; where: its name in errors. Raises UserError for settings that `inspect` or `design`
        refuses.
        """
        model = {**base["model"], **self._given("d_model", "n_layers")}
        if self.quantum == "smallest":
            model["shape"] = dict(model.get("shape") or {})
            model["shape"].pop("quantum", None)
        heads = self._given("n_heads", "head_dim")
        groups = self._given("kv_group_size")
        if heads or groups:
            attention = dict(with_kv_group_size(model.get("attention") or {}))
            if heads:
                attention.pop("n_heads", None)
                attention.pop("head_dim", None)
            model["attention"] = attention | heads | groups
        if self._given("ffn", "ratio"):
            ffn: dict[str, Any] = dict(model.get("ffn") or {})
            ffn.setdefault("kind", DEFAULT_FFN)
            if self.ffn not in (None, ffn["kind"]):
                ffn = {"kind": self.ffn}
            if self.ratio is not None:
                for template in _templates_with_ratio():
                    ffn.pop(template.hidden_key, None)
                ffn["ratio"] = self.ratio
            model["ffn"] = ffn
        data = {**base, "model": model}
        recipe = parse_recipe(data, where)
        shape = template_of(recipe, where).shape
        options: dict[str, Any] = {"match": shape.match}
        if isinstance(shape, SolvedShape) and self.shape in (None, shape.kind):
            options["rounding"] = shape.rounding
        options |= self._given("match", "rounding", "budget", "turn_layer", "turn_width")
        quantum = None if self.quantum == "smallest" else self.quantum
        request = ShapeRequest(kind=self.shape or shape.kind, quantum=quantum, **options)
        return merge(data, solved_change(recipe, request)), request

    def _given(self, *names: str) -> dict[str, Any]:
        """Return the named fields that are not None."""
        return self.model_dump(include={*names}, exclude_none=True)


def template_of(recipe: Recipe, where: str) -> ModelTemplate:
    """Return the model section of a recipe. Raises UserError unless a schedule, or `uniform`, sets its widths."""
    template = recipe.model
    if not isinstance(template, ModelTemplate):
        raise UserError(f"{where}: needs a recipe with d_model and n_layers, not one with explicit layers")
    if not isinstance(template.shape, (SolvedShape, UniformShape)):
        raise UserError(
            f"{where}: model.shape.kind: got {template.shape.kind!r}; must be {', '.join(SCHEDULES)} or uniform, as "
            f"with model.shape={{kind: x}}"
        )
    return template


def controls(recipe: Recipe, where: str) -> dict[str, Any]:
    """Return the first values of all controls, from a recipe, and the choices and limits of each.

    Raises UserError as `template_of`.
    """
    template = template_of(recipe, where)
    shape = template.shape
    attention = template.attention
    ffn = template.ffn
    schedule = SCHEDULES.get(shape.kind)
    start: dict[str, Any] = {
        "shape": shape.kind,
        "match": shape.match,
        "d_model": template.d_model,
        "n_layers": template.n_layers,
        "n_heads": attention.n_heads,
        "head_dim": None if attention.n_heads is not None else attention.constant_head_dim,
        "kv_group_size": attention.kv_group_size,
        "ffn": ffn.kind,
    }
    if isinstance(ffn, HiddenWidthTemplate):
        has_hidden_width = getattr(ffn, ffn.hidden_key) is not None
        start["ratio"] = None if has_hidden_width else ffn.ratio or ffn.usual_ratio
    if isinstance(shape, SolvedShape) and schedule is not None:
        start |= {
            "quantum": shape.quantum,
            "rounding": shape.rounding,
            "turn_width": getattr(shape, schedule.ratio_key),
            "turn_layer": getattr(shape, schedule.layer_key) if schedule.layer_key else None,
        }
    # Feed-forwards that need options are left out, except the recipe's.
    ratios = {
        kind_of(choice): choice.usual_ratio
        for choice in _templates_with_ratio()
        if kind_of(choice) == ffn.kind or not any(field.is_required() for field in choice.model_fields.values())
    }
    # Depth and width of the default turn of each kind of shape, and the limits of this width.
    shapes: dict[str, dict[str, Any]] = {"uniform": {}}
    for kind, rule in SCHEDULES.items():
        options = SOLVED[kind].model_fields
        turn_width = options[rule.ratio_key].default
        low, high = rule.ratios
        shapes[kind] = {
            "turn_layer": options[rule.layer_key].default if rule.layer_key else None,
            "turn_width": turn_width,
            "low": low,
            "high": high if math.isfinite(high) else 2 * turn_width,
        }
    return {
        "start": start,
        "shapes": shapes,
        "matches": list(get_args(Match)),
        "roundings": list(get_args(SolvedShape.model_fields["rounding"].annotation)),
        "ffns": ratios,
        "d_model_step": attention.quantum,
    }


def _templates_with_ratio() -> list[type[HiddenWidthTemplate]]:
    return [template for template in FEED_FORWARDS.templates if issubclass(template, HiddenWidthTemplate)]
