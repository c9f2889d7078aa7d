import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from widthwise.growth.maps.axis_map import AxisMap, product


@st.composite
def axis_maps(draw, max_size: int = 5) -> AxisMap:
    """Old entries in any order, some of them several times, and new ones between them."""
    n_old = draw(st.integers(1, max_size))
    others = draw(st.lists(st.integers(-1, n_old - 1), max_size=max_size))
    index = draw(st.permutations([*range(n_old), *others]))
    is_zero = torch.tensor(draw(st.lists(st.booleans(), min_size=len(index), max_size=len(index))))
    return AxisMap.of(n_old, index, is_zero)


@given(axis_maps())
def test_each_old_entry_has_one_first_place(axis):
    places = axis.first_positions()
    assert axis.index[places].tolist() == list(range(axis.n_old))
    assert not axis.is_new[places].any()
    assert int((~axis.is_new).sum()) == axis.n_old
    for old, place in enumerate(places.tolist()):
        assert place == axis.index.tolist().index(old)


@given(axis_maps())
def test_an_entry_is_old_or_copied_or_free_or_zero(axis):
    is_copy = axis.is_new & (axis.index >= 0)
    kinds = torch.stack((~axis.is_new, is_copy, axis.is_free, axis.is_zero))
    assert (kinds.sum(dim=0) == 1).all()


@given(st.lists(axis_maps(3), min_size=1, max_size=3))
def test_a_product_is_that_of_tables(maps):
    """Gathering a flattened table by the product is gathering the table axis by axis."""
    flat = product(maps)
    n_old = [axis.n_old for axis in maps]
    table = torch.arange(math.prod(n_old)).view(n_old)
    is_old, is_zero = torch.ones((), dtype=torch.bool), torch.zeros((), dtype=torch.bool)
    for dim, axis in enumerate(maps):
        shape = [-1 if d == dim else 1 for d in range(len(maps))]
        table = table.index_select(dim, axis.index.clamp(min=0))
        is_old = is_old & (axis.index >= 0).view(shape)
        is_zero = is_zero | axis.is_zero.view(shape)
    assert flat.n_old == math.prod(n_old)
    assert flat.index.tolist() == torch.where(is_old, table, -1).flatten().tolist()
    assert flat.is_zero.tolist() == (is_zero & ~is_old).expand(table.shape).flatten().tolist()


@given(st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_new_entries_come_last_where_they_are_appended(n_old, n_more, zero):
    axis = AxisMap.appended(n_old, n_old + n_more, zero)
    assert axis.index.tolist() == [*range(n_old), *[-1] * n_more]
    assert axis.is_zero.tolist() == [False] * n_old + [zero] * n_more
    assert axis.is_identity == (n_more == 0)


def test_an_order_that_changes_is_no_identity():
    assert AxisMap.same(3).is_identity
    assert not AxisMap.of(3, [0, 2, 1]).is_identity


def test_no_axis_is_one_entry():
    assert product([]).index.tolist() == [0]


def test_means_are_taken_within_the_last_axis():
    inner = AxisMap(2, torch.tensor([0, 1, -1]), torch.zeros(3, dtype=torch.bool), average_over=3)
    assert product([AxisMap.same(4), inner]).average_over == 3


@pytest.mark.parametrize("index", [[0, 1], [1, 0, 0, -1]])
def test_one_map_is_its_own_product(index):
    axis = AxisMap.of(2, index)
    assert product([axis]) is axis
