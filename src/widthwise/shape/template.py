"""The model section of a recipe, a template with a shape or explicit layers, and its resolution to explicit layers."""

import math
from functools import partial
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Discriminator, Field, Tag

from widthwise.config_io import Config, differences, mistakes_at, options_of, parse, to_data
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionTemplate
from widthwise.model.config import InitConfig, LearnedPositionsConfig, ModelConfig
from widthwise.model.ffn import FFNTemplate
from widthwise.model.ffn.swiglu import SwiGLUTemplate
from widthwise.model.layer import LayerConfig, MTPConfig, MTPOptions
from widthwise.model.norm import PLACEMENTS, NormConfig, NormKind, Placement
from widthwise.model.residual import ResidualTemplate
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.shape.kinds import Match, Shape, SolvedShape, UniformShape
from widthwise.shape.schedule import WidthCost
from widthwise.sizes import WIDEST, NLayers, VocabSize, Width
from widthwise.yaml_io import merge


class NormTemplate(Config):
    """The norms of all layers, of MTP heads and before the head."""

    kind: NormKind = "rms"
    """RMSNorm, or LayerNorm, which subtracts the mean and has a bias (GPT-2)."""
    eps: pydantic.PositiveFloat = 1e-5
    placement: Placement = "pre"
    """pre: before each sublayer. reordered: after it, before the residual addition, as in OLMo 2. both: before and
    after it, as in Gemma 2 and 3."""
    gain_offset: pydantic.NonNegativeFloat = 0.0
    """Constant added to the weights that are the gains: 1 stores gains as 1 + weight, as in Gemma, so that weight decay
    draws them to 1."""

    def over(self, width: int) -> NormConfig:
        """Return the norm of `width` coordinates."""
        return NormConfig(kind=self.kind, eps=self.eps, norm_dim=width, gain_offset=self.gain_offset)


class InitTemplate(InitConfig):
    """Initial weights; `mup` sets all options that muP needs."""

    mup: Width | None = None
    """Base width of muP: sets init.width_multiplier to d_model / mup, logit_multiplier to its inverse, and
    attention.scale to 1/head_dim."""


