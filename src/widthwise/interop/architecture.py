"""The interface of a Hugging Face architecture, which reads and writes its configs and tensors, and rotary positions.

The rotary positions in a config are a base and a rule that rescales the frequencies and the scores. A rule is evaluated
once, when it is read, because our models store the frequencies and the factor of the scores. Rules that depend on the
length of the text, such as `dynamic`, are refused.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Self

import pydantic

from widthwise.config_io import Config, parse
from widthwise.kernels.rotary import Rope, are_close, base_of
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig

LARGEST = 2**31 - 1
"""The largest allowed whole number."""


@dataclass(frozen=True)
class Fields:
    """The content of a config.json. A key with value null counts as missing."""

    _data: Mapping[str, Any]
    where: str
    """Name of the file in errors."""
    _read: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value, unchecked."""
        self._read.add(key)
        value = self._data.get(key)
        return default if value is None else value

    def unread(self) -> dict[str, Any]:
        """Return the entries that no method has read, except those with value null, false, 0 or empty."""
        return {key: value for key, value in self._data.items() if value and key not in self._read}

    def has(self, key: str) -> bool:
        """Return True if the file has the key, even if its value is null."""
        return key in self._data

    def size(self, key: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number. Raises UserError for another value, and for a missing key without a default."""
        allowed = f"a whole number from {least} to {most}"
        return self._checked(key, default, lambda value: type(value) is int and least <= value <= most, allowed)

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a finite number above 0. Raises as `size`."""
        number = self._checked(
            key, default, lambda value: type(value) in (int, float) and 0 < value < math.inf, "a number above 0"
        )
        return float(number)

    def optional(self, key: str, default: float | None, read: Callable[[str, Any], Any]) -> Any:
        """Return None for null, else the value. default: for a missing key; read: the method `size` or `positive`."""
        default = None if self.has(key) else default
        return None if self.get(key, default) is None else read(key, default)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false. Raises UserError for another value."""
        return self._checked(key, default, lambda value: isinstance(value, bool), "true or false")

    def only(self, key: str, allowed: Any) -> None:
        """Raise UserError if a key has another value than the allowed one."""
        if self.get(key, allowed) != allowed:
            self.refuse(key, "null" if allowed is None else repr(allowed))

    def refuse(self, key: str, allowed: str) -> NoReturn:
        raise UserError(f"{self.where}: {key}: got {self._data.get(key)!r}; allowed: {allowed}")

    def _checked(self, key: str, default: Any, is_valid: Callable[[Any], bool], allowed: str) -> Any:
        value = self.get(key, default)
        if value is None:
            raise UserError(f"{self.where}: {key}: is required but missing")
        if not is_valid(value):
            self.refuse(key, allowed)
        return value


class Scaling(Config):
    """A rule of a config.json that rescales the plain frequencies, base^(-2i / head_dim) for pair i."""

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        """Return the rescaled frequencies, in radians per position. Raises ValueError for a wrong number of pairs."""
        return tuple(plain)

    @property
    def query_factor(self) -> float:
        """Constant factor of rotated queries and of rotated keys."""
        return 1.0


class NoScaling(Scaling):
    """The frequencies base^(-2i / head_dim), unchanged."""

    rope_type: Literal["default"] = "default"


class LinearScaling(Scaling):
    """All frequencies divided by one factor. Source: Chen et al. 2023, arXiv:2306.15595."""

    rope_type: Literal["linear"] = "linear"
    factor: pydantic.PositiveFloat

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        return tuple(frequency / self.factor for frequency in plain)


class Llama3(Scaling):
    """Low frequencies divided by a factor, high ones kept, with a ramp between. Source: the release of Llama 3.1."""

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
        scaled = []
        for frequency in plain:
            turns = self.original_max_position_embeddings * frequency / (2 * math.pi)
            share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            share = min(1.0, max(0.0, share))
            scaled.append(frequency * ((1 - share) / self.factor + share))
        return tuple(scaled)


class LongRope(Scaling):
    """Every frequency divided by a separate factor, which can express any frequencies.

    Source: Ding et al. 2024, arXiv:2402.13753, with separate factors for long texts; here they must be the same.
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
            raise ValueError("long_factor: differs from short_factor, but frequencies must not depend on the length")
        if self.attention_factor != 1.0:
            raise ValueError(f"attention_factor: got {self.attention_factor}; allowed: 1.0")
        return self

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        if len(self.short_factor) != len(plain):
            raise ValueError(f"short_factor: has {len(self.short_factor)} numbers; must be head_dim / 2 = {len(plain)}")
        return tuple(frequency / factor for frequency, factor in zip(plain, self.short_factor))


class Yarn(Scaling):
    """Low frequencies divided by a factor, high ones kept, with a ramp over pairs, and larger scores.

    Source: Peng et al. 2023, arXiv:2309.00071.
    """

    rope_type: Literal["yarn"] = "yarn"
    factor: pydantic.PositiveFloat
    original_max_position_embeddings: pydantic.PositiveInt
    beta_fast: pydantic.PositiveFloat = 32.0
    beta_slow: pydantic.PositiveFloat = 1.0
    attention_factor: pydantic.PositiveFloat | None = None
    mscale: pydantic.PositiveFloat | None = None
    mscale_all_dim: pydantic.PositiveFloat | None = None
    truncate: Literal[True] = True

    def scaled(self, plain: Sequence[float]) -> tuple[float, ...]:
        if len(plain) == 1:
            raise ValueError("rope_type: got yarn; needs a head_dim of 4 or more")
        # Pair i turns original_max_position_embeddings * plain[i] / (2 pi) times, with plain[i] = plain[1]^i.
        first, last = (
            math.log(self.original_max_position_embeddings / (2 * math.pi * n_turns)) / -math.log(plain[1])
            for n_turns in (self.beta_fast, self.beta_slow)
        )
        low = max(math.floor(first), 0)
        high = min(math.ceil(last), 2 * len(plain) - 1)
        scaled = []
        for i, frequency in enumerate(plain):
            share = min(1.0, max(0.0, (i - low) / ((high - low) or 0.001)))
            scaled.append(frequency * (share / self.factor + 1 - share))
        return tuple(scaled)

    @property
    def query_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        log_factor = math.log(max(1.0, self.factor))
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (0.1 * self.mscale * log_factor + 1.0) / (0.1 * self.mscale_all_dim * log_factor + 1.0)
        return 0.1 * log_factor + 1.0


DEFAULT_BASE = 10000.0
RULES = {"default": NoScaling, "linear": LinearScaling, "llama3": Llama3, "longrope": LongRope, "yarn": Yarn}


def read_rope(fields: Fields, head_dim: int, default_base: float = DEFAULT_BASE) -> tuple[Rope, float]:
    """Read the rotary positions, and the constant factor of rotated queries and of rotated keys.

    `rope_scaling` is the older name of `rope_parameters`; transformers prefers the new one. If a file has both, they
    must agree, so that all readers get the same model. Raises UserError for rules that depend on the length of the
    text.
    """
    fields.only("partial_rotary_factor", 1.0)
    keys = [key for key in ("rope_parameters", "rope_scaling") if fields.get(key)]
    rotations = [_read_rule(fields, key, head_dim, default_base) for key in keys]
    plain = Rope(head_dim, fields.positive("rope_theta", default_base))
    if not rotations:
        return plain, 1.0
    if rotations[0] != rotations[-1]:
        fields.refuse("rope_scaling", f"null, or the same as rope_parameters: {fields.get('rope_parameters')!r}")
    return rotations[0]


def _read_rule(fields: Fields, key: str, head_dim: int, default_base: float) -> tuple[Rope, float]:
    """Read the rotary positions under one key, as `read_rope`."""
    rule = fields.get(key)
    if not isinstance(rule, dict):
        fields.refuse(key, "a mapping, or null")
    rule_fields = Fields({"rope_theta": fields.get("rope_theta"), **rule}, f"{fields.where}: {key}")
    base = rule_fields.positive("rope_theta", default_base)
    rule_fields.only("partial_rotary_factor", 1.0)
    options = {name: value for name, value in rule.items() if name not in ("rope_theta", "partial_rotary_factor")}
    older_kind = options.pop("type", "default")
    kind = str(options.get("rope_type", older_kind))
    if kind not in RULES:
        name = "rope_type" if "rope_type" in rule else "type"
        raise UserError(f"{rule_fields.where}.{name}: got {kind!r}; allowed: {', '.join(RULES)}")
    scaling = parse(RULES[kind], {**options, "rope_type": kind}, rule_fields.where)
    plain = Rope(head_dim, base)
    if isinstance(scaling, NoScaling):
        return plain, 1.0
    return Rope(head_dim, base, scaling.scaled(plain.pair_frequencies)), scaling.query_factor


def write_rope(rope: Rope, n_positions: int, query_factor: float) -> dict[str, Any]:
    """Return the entries of a config.json, with the names of transformers 5 and of earlier versions.

    n_positions: longest context in tokens; query_factor: constant factor of rotated queries and keys, which only yarn
    can express.
    """
    base, scaling = _fitted(rope.base, rope.pair_frequencies, n_positions, query_factor)
    rule = scaling.model_dump(exclude_none=True)
    legacy = None if isinstance(scaling, NoScaling) else rule
    return {"rope_parameters": {"rope_theta": base, **rule}, "rope_theta": base, "rope_scaling": legacy}


def _fitted(base: float, wanted: Sequence[float], n_positions: int, query_factor: float) -> tuple[float, Scaling]:
    """Return a base and the simplest rule that yield the wanted frequencies. Arguments as in `write_rope`."""
    plain = Rope(2 * len(wanted), base).pair_frequencies
    # The lowest frequency determines the factor. Several original lengths yield the same frequencies, because yarn
    # rounds to whole pairs; common lengths are tried first: n_positions, n_positions / factor, powers of two.
    factor = round(plain[-1] / wanted[-1], 9)
    if query_factor != 1 and factor > 1 and len(wanted) > 1:
        powers = [2 ** (i / 8) for i in sorted(range(32, 168), key=lambda i: i % 8)]
        for length in map(round, (n_positions, max(1, n_positions / factor), *powers)):
            yarn = Yarn(factor=factor, original_max_position_embeddings=length, attention_factor=query_factor)
            if are_close(yarn.scaled(plain), wanted):
                return base, yarn
    plain_base = base_of(wanted, base)
    if plain_base is not None:
        return plain_base, NoScaling()
    # Linear scaling divides all frequencies by the same factor, and the first plain frequency is 1.
    linear_base = base_of([frequency / wanted[0] for frequency in wanted], base)
    if linear_base is not None:
        return linear_base, LinearScaling(factor=1 / wanted[0])
    # All other constants have the values of Llama 3.1, 3.2 and 3.3.
    llama3 = Llama3(factor=factor, original_max_position_embeddings=8192)
    if are_close(llama3.scaled(plain), wanted):
        return base, llama3
    factors = tuple(frequency / scaled for frequency, scaled in zip(plain, wanted))
    sizes = {"original_max_position_embeddings": n_positions, "attention_factor": 1.0}
    return base, LongRope(short_factor=factors, long_factor=factors, **sizes)


class HFTensor(NamedTuple):
    """One tensor of a Hugging Face checkpoint, stacked from our parameters."""

    name: str
    parts: tuple[str, ...]
    """Names of our parameters, stacked in this order along the rows."""
    is_transposed: bool = False
    """True if stored (in, out), as the matrices of GPT-2."""
    block: int = 0
    """Number of the expert whose matrix this is."""
    n_blocks: int = 1
    """Number of experts, whose matrices are equal blocks of rows of one of our parameters."""


class Architecture(ABC):
    """One `model_type` of transformers, with the mapping from its configs and tensors to ours."""

    model_type: ClassVar[str]
    class_name: ClassVar[str]
    """Name of the causal language model class in transformers."""
    base_prefix: ClassVar[str]
    """Prefix of all tensors except the head's; missing in a model saved without its head."""
    positions_key: ClassVar[str] = "max_position_embeddings"
    default_positions: ClassVar[int | None] = 2048
    """Longest context in tokens if config.json does not have it, as in transformers; None: it is required."""
    buffers: ClassVar[str]
    """Regular expression for tensors of older checkpoints that are ignored, because the config determines them."""

    @abstractmethod
    def read(self, fields: Fields) -> ModelConfig:
        """Read a config. Raises UserError for options that our models lack."""

    @abstractmethod
    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        """Return the entries of a config.json, which `read` reads as the same model if the format can express it.

        n_positions: longest context in tokens.
        """

    @abstractmethod
    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        """Yield every tensor of the model, without buffers."""

    def n_positions(self, fields: Fields) -> int:
        """Return the longest context of the model, in tokens."""
        return fields.size(self.positions_key, self.default_positions)

    def check_written(self, fields: Fields) -> None:  # noqa: B027
        """Raise UserError if transformers refuses the result of `write`."""
