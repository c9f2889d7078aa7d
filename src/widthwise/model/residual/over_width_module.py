"""The modules of a stream of slots, which may be wider than the model: entries, the base of sites, and exits.

Source: virtual-width paper, arXiv:2511.11238, sections 3.1 and 3.2. Before training, the first d_model coordinates of
the stream are the embedding of a model without virtual width. Unless the reduction is a sum or starts as a mean, the
head reads only these coordinates, so that the whole model initially equals that model.
"""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.kernels.dispatch import compute_dtype, widened, without_autocast
from widthwise.kernels.hyper_connections import Form, read_slots
from widthwise.kernels.rms_norm import rms_norm
from widthwise.model.axes import Control, Linear, Norm, RMSNorm, Start, Vector
from widthwise.model.context import Exit, Site
from widthwise.model.norm import NormConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig


class SlotSite(Site):
    """A site whose sublayer reads and writes mixtures of slots. The stream is (B, T, n_slots, slot_width).

    form: kernel that computes the mixtures from `tables`.
    """

    def __init__(self, config: Any, form: Form):
        super().__init__()
        self.config = config
        self.form = form
        self.n_read = form.n_read

    @abstractmethod
    def tables(self) -> tuple[Any, ...]:
        """Return the learned tables that `form` takes."""

    def coefficients(self, stream: Tensor) -> Tensor:
        """Return the mixing coefficients, (B, T, n_slots, n_coefficients), in fp32 or wider.

        If all tokens share them, they are (n_slots, n_coefficients). See the `reference` of the form.
        """
        return self.form.reference(stream, *self.tables())[1]

    def read(self, stream: Tensor) -> tuple[Tensor, Any]:
        return read_slots(stream, self.form, self.tables(), self.config.state_every)

    def write(self, skip: Any, update: Tensor) -> Tensor:
        return skip.write(update, self.config.multiplier)


def identity_on_top(weight: Tensor, generator: torch.Generator) -> None:
    """Fill (n_out >= n_in, n_in) with the identity above normal rows of std 1 / sqrt(n_in), which keep the scale."""
    n_in = weight.shape[1]
    nn.init.eye_(weight[:n_in])
    weight[n_in:].normal_(0.0, 1 / math.sqrt(n_in), generator=generator)


class DirectEntry(nn.Module):
    """The embedding table is as wide as the stream."""

    def __init__(self, d_model: int, n_slots: int, slot_width: int):
        super().__init__()
        self.slots = (n_slots, slot_width)

    def forward(self, embedding: Tensor) -> Tensor:
        """embedding: (B, T, embedding_width) -> (B, T, n_slots, slot_width)."""
        return embedding.unflatten(-1, self.slots)


class PadEntry(DirectEntry):
    """Slots after the first d_model coordinates start at 0, as in the plain residual."""

    def forward(self, embedding: Tensor) -> Tensor:
        n_missing = math.prod(self.slots) - embedding.shape[-1]
        return nn.functional.pad(embedding, (0, n_missing)).unflatten(-1, self.slots)


class ExpandEntry(DirectEntry):
    """A matrix maps a token's d_model embedding to the whole stream. Eq. (3)."""

    def __init__(self, d_model: int, n_slots: int, slot_width: int):
        super().__init__(d_model, n_slots, slot_width)
        self.w_expand = Linear({"d_model": d_model}, {"n_slots": n_slots, "slot_width": slot_width}, identity_on_top)

    def forward(self, embedding: Tensor) -> Tensor:
        return self.w_expand(embedding).to(embedding.dtype).unflatten(-1, self.slots)


