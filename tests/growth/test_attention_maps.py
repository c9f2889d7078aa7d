import pytest

from widthwise.config_io import UserError
from widthwise.growth.maps.attention import AttentionMaps, frequency_places
from widthwise.model.attention import AttentionConfig


def attention(n_heads: int, n_kv_heads: int, head_dim: int = 4, **options) -> AttentionConfig:
    return AttentionConfig(n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, scale=0.5, **options)


@pytest.mark.parametrize(
    ("old", "new", "heads", "kv_heads"),
    [
        ((4, 2), (4, 2), [0, 1, 2, 3], [0, 1]),
        ((4, 2), (6, 3), [0, 1, 2, 3, -1, -1], [0, 1, -1]),
        ((4, 2), (6, 2), [0, 1, -1, 2, 3, -1], [0, 1]),
        ((4, 2), (9, 3), [0, 1, -1, 2, 3, -1, -1, -1, -1], [0, 1, -1]),
        ((4, 2), (4, 4), [0, 1, 2, 3], [0, 0, 1, 1]),
        ((6, 1), (6, 2), [0, 1, 2, 3, 4, 5], [0, 0]),
        ((4, 2), (5, 5), [0, 1, 2, 3, -1], [0, 0, 1, 1, -1]),
    ],
)
def test_query_heads_stay_with_their_key_value_heads(old, new, heads, kv_heads):
    maps = AttentionMaps.of(attention(*old), attention(*new))
    assert maps.n_heads == heads
    assert maps.n_kv_heads == kv_heads
    group = new[0] // new[1]
    for place, head in enumerate(heads):
        if head >= 0:
            assert kv_heads[place // group] == head // (old[0] // old[1])


def test_pairs_are_put_where_their_frequencies_are():
    """A head twice as large has the old frequencies at every second pair; coordinates i and i + 4 are a pair."""
    maps = AttentionMaps.of(attention(2, 2, 4), attention(2, 2, 8))
    assert maps.head_dim == [0, -1, 1, -1, 2, -1, 3, -1]


def test_coordinates_that_do_not_turn_stay_in_front():
    maps = AttentionMaps.of(attention(2, 2, 3, rope_base=None), attention(2, 2, 5, rope_base=None))
    assert maps.head_dim == [0, 1, 2, -1, -1]


def test_values_grow_behind():
    maps = AttentionMaps.of(attention(2, 2, 4, v_head_dim=3), attention(2, 2, 4, v_head_dim=5))
    assert maps.v_head_dim == [0, 1, 2, -1, -1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (attention(6, 2), attention(8, 4), "attention.n_kv_heads: got 4; 3 query heads a group cannot be divided"),
        (attention(4, 4), attention(4, 2), "attention: got 4 heads and 2 key-value heads where there were 4 and 4"),
        (attention(4, 4), attention(3, 3), "attention: got 3 heads and 3 key-value heads"),
        (attention(2, 2, 4), attention(2, 2, 2), "attention.head_dim: got 2 where there were 4"),
        (
            attention(2, 2, v_head_dim=4),
            attention(2, 2, v_head_dim=3),
            "attention.v_head_dim: got 3",
        ),
        (attention(2, 2, 4), attention(2, 2, 6), "attention.rope_frequencies: the 2 frequencies of the old head"),
        (attention(2, 2, 4), attention(2, 2, 4, rope_base=None), "attention.rope_base: rotation cannot begin or end"),
    ],
)
def test_what_takes_away_or_turns_otherwise_is_refused(old, new, message):
    with pytest.raises(UserError) as raised:
        AttentionMaps.of(old, new)
    assert str(raised.value).startswith(message)


def test_equal_frequencies_have_places_of_their_own():
    assert frequency_places([1.0, 1.0], [0.5, 1.0, 1.0]) == [1, 2]
    assert frequency_places([1.0, 1.0], [0.5, 1.0]) is None
    assert frequency_places([1.0], [1.0 + 1e-11]) is None
