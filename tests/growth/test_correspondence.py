from itertools import combinations

import pytest
from growth_cases import shaped
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.growth.maps.correspondence import Correspondence, align
from widthwise.model.ffn.hourglass import HourglassConfig

WIDTHS = st.lists(st.sampled_from([4, 8, 12, 16]), min_size=1, max_size=5)


def cost(old: list[int], new: list[int], places: tuple[int, ...]) -> tuple[int, float]:
    """How much widths grow, and how far layers lie from where they would lie evenly."""
    growth = sum(new[place] - width for width, place in zip(old, places))
    n_old, n_new = len(old), len(new)
    return growth, sum(abs((place + 0.5) / n_new - (i + 0.5) / n_old) for i, place in enumerate(places))


@settings(max_examples=60, deadline=None)
@given(WIDTHS, WIDTHS)
def test_layers_are_placed_at_the_least_growth_and_then_evenly(old, new):
    """Against all ways to place them."""
    fits = [
        places
        for places in combinations(range(len(new)), len(old))
        if all(new[place] >= width for width, place in zip(old, places))
    ]
    configs = [shaped(widths, endpoints="full") for widths in (old, new)]
    if not fits:
        with pytest.raises(UserError, match=r"^(d_model|n_layers): "):
            align(*configs)
        return
    found = [place for _, place in align(*configs).pairs()]
    best = min(cost(old, new, places) for places in fits)
    assert cost(old, new, tuple(found)) == pytest.approx(best)


def test_added_layers_of_a_uniform_model_lie_evenly():
    layers = align(shaped([12] * 3), shaped([12] * 6)).layers
    for i in range(3):
        assert sorted(layers[2 * i : 2 * i + 2], key=str) == [i, None]


def test_given_layers_are_taken():
    assert align(shaped([12] * 2), shaped([12] * 3), (0, 1, None)).pairs() == [(0, 0), (1, 1)]


@pytest.mark.parametrize("layers", [(0, None, None), (1, 0, None), (0, 1), (0, 1, 1), (0, None, 2)])
def test_layers_that_are_lost_or_change_places_are_refused(layers):
    with pytest.raises(UserError, match=r"^layers: got \["):
        align(shaped([12] * 2), shaped([12] * 3), layers)


def test_names_follow_layers():
    correspondence = Correspondence((None, 0, 1))
    names = {
        "embedding.weight": "embedding.weight",
        "mtp.0.layer.ffn.w_up.weight": "mtp.0.layer.ffn.w_up.weight",
        "layers.0.ffn.w_up.weight": None,
        "layers.1.attention.w_q.bias.weight": "layers.0.attention.w_q.bias.weight",
        "layers.2.ffn.w_up.weight": "layers.1.ffn.w_up.weight",
    }
    assert {name: correspondence.old_name(name) for name in names} == names


def test_added_blocks_come_last_unless_they_are_given():
    old, new = (HourglassConfig(n_blocks=n, d_hidden=5) for n in (2, 3))
    correspondence = Correspondence((0, 1), {1: (0, None, 1)})
    assert correspondence.blocks_of(0, old, new) == correspondence.blocks_of(None, old, new) == (0, 1, None)
    blocks = correspondence.blocks_of(1, old, new)
    names = {
        "norm.weight": "norm.weight",
        "blocks.0.w_up.weight": "blocks.0.w_up.weight",
        "blocks.1.w_up.weight": None,
        "blocks.2.norm.weight": "blocks.1.norm.weight",
    }
    assert {name: new.name_before(old, name, blocks) for name in names} == names
