"""The smallest model that contains a given one and has other sizes or another shape, residual or feed-forward."""

import math
from itertools import count
from typing import Any

from widthwise.config_io import Config, differences, mistakes_at, parse, to_data
from widthwise.growth.choices import NewSizes
from widthwise.growth.correspondence import Correspondence
from widthwise.growth.resizing import resized, with_layers
from widthwise.growth.target import grown_config
from widthwise.mistakes import UserError
from widthwise.model.attention import SCALES, AttentionTemplate
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.hourglass import HourglassConfig, HourglassTemplate
from widthwise.model.ffn.interface import FEED_FORWARDS, HiddenWidthTemplate
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.kinds import kind_of
from widthwise.model.layer import LayerConfig, MTPOptions
from widthwise.model.residual.hyper_connections import VirtualWidthTemplate
from widthwise.model.residual.slots import HyperConnectionOptions
from widthwise.recipe.design import shape_section
from widthwise.shape.schedule import SCHEDULES
from widthwise.shape.search_space import ShapeRequest
from widthwise.shape.template import ModelTemplate, NormTemplate
from widthwise.sizes import WIDEST

SEQ_LEN = 1
"""Shapes are matched by parameters, which do not depend on seq_len."""
OF_WIDTH = ("n_heads", "n_kv_heads", "scale")


def larger_model(model: ModelConfig, sizes: NewSizes) -> ModelConfig:
    """Return the smallest model with these sizes and this form. `plan_growth` checks that growth is exact.

    Raises UserError `--option: ...` or `size: ...` for changes that are impossible.
    """
    for name in ("turn_layer", "turn_width"):
        value = getattr(sizes, name)
        if value is not None and sizes.to_shape is None:
            raise UserError(f"--{name.replace('_', '-')}: got {value}; needs --to-shape")
    if sizes.to_shape is not None and sizes.virtual_width is not None:
        raise UserError("--virtual-width: conflicts with --to-shape; run two growths, one after the other")
    model = resized(model, sizes)
    if sizes.to_shape is not None:
        n_missing = next(n for n in count() if SCHEDULES[sizes.to_shape].turn_layers(model.n_layers + n))
        if n_missing:
            remedy = f"--add-layers {sizes.add_layers + n_missing}"
            raise UserError(f"--to-shape: got {sizes.to_shape} for n_layers = {model.n_layers}; add {remedy}")
        request = ShapeRequest(
            kind=sizes.to_shape, turn_layer=sizes.turn_layer, turn_width=sizes.turn_width, rounding="nearest"
        )
        model = _shaped(model, request)
    if sizes.ffn is not None:
        model = with_layers(model, lambda _, layer: _as_hourglass(layer))
    if sizes.virtual_width is not None:
        virtual = {"kind": "virtual", "width": sizes.virtual_width}
        with mistakes_at("--virtual-width"):
            template = VirtualWidthTemplate.model_validate(_shared(HyperConnectionOptions, model.residual) | virtual)
            model = model.model_copy(update={"residual": template.at_widths(model.d_model, model.widths)})
    return model


def _shared(template: type[Config], config: Config) -> dict[str, Any]:
    """Return the fields that a config and a template share, as plain data."""
    return {name: value for name, value in to_data(config).items() if name in template.model_fields}


def _shaped(model: ModelConfig, request: ShapeRequest) -> ModelConfig:
    """Return the narrowest model of a shape in which no layer is narrower than the uniform model."""
    try:
        rule = uniform_rule(model)
    except UserError as error:
        needs = "needs a uniform model, whose layers follow one rule; give --to RECIPE"
        raise UserError(f"--to-shape: {needs} ({error})") from None
    template = parse(ModelTemplate, to_data(rule) | {"shape": shape_section(request)}, "--to-shape")
    for d_model in range(model.d_model, WIDEST + 1, template.attention.quantum):
        shaped = template.model_copy(update={"d_model": d_model}).resolve(SEQ_LEN)
        if min(shaped.widths) >= model.d_model:
            return shaped
    raise UserError(
        f"--to-shape: got {request.kind}; with all layers at least {model.d_model} wide, some would exceed {WIDEST}"
    )


def uniform_rule(model: ModelConfig) -> ModelTemplate:
    """Return the rule of the layers of a uniform model, in which all heads have one size.

    The rule may differ in constants that growth keeps. Raises UserError with the reason if there is no rule.
    """
    layer = model.layers[0]
    attention = layer.attention
    ffn = next(template for template in FEED_FORWARDS.templates if kind_of(template) == layer.ffn.kind)
    if {*model.widths} != {model.d_model}:
        raise UserError("its layers are not all as wide as the embedding")
    if not issubclass(ffn, HiddenWidthTemplate):
        raise UserError(f"the hidden width of a {layer.ffn.kind} is not given by a ratio")
    scales = [name for name, scale in SCALES.items() if math.isclose(scale(attention.head_dim), attention.scale)]
    ratio = attention.n_heads * attention.head_dim / layer.d_model
    data = _shared(ModelTemplate, model) | {
        "n_layers": model.n_layers,
        "layers": {},
        "attention": {
            **{key: value for key, value in _shared(AttentionTemplate, attention).items() if key not in OF_WIDTH},
            **({"scale": scales[0]} if scales else {}),
            "kv_group_size": attention.n_heads // attention.n_kv_heads,
            "ratio": None if ratio == 1 else ratio,
        },
        "ffn": _shared(ffn, layer.ffn) | {ffn.hidden_key: None, "ratio": layer.ffn.hidden_widths[0] / layer.d_model},
        "norm": _shared(NormTemplate, layer.attention_norm) | {"placement": layer.norm_placement},
        "mtp": model.mtp and _shared(MTPOptions, model.mtp),
    }
    rule = parse(ModelTemplate, data, "the model")
    same = Correspondence.same(model)
    by_rule, given = (to_data(grown_config(model, config, same)) for config in (rule.resolve(SEQ_LEN), model))
    if by_rule != given:
        raise UserError(f"its {next(differences(given, by_rule))[0]} does not follow a rule")
    return rule


def _as_hourglass(layer: LayerConfig) -> dict[str, Any]:
    """Return a layer's feed-forward as the first block of an hourglass with the default number of blocks and units."""
    old = layer.ffn
    usual = HourglassTemplate()
    if not isinstance(old, SwiGLUConfig):
        raise UserError(f"ffn: is a {old.kind}; --ffn hourglass needs a swiglu, which becomes its first block")
    d_hidden = (old.d_ff, *[usual.whole_hidden(layer.d_model)] * (usual.n_blocks - 1))
    return {"ffn": HourglassConfig(n_blocks=usual.n_blocks, d_hidden=d_hidden)}
