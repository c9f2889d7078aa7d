"""The arrangement of old and new coordinates in a grown residual stream.

Layers own prefixes of one shared stream, so a single arrangement must suit all of them. For a given layer, a coordinate
of its grown prefix is one of three:

- *old*: the layer saw it before growth;
- *fresh*: it is new to the model and nothing has been written to it, so it is 0 for every input;
- *foreign*: it existed, but beyond the prefix this layer saw, so it is not 0.

The function is preserved if the layer at first writes nothing to fresh and foreign coordinates, and reads nothing from
foreign ones. Weights that read fresh coordinates are free, and learn once something is written there.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from widthwise.growth.correspondence import AxisMap, check_not_less
from widthwise.growth.resizing import norms_of
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.residual.interface import SlotLayout

FRESH = -1
FOREIGN = -2


class StreamMap(ABC):
    """The coordinates of a grown stream. An index is int64 (n_new,): an old coordinate, FRESH or FOREIGN."""

    average: bool = False
    """True if fresh coordinates hold the mean of the old ones instead of 0. LayerNorm then subtracts the same mean, and
    they become 0."""

    @abstractmethod
    def prefix(self, n_old: int, n_new: int) -> Tensor:
        """Return the index of the first n_new coordinates, for a layer that saw the first n_old."""

    def read(self, n_old: int, n_new: int) -> AxisMap:
        """Return the axis of weights that read the stream: free at fresh coordinates, 0 at foreign ones."""
        index = self.prefix(n_old, n_new)
        return AxisMap.of(n_old, index.clamp(min=-1), zero=index == FOREIGN)

    def written(self, n_old: int, n_new: int) -> AxisMap:
        """Return the axis of weights that write the stream: 0 at new coordinates, or the mean of the old ones."""
        axis = AxisMap.of(n_old, self.prefix(n_old, n_new).clamp(min=-1), zero=not self.average)
        return AxisMap(axis.n_old, axis.index, axis.is_zero, n_new) if self.average and n_new > n_old else axis

    def table(self, n_old: int, n_new: int) -> AxisMap:
        """Return the columns of the embedding."""
        return self.written(n_old, n_new)

    def stat_width(self, n_old: int, n_new: int, before: int | None) -> int | None:
        """Return the number of leading coordinates from which a grown norm may take its statistics; None: all.

        before: the same number for the old norm. The limit is the first foreign coordinate, or the first old coordinate
        that the norm did not measure before; fresh coordinates are 0 and do not matter.
        """
        index = self.prefix(n_old, n_new)
        limit = n_old if before is None else before
        beyond = torch.nonzero((index >= limit) | (index == FOREIGN))[:, 0]
        return int(beyond[0]) if len(beyond) else None

    @property
    def slot(self) -> "StreamMap":
        """The map of a single slot, which MTP heads read and write; a plain stream is one slot."""
        return self


@dataclass(frozen=True)
class PrefixMap(StreamMap):
    """The plain residual."""

    pairs: frozenset[tuple[int, int]]
    """(old, new) width of every prefix that a layer, a norm or the head owns."""
    average: bool = False

    def __post_init__(self) -> None:
        for old, new in sorted(self.pairs):
            check_not_less("d_model", old, new)

    @cached_property
    def n_old_before(self) -> Tensor:
        """Number of old coordinates among the first j of the grown stream, int64 (n + 1,).

        They are as few as the prefixes allow, so that a layer has foreign coordinates only if it grows by more than a
        wider layer. Between two prefix ends, old coordinates come first.
        """
        # A prefix (old, new) must hold `old` old coordinates. Only new - end of its places come after `end`, so at
        # least old - (new - end) must come before it. The prefix that needs most decides.
        ends = sorted({0, *(new for _, new in self.pairs)})
        needed = {end: max(max(0, old - max(0, new - end)) for old, new in self.pairs) for end in ends}
        counts = [0]
        for start, end in pairwise(ends):
            counts += [min(needed[start] + j, needed[end]) for j in range(1, end - start + 1)]
        return torch.tensor(counts)

    def prefix(self, n_old: int, n_new: int) -> Tensor:
        counts = self.n_old_before[: n_new + 1]
        assert len(counts) == n_new + 1
        assert counts[-1] >= n_old, f"{n_new} coordinates do not hold the {n_old} old ones"
        is_old = counts[1:] > counts[:-1]
        index = torch.where(is_old, counts[:-1], FRESH)
        return torch.where(index >= n_old, FOREIGN, index)


@dataclass(frozen=True)
class SlotMap(StreamMap):
    """A stream of slots: every slot gets the same new width, and new slots come after the old ones."""

    slot_width: int
    new_slot_width: int
    n_read_slots: int
    """Number of leading slots that are read at first. No weight reads later slots, so their content is free."""

    def prefix(self, n_old: int, n_new: int) -> Tensor:
        slots = torch.arange(n_new // self.new_slot_width)[:, None]
        inside = torch.arange(self.new_slot_width)[None]
        index = slots * self.slot_width + inside
        index = torch.where(slots >= n_old // self.slot_width, FOREIGN, index)
        return torch.where(inside >= self.slot_width, FRESH, index).flatten()

    def table(self, n_old: int, n_new: int) -> AxisMap:
        index = self.prefix(n_old, n_new)
        is_unread = torch.arange(n_new) >= self.n_read_slots * self.new_slot_width
        return AxisMap.of(n_old, index.clamp(min=-1), zero=(index == FRESH) | ~is_unread)

    @property
    def slot(self) -> StreamMap:
        return PrefixMap(frozenset({(self.slot_width, self.new_slot_width)}))


def stream_map(old: ModelConfig, new: ModelConfig, layers: Iterable[tuple[int, int]]) -> StreamMap:
    """Return the map that suits all layers. Raises UserError if there is none. layers: (old, new) positions."""
    widths = {pair for i, j in layers for pair in zip(old.layers[i].widths, new.layers[j].widths)}
    has_layer_norms = any(norm.kind == "layer" for _, norm, _ in norms_of(old))
    if isinstance(new.residual.layout, SlotLayout):
        return _slot_map(old, new, new.residual.layout, widths, has_layer_norms)
    pairs = {(old.d_model, new.d_model), (old.final_norm_width, new.final_norm_width), *widths}
    average = has_layer_norms and any(a != b for a, b in pairs)
    if average:  # fresh coordinates hold the mean of all old ones, and every norm must read them all
        if len(pairs) > 1:
            raise UserError(
                "d_model: under layer norms the stream grows only if all layers are equally wide, because every norm "
                "needs the same mean as before; grow a model with rms norms, or the feed-forwards and heads"
            )
        if any(norm.kind != "layer" for _, norm, _ in norms_of(old)):
            raise UserError("d_model: cannot grow with both rms and layer norms; fresh coordinates must be 0 or means")
        if any(layer.norm_placement != "pre" for layer in old.layers):
            raise UserError("d_model: cannot grow with layer norms after sublayers, whose output has another mean")
    stream = PrefixMap(frozenset(pairs), average)
    before = old.final_norm_width
    after = new.final_norm_width
    if before < old.d_model and (stream.prefix(before, after) == FOREIGN).any():
        raise UserError(
            f"final_norm_width: got {after}, before {before}; coordinates beyond it reach the head without a norm, "
            "and would be normalised"
        )
    return stream


def _slot_map(
    old: ModelConfig, new: ModelConfig, slots: SlotLayout, widths: set[tuple[int, int]], has_layer_norms: bool
) -> SlotMap:
    """Return the map of a stream that has or gets slots. widths: (before, after) of kept layers."""
    before = old.residual.layout if isinstance(old.residual.layout, SlotLayout) else None
    slot_width = slots.slot_width if before is None else before.slot_width
    n_slots = slots.n_owned_slots if before is None else before.n_slots
    widens = any(a != b for a, b in {(old.d_model, new.d_model), *widths})
    if before is None and widens:
        raise UserError("residual: hyper-connections and other widths cannot be added at once; grow twice")
    if before is None and old.final_norm_width != old.d_model:
        raise UserError(
            f"final_norm_width: got {old.final_norm_width}; slots need a last norm over the {old.d_model} coordinates "
            "of the head, which would change the function"
        )
    if slots.slot_width < slot_width or slots.n_slots < n_slots:
        raise UserError(
            f"residual: got {slots.n_slots} slots of {slots.slot_width} where there were {n_slots} of {slot_width}; "
            "growth takes nothing away"
        )
    if new.d_model // slots.slot_width != old.d_model // slot_width:
        raise UserError(
            f"d_model: got {new.d_model}; a stream of slots grows by wider slots; must be {old.d_model // slot_width} "
            f"slots: {old.d_model // slot_width * slots.slot_width}"
        )
    has_means = has_layer_norms or (before is not None and before.has_means)
    if has_means and (widens or slots.slot_width != slot_width):
        raise UserError(
            f"residual.slot_width: got {slots.slot_width}; slots cannot grow under layer norms, nor layers of slots, "
            "because means would change; add slots, or grow the feed-forwards and heads"
        )
    for a, b in widths:
        if b // slots.slot_width < a // slot_width:
            raise UserError(f"d_model: got {b} where there were {a}: fewer slots; growth takes nothing away")
    return SlotMap(slot_width, slots.slot_width, n_slots)
