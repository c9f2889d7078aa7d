"""The rotation of a Hugging Face config, in and out: a base and a rule that rescales its frequencies.

A rule of the frequencies alone is evaluated once, as a model of ours has the numbers themselves. Rules that depend on
the length of the text, as `dynamic`, and `yarn` with its temperature are refused.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import pydantic

from widthwise.config_io import Config, parse
from widthwise.interop.architecture import Fields
from widthwise.kernels.rotary import Rope, agree, base_of


class Scaling(Config, ABC):
    """A rule that rescales the frequencies base^(-2i / head_dim)."""

    @abstractmethod
    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        """Rescale the radians per position of each pair. Raises ValueError for another number of pairs."""

    @classmethod
    @abstractmethod
    def fitting(cls, base: float, wanted: Sequence[float], n_positions: int) -> tuple[float, Self] | None:
        """Return a base and a rule for the wanted frequencies, or None. n_positions: longest context in tokens."""


class NoScaling(Scaling):
    """The unscaled frequencies."""

    rope_type: Literal["default"] = "default"

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        return tuple(plain)

    @classmethod
    def fitting(cls, base: float, wanted: Sequence[float], n_positions: int) -> tuple[float, Self] | None:
        found = base_of(wanted, base)
        return None if found is None else (found, cls())


class LinearScaling(Scaling):
    """All divided by one factor. Source: Chen et al. 2023, arXiv:2306.15595."""

    rope_type: Literal["linear"] = "linear"
    factor: pydantic.PositiveFloat

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        return tuple(frequency / self.factor for frequency in plain)

    @classmethod
    def fitting(cls, base: float, wanted: Sequence[float], n_positions: int) -> tuple[float, Self] | None:
        rule = cls(factor=1 / wanted[0])  # the first plain frequency is 1
        plain = NoScaling.fitting(base, [frequency / wanted[0] for frequency in wanted], n_positions)
        return None if plain is None else (plain[0], rule)


class Llama3(Scaling):
    """Low frequencies divided by a factor, high ones kept, a ramp between. Source: Llama 3.1's release."""

    rope_type: Literal["llama3"] = "llama3"
    factor: pydantic.PositiveFloat
    low_freq_factor: pydantic.PositiveFloat = 1.0
    high_freq_factor: pydantic.PositiveFloat = 4.0
    original_max_position_embeddings: pydantic.PositiveInt

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor: got {self.high_freq_factor}; must be above low_freq_factor = {self.low_freq_factor}"
            )
        return self

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        return tuple(frequency * self._kept(frequency) for frequency in plain)

    def _kept(self, frequency: float) -> float:
        turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        share = min(1.0, max(0.0, share))
        return (1 - share) / self.factor + share

    @classmethod
    def fitting(cls, base: float, wanted: Sequence[float], n_positions: int) -> tuple[float, Self] | None:
        """Fit the factor, by the lowest frequency, with the other constants of Llama 3.1 to 3.3."""
        plain = plain_frequencies(base, 2 * len(wanted))
        ratio = plain[-1] / wanted[-1]
        rule = cls(factor=round(ratio, 9), original_max_position_embeddings=8192)
        return (base, rule) if agree(rule.scaled(plain), wanted) else None


class LongRope(Scaling):
    """Each divided by a separate factor, which can express any frequencies.

    Source: Ding et al. 2024, arXiv:2402.13753, with other factors for long texts; here they must be the same.
    """

    rope_type: Literal["longrope"] = "longrope"
    short_factor: tuple[pydantic.PositiveFloat, ...]
    long_factor: tuple[pydantic.PositiveFloat, ...]
    original_max_position_embeddings: pydantic.PositiveInt
    attention_factor: pydantic.PositiveFloat
    factor: pydantic.PositiveFloat | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.long_factor != self.short_factor:
            raise ValueError("long_factor: differs from short_factor, so that frequencies would depend on the length")
        if self.attention_factor != 1.0:
            raise ValueError(f"attention_factor: got {self.attention_factor}; allowed: 1.0")
        return self

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        if len(self.short_factor) != len(plain):
            raise ValueError(f"short_factor: has {len(self.short_factor)} numbers; must be head_dim / 2 = {len(plain)}")
        return tuple(frequency / factor for frequency, factor in zip(plain, self.short_factor))

    @classmethod
    def fitting(cls, base: float, wanted: Sequence[float], n_positions: int) -> tuple[float, Self] | None:
        plain = plain_frequencies(base, 2 * len(wanted))
        factors = tuple(frequency / other for frequency, other in zip(plain, wanted))
        return base, cls(
            short_factor=factors,
            long_factor=factors,
            original_max_position_embeddings=n_positions,
            attention_factor=1.0,
        )


SCALINGS = (NoScaling, LinearScaling, Llama3, LongRope)
"""In the order of trial; the last one always fits."""

AnyScaling = Annotated[NoScaling | LinearScaling | Llama3 | LongRope, pydantic.Field(discriminator="rope_type")]


DEFAULT_BASE = 10000.0


class _Rule(Config):
    rope_parameters: AnyScaling


def read_rope(fields: Fields, head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    """Return the base, and the frequencies unless they are base^(-2i / head_dim). Raises UserError for other rules.

    `rope_scaling` is the older name of `rope_parameters`, which transformers prefers if a file has both. They must
    agree, so that all readers get the same model.
    """
    fields.only("partial_rotary_factor", 1.0)
    found = {key: _read_rule(fields, key, head_dim) for key in ("rope_parameters", "rope_scaling") if fields.get(key)}
    if len(found) == 2 and found["rope_parameters"] != found["rope_scaling"]:
        fields.refuse("rope_scaling", f"null, or what rope_parameters say: {fields.get('rope_parameters')!r}")
    return next(iter(found.values()), (fields.positive("rope_theta", DEFAULT_BASE), None))


def _read_rule(fields: Fields, key: str, head_dim: int) -> tuple[float, tuple[float, ...] | None]:
    rule = fields.get(key)
    if not isinstance(rule, dict):
        fields.refuse(key, "a mapping, or null")
    within = Fields({"rope_theta": fields.get("rope_theta"), **rule}, f"{fields.where}: {key}")
    base = within.positive("rope_theta", DEFAULT_BASE)
    within.only("partial_rotary_factor", 1.0)
    given = {name: value for name, value in rule.items() if name not in ("rope_theta", "partial_rotary_factor")}
    given = {"rope_type": given.pop("type", "default"), **given}
    scaling = parse(_Rule, {"rope_parameters": given}, fields.where).rope_parameters
    return base, None if isinstance(scaling, NoScaling) else scaling.scaled(plain_frequencies(base, head_dim))


def write_rope(rope: Rope, n_positions: int) -> dict[str, Any]:
    """Return the keys of a config.json, by the names of transformers 5 and of earlier versions."""
    wanted = rope.pair_frequencies
    base, scaling = next(found for kind in SCALINGS if (found := kind.fitting(rope.base, wanted, n_positions)))
    rule = scaling.model_dump(exclude_none=True)
    legacy = None if isinstance(scaling, NoScaling) else rule
    return {"rope_parameters": {"rope_theta": base, **rule}, "rope_theta": base, "rope_scaling": legacy}


def plain_frequencies(base: float, head_dim: int) -> tuple[float, ...]:
    """Return base^(-2i / head_dim) of each pair."""
    return Rope(head_dim, base).pair_frequencies