class SlotEntry(DirectEntry):
    """Every slot is a learned mixture of the blocks of a token's d_model embedding.

    Before training the first slots equal the blocks. Other slots are random mixtures, because equal slots would stay
    equal.
    """

    def __init__(self, d_model: int, n_slots: int, slot_width: int):
        super().__init__(d_model, n_slots, slot_width)
        self.w_expand = Control({"n_fractions": d_model // slot_width}, {"n_slots": n_slots}, identity_on_top)

    def forward(self, embedding: Tensor) -> Tensor:
        return _mix(self.w_expand.weight, embedding.unflatten(-1, (-1, self.slots[1])))


class CopiesEntry(DirectEntry):
    """Every group of d_model coordinates starts as the token's embedding."""

    def forward(self, embedding: Tensor) -> Tensor:
        n_copies = math.prod(self.slots) // embedding.shape[-1]
        return embedding.repeat(1, 1, n_copies).unflatten(-1, self.slots)


ENTRIES: dict[str, type[DirectEntry]] = {
    "direct": DirectEntry,
    "expand": ExpandEntry,
    "slot": SlotEntry,
    "pad": PadEntry,
    "copies": CopiesEntry,
}


def identity(weight: Tensor, generator: torch.Generator) -> None:
    """Fill the weight with the identity, and 0 in further columns or rows."""
    nn.init.eye_(weight)


def mean_of_groups(weight: Tensor, generator: torch.Generator) -> None:
    """Fill the weight with multiples of the identity side by side, a mean over groups. weight: (n_out, n n_out)."""
    n_out, n_in = weight.shape
    nn.init.eye_(weight[:, :n_out]).mul_(n_out / n_in)
    weight[:, n_out:] = weight[:, :n_out].repeat(1, n_in // n_out - 1)


REDUCTION_STARTS: dict[str, Start] = {"first": identity, "mean": mean_of_groups}
"""Option `reduce_init` -> initial entries of the matrix."""


class FullReduction(nn.Module):
    """A matrix maps all slots to d_model coordinates. Eq. (4)."""

    def __init__(self, d_model: int, n_slots: int, slot_width: int, start: Start):
        super().__init__()
        self.w_reduce = Linear({"n_slots": n_slots, "slot_width": slot_width}, {"d_model": d_model}, start)

    def forward(self, slots: Tensor) -> Tensor:
        """slots: (B, T, n_slots, slot_width) -> (B, T, d_model)."""
        return self.w_reduce(slots.flatten(-2))


class SlotReduction(nn.Module):
    """Each of the d_model / slot_width blocks of the head's input is a mixture of slots. Alg. 1, `R`."""

    def __init__(self, d_model: int, n_slots: int, slot_width: int, start: Start):
        super().__init__()
        self.w_reduce = Control({"n_slots": n_slots}, {"n_fractions": d_model // slot_width}, start)

    def forward(self, slots: Tensor) -> Tensor:
        """slots: (B, T, n_slots, slot_width) -> (B, T, d_model)."""
        return _mix(self.w_reduce.weight, slots.to(compute_dtype(slots))).flatten(-2)


class SumReduction(nn.Module):
    """The sum of all groups of d_model coordinates, as in Hyper-Connections. It has no parameters."""

    w_reduce = None

    def __init__(self, d_model: int, n_slots: int, slot_width: int, start: Start):
        super().__init__()
        self.d_model = d_model

    def forward(self, slots: Tensor) -> Tensor:
        """slots: (B, T, n_slots, slot_width) -> (B, T, d_model), in fp32 or wider."""
        wide = torch.promote_types(slots.dtype, torch.float32)
        return slots.flatten(-2).unflatten(-1, (-1, self.d_model)).sum(dim=-2, dtype=wide)


Reduction = FullReduction | SlotReduction | SumReduction
REDUCTIONS: dict[str, type[Reduction]] = {"full": FullReduction, "slot": SlotReduction, "sum": SumReduction}


class GroupNorm(nn.Module):
    """A norm over every group of d_model consecutive coordinates of a token, with one gain for each coordinate.

    Unlike torch's GroupNorm of (B, C, T), it never mixes tokens. Kind `layer` subtracts the mean and has a bias, `rms`
    does neither. norm_dim: divisor of the sums of squares. Source: Wu and He 2018, arXiv:1803.08494, as in section 3.2
    of the virtual-width paper.
    """

    def __init__(self, kind: str, d_model: int, width: int, eps: float, norm_dim: int):
        super().__init__()
        self.d_model = d_model
        self.norm = RMSNorm({"stream_width": width}, eps, norm_dim)
        self.bias = Vector({"stream_width": width}, start=0.0) if kind == "layer" else None

    def forward(self, slots: Tensor) -> Tensor:
        """slots: (B, T, n_slots, slot_width) -> the same shape, in the autocast dtype if autocast is on."""
        groups = slots.flatten(-2).unflatten(-1, (-1, self.d_model))
        if self.bias is not None:
            groups = widened(groups)
            groups = groups - groups.mean(dim=-1, keepdim=True)
        gains = self.norm.weight.view(-1, self.d_model)
        normalised = rms_norm(groups, gains, self.norm.eps, self.norm.norm_dim).flatten(-2)
        return (normalised if self.bias is None else normalised + self.bias()).view(slots.shape)


class OverWidthExit(Exit):
    """The group norm, if there is one, then the reduction, then the last norm."""

    def __init__(self, group_norm: GroupNorm | None, reduce: Reduction, norm: Norm):
        super().__init__()
        self.group_norm = group_norm
        self.reduce = reduce
        self.norm = norm

    def share_reduction(self, source: "OverWidthExit") -> None:
        if self.reduce.w_reduce is not None and source.reduce.w_reduce is not None:
            self.reduce.w_reduce.weight = source.reduce.w_reduce.weight

    def forward(self, stream: Tensor) -> Tensor:
        return self.norm(self.reduce(stream if self.group_norm is None else self.group_norm(stream)))


def _mix(weight: Tensor, blocks: Tensor) -> Tensor:
    """weight: (n_out, n_in); blocks: (B, T, n_in, slot_width) -> (B, T, n_out, slot_width), in the dtype of blocks."""
    tokens = blocks.flatten(0, -3)
    with without_autocast(blocks):
        # Not weight @ blocks, which would keep a copy of the blocks for the backward pass.
        mixed = torch.bmm(weight.to(blocks.dtype).expand(len(tokens), -1, -1), tokens)
    return mixed.view(*blocks.shape[:-2], -1, blocks.shape[-1])


def build_entry(config: HyperConnectionsConfig, d_model: int) -> DirectEntry:
    return ENTRIES[config.embedding](d_model, config.n_slots, config.slot_width)


def build_exit(config: HyperConnectionsConfig, d_model: int, width: int, norm: NormConfig) -> OverWidthExit:
    reduce = REDUCTIONS[config.reduce](d_model, config.n_slots, config.slot_width, REDUCTION_STARTS[config.reduce_init])
    group_norm = None
    if config.group_norm is not None:
        norm_dim = config.group_norm_dim or d_model
        group_norm = GroupNorm(config.group_norm, d_model, config.stream_width, norm.eps, norm_dim)
    return OverWidthExit(group_norm, reduce, norm.build({"d_model": width}))
