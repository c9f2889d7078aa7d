import expansions
import pytest
import torch
from growth_cases import shaped, small_model
from hypothesis import given
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.growth.maps.stream import FOREIGN, FRESH, PrefixMap, SlotMap, stream_map

PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=4).map(
    lambda drawn: frozenset((old, old + more) for old, more in drawn)
)
"""Widths before and after of several layers."""


@given(PAIRS)
def test_a_layer_finds_all_that_it_had_in_order(pairs):
    stream = PrefixMap(pairs)
    for old, new in pairs:
        index = stream.prefix(old, new)
        assert index.shape == (new,)
        assert index[index >= 0].tolist() == list(range(old))


@given(PAIRS)
def test_all_layers_agree_about_the_stream(pairs):
    """The widest knows of every coordinate what it was; a narrower one sees the first of them."""
    stream = PrefixMap(pairs)
    n_old, n_new = max(old for old, _ in pairs), max(new for _, new in pairs)
    whole = stream.prefix(n_old, n_new)
    for old, new in pairs:
        expected = torch.where(whole[:new] >= old, FOREIGN, whole[:new])
        assert stream.prefix(old, new).tolist() == expected.tolist()


@given(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_layers_that_grow_alike_see_nothing_foreign(more, widths):
    stream = PrefixMap(frozenset((width, width + more) for width in widths))
    for width in widths:
        index = stream.prefix(width, width + more)
        assert (index != FOREIGN).all()
        assert int((index == FRESH).sum()) == more


def test_only_fresh_coordinates_may_be_read_at_once():
    stream = PrefixMap(frozenset({(6, 8), (2, 4), (3, 7)}))
    # 3 grows to 7 coordinates, of which the wide layer must have owned 5: two are foreign to it, two are fresh.
    index = stream.prefix(3, 7)
    assert (index == FOREIGN).sum() == 2
    axis = stream.read(3, 7)
    assert axis.is_zero.tolist() == (index == FOREIGN).tolist()
    assert stream.written(3, 7).is_zero.tolist() == (index < 0).tolist()


@given(PAIRS)
def test_a_norm_measures_what_it_measured_and_what_is_fresh(pairs):
    stream = PrefixMap(pairs)
    for old, new in pairs:
        width = stream.stat_width(old, new, None)
        measured = stream.prefix(old, new)[:width]
        assert measured[measured >= 0].tolist() == list(range(old))
        assert (measured != FOREIGN).all()


def test_a_norm_goes_on_with_a_part():
    """The norm measured 4 of 6 coordinates; they become 8, of which the fifth was not its own."""
    stream = PrefixMap(frozenset({(6, 8), (4, 4)}))
    assert stream.prefix(6, 8).tolist() == [0, 1, 2, 3, 4, 5, FRESH, FRESH]
    assert stream.stat_width(6, 8, 4) == 4
    assert stream.stat_width(6, 8, None) is None


def test_nothing_is_taken_away():
    with pytest.raises(UserError, match="d_model: got 3 where there were 4"):
        PrefixMap(frozenset({(4, 3)}))


def test_slots_grow_alike_and_new_ones_come_last():
    stream = SlotMap(slot_width=2, new_slot_width=3, n_read_slots=3)
    assert stream.prefix(4, 6).tolist() == [0, 1, FRESH, 2, 3, FRESH]
    assert stream.prefix(4, 9).tolist() == [0, 1, FRESH, 2, 3, FRESH, FOREIGN, FOREIGN, FRESH]
    assert stream.stat_width(4, 9, None) == 6
    assert stream.slot_read(2, 3).index.tolist() == [0, 1, -1]
    assert stream.slot_written(2, 3).is_zero.tolist() == [False, False, True]


def test_what_unheard_slots_hold_is_free():
    stream = SlotMap(slot_width=2, new_slot_width=2, n_read_slots=3)
    table = stream.table(4, 8)  # a third slot that layers read but no token fills, and a fourth
    assert table.index.tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    assert table.is_zero.tolist() == [False] * 4 + [True] * 2 + [False] * 2


def test_a_growth_has_one_stream():
    config = shaped([20, 8, 16])
    grown = expansions.widen_layers(config, {1: 10})[0]
    stream = stream_map(config, grown, [(0, 0), (1, 1), (2, 2)])
    assert isinstance(stream, PrefixMap)
    assert (8, 10) in stream.pairs
    assert not stream.average
    layer_norms = small_model(norm={"kind": "layer"})
    wider = stream_map(layer_norms, expansions.widen_stream(layer_norms, 2)[0], [(0, 0)])
    assert wider.average
    assert wider.written(12, 14).average_over == 14
