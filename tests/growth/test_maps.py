"""Where old entries go: along one axis, in the stream, and from layer to layer."""

from itertools import combinations

import pytest
import torch
from growth_cases import shaped
from hypothesis import example, given, settings
from hypothesis import strategies as st

from widthwise.growth.correspondence import AxisMap, align
from widthwise.growth.stream import FOREIGN, FRESH, PrefixMap, SlotMap
from widthwise.mistakes import UserError


@st.composite
def axis_maps(draw) -> AxisMap:
    """Old entries in any order, some of them several times, and new ones between them."""
    n_old = draw(st.integers(1, 5))
    others = draw(st.lists(st.integers(-1, n_old - 1), max_size=5))
    index = draw(st.permutations([*range(n_old), *others]))
    is_zero = torch.tensor(draw(st.lists(st.booleans(), min_size=len(index), max_size=len(index))))
    return AxisMap.of(n_old, index, is_zero)


@settings(max_examples=40, deadline=None)
@given(axis_maps())
def test_each_old_entry_has_one_first_place_and_others_are_copied_or_free_or_zero(axis):
    places = [axis.index.tolist().index(old) for old in range(axis.n_old)]
    assert (~axis.is_new).nonzero().flatten().tolist() == sorted(places)
    is_copy = axis.is_new & (axis.index >= 0)
    kinds = torch.stack((~axis.is_new, is_copy, axis.is_free, axis.is_zero))
    assert (kinds.sum(dim=0) == 1).all()


PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=4).map(
    lambda drawn: frozenset((old, old + more) for old, more in drawn)
)
"""Widths before and after of several layers."""


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_layers_find_all_that_they_had_and_agree_about_the_rest(pairs):
    """The widest knows of every coordinate what it was; a narrower one sees the first of them. A norm measures what
    it measured and what is fresh.
    """
    stream = PrefixMap(pairs)
    whole = stream.prefix(max(old for old, _ in pairs), max(new for _, new in pairs))
    for old, new in pairs:
        index = stream.prefix(old, new)
        assert index[index >= 0].tolist() == list(range(old))
        assert index.tolist() == torch.where(whole[:new] >= old, FOREIGN, whole[:new]).tolist()
        measured = index[: stream.stat_width(old, new, None)]
        assert measured[measured >= 0].tolist() == list(range(old))
        assert (measured != FOREIGN).all()


def test_slots_grow_alike_and_those_that_a_layer_did_not_see_come_last():
    stream = SlotMap(slot_width=2, new_slot_width=3, n_read_slots=3)
    assert stream.prefix(4, 9).tolist() == [0, 1, FRESH, 2, 3, FRESH, FOREIGN, FOREIGN, FRESH]


WIDTHS = st.lists(st.sampled_from([4, 8, 12, 16]), min_size=1, max_size=5)
ENDS = st.sampled_from(["slim", "full"])


def cost(old: list[int], new: list[int], places: tuple[int, ...]) -> tuple[int, float]:
    """How much widths grow, and how far layers lie from where they would lie evenly."""
    growth = sum(new[place] - width for width, place in zip(old, places))
    n_old, n_new = len(old), len(new)
    return growth, sum(abs((place + 0.5) / n_new - (i + 0.5) / n_old) for i, place in enumerate(places))


@settings(max_examples=60, deadline=None)
@given(WIDTHS, WIDTHS, st.tuples(ENDS, ENDS))
@example([16], [16, 16], ("full", "slim"))
def test_layers_are_placed_at_the_least_growth_and_then_evenly(old, new, ends):
    """Against all ways to place them. A slim end reads or writes less than its width."""
    configs = [shaped(widths, endpoints) for widths, endpoints in zip((old, new), ends)]
    sizes = [[(layer.d_in, layer.d_model, layer.d_out) for layer in config.layers] for config in configs]
    fits = [
        places
        for places in combinations(range(len(new)), len(old))
        if all(b >= a for i, j in enumerate(places) for a, b in zip(sizes[0][i], sizes[1][j]))
    ]
    if not fits:
        with pytest.raises(UserError, match=r"^(d_model|n_layers): "):
            align(*configs)
        return
    found = [place for _, place in align(*configs).pairs()]
    best = min(cost(old, new, places) for places in fits)
    assert cost(old, new, tuple(found)) == pytest.approx(best)


def test_layers_that_are_lost_or_change_places_are_refused():
    for layers in [(0, None, None), (1, 0, None), (0, 1), (0, 1, 1), (0, None, 2)]:
        with pytest.raises(UserError, match=r"^layers: got \["):
            align(shaped([12] * 2), shaped([12] * 3), layers)
