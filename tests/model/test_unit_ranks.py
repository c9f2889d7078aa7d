"""The ranks of the units of grown dynamic-width layers, against a merge of exact fractions."""

from itertools import accumulate

import torch
from dynamic_models import exact_units
from hypothesis import given
from hypothesis import strategies as st

from widthwise.model.ffn.dynamic_module import grown_centres, old_index

GROWTHS = st.lists(st.integers(1, 90), min_size=2, max_size=4).map(lambda added: tuple(accumulate(added)))
"""Sizes of a layer that was grown once to three times."""


def centres_of(sizes):
    """The centre of every unit."""
    return grown_centres(sizes, torch.ones((), dtype=torch.float64, device="cpu")).tolist()


def first_places(sizes):
    """Where the units of the first size are now."""
    places = list(range(sizes[0]))
    for n_sizes in range(2, len(sizes) + 1):
        index = old_index(sizes[:n_sizes])
        places = [index.index(place) for place in places]
    return places


@given(GROWTHS)
def test_equals_the_exact_merge_in_which_centres_ascend_and_the_old_ones_stay_in_their_order(sizes):
    centres, index = centres_of(sizes), old_index(sizes)
    assert index == [place for _, place in exact_units(sizes)]
    assert len(centres) == len(index) == sizes[-1]
    assert centres == sorted(centres)
    assert 0 < centres[0] <= centres[-1] < sizes[0]
    assert [place for place in index if place >= 0] == list(range(sizes[-2]))
    assert [centre for centre, place in zip(centres, index) if place >= 0] == centres_of(sizes[:-1])


@given(GROWTHS)
def test_every_width_keeps_its_share_of_the_new_units(sizes):
    """Up to half a unit for each batch of units that were added."""
    ranks = torch.tensor(centres_of(sizes), dtype=torch.float64) / sizes[0]
    for fraction in (0.1, 1 / 3, 0.5, 0.77, 1.0):
        assert abs(int((ranks < fraction).sum()) - fraction * sizes[-1]) <= len(sizes) / 2 + 1e-9


@given(GROWTHS)
def test_the_first_units_keep_their_centres_to_the_bit(sizes):
    for dtype in (torch.float32, torch.float64):
        centres = grown_centres(sizes, torch.ones((), dtype=dtype))
        assert centres.dtype == dtype
        assert centres[first_places(sizes)].tolist() == [i + 0.5 for i in range(sizes[0])]
        expected = torch.tensor([float(rank * sizes[0]) for rank, _ in exact_units(sizes)], dtype=torch.float64)
        assert torch.equal(centres, expected.to(dtype))