class ModelTemplate(Config):
    """A model in a recipe: one rule for all layers, a shape, and changes to single layers."""

    vocab_size: VocabSize
    d_model: Width
    """Width of embedding and head, and of the uniform model with the cost of a shape."""
    n_layers: NLayers
    shape: Shape = UniformShape()
    attention: AttentionTemplate = AttentionTemplate()
    ffn: FFNTemplate = SwiGLUTemplate()
    residual: ResidualTemplate = PlainResidualConfig()
    norm: NormTemplate = NormTemplate()
    mtp: MTPOptions | None = None
    """MTP heads for later tokens, each with a layer of width d_model."""
    positions: LearnedPositionsConfig | None = None
    """Learned positions, added to the embedding."""
    tie_embeddings: bool = False
    embedding_multiplier: pydantic.PositiveFloat = 1.0
    logit_multiplier: pydantic.PositiveFloat = 1.0
    logit_cap: pydantic.PositiveFloat | None = None
    """Logits become cap * tanh(logits / cap), as in Gemma 2; null: no cap."""
    init: InitTemplate = InitTemplate()
    layers: dict[int, dict[str, Any]] = Field(default_factory=dict)
    """Changes to single layers, counted from 0, merged into the layers of the rules: {3: {ffn: {d_ff: 96}}}.

    A changed d_model first resizes the whole layer.
    """

    @pydantic.model_validator(mode="before")
    @classmethod
    def _write_out_mup(cls, data: Any) -> Any:
        init = data.get("init") if isinstance(data, dict) else None
        base = init.get("mup") if isinstance(init, dict) else None
        if not (isinstance(base, int) and base > 0 and isinstance(data.get("d_model"), int)):
            return data  # without mup, or with values of a wrong type, which are refused later
        multiplier = data["d_model"] / base
        init = {"width_multiplier": multiplier}
        settings = {"init": init, "logit_multiplier": 1 / multiplier, "attention": {"scale": "1/head_dim"}}
        for path, given, value in differences(data, merge(data, settings)):
            if given is not None:
                raise ValueError(f"init.mup: sets {path} to {value}, but it is {given}; remove one of them")
        return merge(data, settings)

    @pydantic.model_validator(mode="after")
    def _check(self) -> "ModelTemplate":
        for index in self.layers:
            if not 0 <= index < self.n_layers:
                raise ValueError(f"layers.{index}: layers count from 0 to {self.n_layers - 1}")
        return self

    def resolve(self, seq_len: int) -> ModelConfig:
        """Return the model with explicit layers. FLOPs are matched at seq_len. Raise UserError if it is impossible."""
        widths = self._widths(seq_len)
        with mistakes_at("model"):
            parts = self.shape.layer_parts(self.attention, self.ffn, self.d_model, widths)
        d_in, d_out = self.endpoint_widths(widths, self.shape.endpoints == "slim")
        layers = []
        for index, part in enumerate(parts):
            where = f"model.layers.{index}"
            layer = self._layer(widths[index], d_in[index], d_out[index], *part, where)
            if index in self.layers:
                layer = parse(LayerConfig, merge(to_data(layer), self.layers[index]), where)
            layers.append(layer)
        with mistakes_at("model.residual"):
            residual = self.residual.at_widths(self.d_model, widths)
        mtp = None
        if self.mtp is not None:
            width = self.d_model
            layer = self._layer(width, width, width, self.attention, self.ffn, "model.mtp.layer")
            slot_norm = self.norm.over(residual.slot_shape(width)[1])
            norms: dict[str, Any] = {"slot_norm": slot_norm, "final_norm": self.norm.over(width)}
            mtp = MTPConfig(**options_of(MTPOptions, self.mtp), layer=layer, **norms)
        spans_layer = residual.final_norm_spans_layer and self.shape.endpoints != "slim"
        final_norm_width = widths[-1] if spans_layer else self.d_model
        final_norm = {"final_norm": self.norm.over(final_norm_width), "final_norm_width": final_norm_width}
        init = InitConfig(**options_of(InitConfig, self.init))
        resolved = {"layers": tuple(layers), "residual": residual, "mtp": mtp, "init": init, **final_norm}
        unchanged = {name: getattr(self, name) for name in ModelConfig.model_fields if name not in resolved}
        with mistakes_at("model"):
            return ModelConfig(**unchanged | resolved)

    def uniform(self) -> "ModelTemplate":
        """Return the uniform model with the same rules, without shape and changes to single layers."""
        shape = UniformShape(endpoints="slim" if self.shape.endpoints == "slim" else "full")
        n_layers = self.shape.n_uniform_layers(self.n_layers)
        return self.model_copy(update={"shape": shape, "n_layers": n_layers, "layers": {}})

    def baseline(self) -> "ModelTemplate":
        """Return the baseline for comparisons: the uniform model.

        For a uniform model, return the same layers with the plain residual and without MTP heads.
        """
        uniform = self.uniform()
        if uniform != self:
            return uniform
        plain = PlainResidualConfig(multiplier=self.residual.multiplier)
        return self.model_copy(update={"residual": plain, "mtp": None})

    def _widths(self, seq_len: int) -> list[int]:
        cost = TemplateCost(self, self.shape.match, seq_len)
        with mistakes_at("model.residual"):
            quantum = math.lcm(self.shape.width_quantum(self.attention), self.residual.quantum(self.d_model))
            if isinstance(self.shape, SolvedShape):
                self.residual.check_solvable()
        widths = self.shape.layer_widths(self.n_layers, cost, quantum)
        for index, change in self.layers.items():
            widths[index] = change.get("d_model", widths[index])
        for index, width in enumerate(widths):
            if not isinstance(width, int) or not 0 < width <= WIDEST:
                raise UserError(f"model.layers.{index}.d_model: got {width!r}; must be whole, from 1 to {WIDEST}")
        return widths

    def endpoint_widths(self, widths: Any, is_slim: bool) -> tuple[Any, Any]:
        """Return the width that each layer reads and writes: its d_model, at slim ends at most d_model of the model."""
        d_in = widths.copy()
        d_out = widths.copy()
        if is_slim:
            d_in[0] = min(d_in[0], self.d_model)
            d_out[-1] = min(d_out[-1], self.d_model)
        return d_in, d_out

    def _layer(
        self, width: int, d_in: int, d_out: int, attention: AttentionTemplate, ffn: FFNTemplate, where: str
    ) -> LayerConfig:
        """Return the layer that the rules give. where: its path, for errors."""
        ffn_norm_dim = PLACEMENTS[self.norm.placement].normalised_width(width, d_out)
        with mistakes_at(where):
            with mistakes_at("ffn"):
                ffn_config = ffn.at_width(width)
            return LayerConfig(
                d_model=width,
                d_in=d_in,
                d_out=d_out,
                norm_placement=self.norm.placement,
                attention_norm=self.norm.over(width),
                attention=attention.at_width(width),
                ffn_norm=self.norm.over(ffn_norm_dim),
                ffn=ffn_config,
            )


