import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_files import N_TOKENS, counting_tokens, three_sources

from widthwise.config_io import UserError
from widthwise.data.windows import FileWindows, MixedWindows, TokenMixture, permute


def order(n: int, seed: int, epoch: int) -> list[int]:
    return permute(np.arange(n, dtype=np.uint64), n, seed, np.full(n, epoch, dtype=np.uint64)).tolist()


@given(st.integers(1, 700), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_order_is_a_permutation(n, seed, epoch):
    assert sorted(order(n, seed, epoch)) == list(range(n))


def test_a_position_of_a_huge_permutation_needs_no_table():
    n = 10**15 + 37
    positions = np.array([0, 1, n - 1], dtype=np.uint64)
    windows = permute(positions, n, 3, np.zeros(3, dtype=np.uint64))
    assert len(set(windows.tolist())) == 3
    assert (windows < n).all()


@pytest.mark.parametrize("n", [2, 7, 16])
def test_every_window_is_equally_likely_at_every_position(n):
    n_orders = 3000
    orders = np.array([order(n, seed, epoch) for seed in range(30) for epoch in range(n_orders // 30)])
    counts = np.stack([(orders == window).sum(axis=0) for window in range(n)])
    expected = n_orders / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = (n - 1) ** 2
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


def test_neighbours_in_the_order_are_not_neighbours_in_the_data():
    steps = np.diff(np.array(order(10_007, 1, 0)))
    assert (abs(steps) == 1).mean() < 0.002


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> TokenMixture:
    return three_sources(tmp_path_factory.mktemp("mixture"))


def test_a_mixture_lasts_until_one_of_its_sources_has_no_window_left(mixture):
    """a and b have half of the rows, of which a quarter is a's: b has 24 - 24 / 4 = 18 of the first 48, its all."""
    windows = MixedWindows(mixture, 17)
    assert windows.n_windows == 48
    rows = windows.read(np.arange(48, dtype=np.uint64))
    assert len(set(rows[:, 0].tolist())) == 48
    assert windows.counts(48)["b"] == 18
    assert windows.source_of(48) == "b"


def test_windows_of_a_mixture_in_order_are_those_of_its_files_from_their_starts(mixture):
    windows = MixedWindows(mixture, 17)
    rows = windows.read(np.arange(windows.n_windows, dtype=np.uint64))
    for name, n_tokens, first in zip("abc", N_TOKENS, np.cumsum([0, *N_TOKENS])):
        own = rows[(first <= rows[:, 0]) & (rows[:, 0] < first + n_tokens)]
        alone = FileWindows(mixture.files[name], 17).read(np.arange(len(own), dtype=np.uint64))
        assert torch.equal(own, alone)
        sources = [windows.source_of(row) for row in range(windows.n_windows)]
        assert sources.count(name) == len(own)


def test_the_order_in_which_sources_are_named_makes_no_difference(mixture):
    names = ("c", "a", "b")
    other = TokenMixture(*({name: of[name] for name in names} for of in (mixture.files, mixture.weights)))
    rows = np.arange(500, dtype=np.uint64)
    assert torch.equal(MixedWindows(other, 9).read(rows, seed=3), MixedWindows(mixture, 9).read(rows, seed=3))


def test_a_source_without_a_window_is_named(mixture, tmp_path):
    counting_tokens(tmp_path / "short", 17)
    short = TokenMixture({**mixture.files, "d": counting_tokens(tmp_path / "short", 17)}, {**mixture.weights, "d": 1})
    with pytest.raises(UserError, match=r"seq_len: got 17; .*short has 17 tokens, so 1 to 16"):
        MixedWindows(short, 17)
