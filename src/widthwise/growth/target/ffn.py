"""The feed-forward of a grown layer."""

from collections.abc import Callable

from widthwise.config_io import UserError
from widthwise.growth.target.agreement import all_must_agree, must_agree
from widthwise.model.ffn import FFN
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.width_score import LayerNormMeanScoreConfig, RawMeanScoreConfig, RMSMeanScoreConfig

MEANS = (LayerNormMeanScoreConfig, RMSMeanScoreConfig, RawMeanScoreConfig)
"""Scores that are a mean over the coordinates of the stream."""


def grown_ffn(old: FFN, new: FFN, widens: bool, where: str) -> FFN:
    """`new` with the constants of `old`. widens: whether the layer reads a wider stream; where: the path, for messages.

    Raises UserError where the one cannot become the other.
    """
    if isinstance(old, SwiGLUConfig) and isinstance(new, MoEConfig):
        return _upcycled(old, new, where)
    must_agree(f"{where}.kind", old.kind, new.kind)
    return CHECKS[type(old)](old, new, widens, where)


def _upcycled(old: SwiGLUConfig, new: MoEConfig, where: str) -> FFN:
    if new.d_expert < old.d_ff:
        raise UserError(
            f"{where}.d_expert: got {new.d_expert}; every expert starts as the whole feed-forward, so that it must "
            f"be at least {old.d_ff}"
        )
    return new


def _of_fields(*names: str) -> Callable[..., FFN]:
    """Where all that is no size must stay."""

    def check(old: FFN, new: FFN, widens: bool, where: str) -> FFN:
        all_must_agree(where, names, old, new)
        return new

    return check


def _hourglass(old: HourglassConfig, new: HourglassConfig, widens: bool, where: str) -> FFN:
    all_must_agree(where, ("share_weights", "norm", "block_multiplier"), old, new)
    if old.share_weights:
        must_agree(f"{where}.n_blocks", old.n_blocks, new.n_blocks)
    return new


def _mixture(old: MoEConfig, new: MoEConfig, widens: bool, where: str) -> FFN:
    n_copies, rest = divmod(new.n_experts, old.n_experts)
    if rest or n_copies == 0 or new.top_k != old.top_k * n_copies:
        raise UserError(
            f"{where}.n_experts: got {new.n_experts} with top_k {new.top_k} where there were {old.n_experts} with "
            f"top_k {old.top_k}; single experts cannot join, because they would take tokens or weight from the others: "
            "multiply n_experts and top_k by one number, or grow d_expert or d_shared"
        )
    if new.d_expert < old.d_expert and new.d_expert * n_copies != old.d_expert:
        raise UserError(
            f"{where}.d_expert: got {new.d_expert} where it was {old.d_expert}; it grows, or experts are cut into "
            "equal parts"
        )
    return new


def _dynamic(old: DynamicConfig, new: DynamicConfig, widens: bool, where: str) -> FFN:
    """Units keep their ranks, and widths, centres and temperatures the sizes they were meant for."""
    all_must_agree(where, ("min_fraction", "score"), old, new)
    must_agree(f"{where}.mask.kind", old.mask.kind, new.mask.kind)
    if widens and isinstance(old.score, MEANS):
        raise UserError(
            f"{where}.score: got {old.score.kind}, a mean over the stream, which is another one over a wider stream; "
            "use linear or mlp"
        )
    if new.d_ff < old.d_ff:
        raise UserError(f"{where}.d_ff: got {new.d_ff} where it was {old.d_ff}; growth takes nothing away")
    grown_from = old.grown_from if new.d_ff == old.d_ff else (*old.grown_from, old.d_ff)
    return old.model_copy(update={"d_ff": new.d_ff, "grown_from": grown_from, "execution": new.execution})


CHECKS: dict[type[FFN], Callable[..., FFN]] = {
    SwiGLUConfig: _of_fields(),
    MLPConfig: _of_fields("activation", "bias"),
    HourglassConfig: _hourglass,
    MoEConfig: _mixture,
    DynamicConfig: _dynamic,
}