class TemplateCost(WidthCost):
    """The matched quantity of a template's layers at real widths, counted by the components.

    Norm gains are left out, as in the paper, and so are costs that do not depend on the widths.
    """

    def __init__(self, template: ModelTemplate, match: Match, seq_len: int):
        self.d_model = template.d_model
        self.template = template
        self.seq_len = seq_len
        self.match: Match = match

    def uniform(self, n_layers: int) -> float:
        """Return the cost of the uniform model, in which the shape does not change attention and feed-forwards."""
        return TemplateCost(self.template.uniform(), self.match, self.seq_len).total(np.full(n_layers, self.d_model))

    def per_layer(self, widths: np.ndarray) -> np.ndarray:
        """Return the costs of layers with these real widths, (n_layers,)."""
        sizes: Any = np.asarray(widths, dtype=np.float64)  # Any, because cost functions accept arrays as sizes
        template = self.template
        d_in, d_out = template.endpoint_widths(sizes, template.shape.endpoints != "full_matched")
        site_cost = partial(template.residual.matched_cost, template.d_model)
        residual_cost = site_cost(d_in, sizes) + site_cost(sizes, d_out)
        quantity = QUANTITIES[self.match]
        with mistakes_at("model"):
            parts = template.shape.layer_parts(template.attention, template.ffn, template.d_model, sizes)

        def counted(part: tuple[AttentionTemplate, FFNTemplate], width: Any, d_in: Any, d_out: Any) -> Any:
            attention, ffn = part
            return quantity(attention.cost(width, d_in) + ffn.cost(width, d_out), self.seq_len)

        if all(part is parts[0] for part in parts):  # count all layers at once
            costs = counted(parts[0], sizes, d_in, d_out)
        else:
            layers = zip(parts, sizes.tolist(), d_in.tolist(), d_out.tolist(), strict=True)
            costs = np.array([counted(*layer) for layer in layers])
        return np.broadcast_to(quantity(residual_cost, self.seq_len) + costs, widths.shape)


QUANTITIES = {
    "params": lambda cost, seq_len: cost.params,
    "layer_params": lambda cost, seq_len: cost.params,  # nothing else is counted here
    "active_params": lambda cost, seq_len: cost.active_params,
    "flops": lambda cost, seq_len: cost.forward_flops(seq_len),
    "flops_causal": lambda cost, seq_len: cost.forward_flops(seq_len, causal=True),
    "kv_bytes": lambda cost, seq_len: cost.kv_bytes(seq_len),
}
"""Matched quantity -> function that reads it from a Cost."""


def _form(model: Any) -> str:
    layers = model.get("layers") if isinstance(model, dict) else getattr(model, "layers", None)
    return "resolved" if isinstance(layers, (list, tuple)) else "template"


_Resolved = Annotated[ModelConfig, Tag("resolved")]
ModelSection = Annotated[Annotated[ModelTemplate, Tag("template")] | _Resolved, Discriminator(_form)]
ModelChange = Annotated[Annotated[dict[str, Any], Tag("template")] | _Resolved, Discriminator(_form)]
"""Changes to a section, or another model with explicit layers."""


def changed_section(section: ModelSection, change: ModelChange, where: str) -> ModelSection:
    """Return a section with changes, as in a recipe that extends another. Raise UserError `where: ...`."""
    if isinstance(change, ModelConfig):
        return change
    return parse(type(section), merge(to_data(section), change), where)
