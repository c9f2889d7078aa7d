from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.data.loader import Loader, held_out_batches, permute
from widthwise.data.shards import ShardWriter, TokenFile


def counting_tokens(prefix: Path, n_tokens: int) -> TokenFile:
    """A file whose token i is i, so that a window shows where it was cut."""
    with ShardWriter(prefix, np.dtype("<i4")) as writer:
        writer.add(np.arange(n_tokens, dtype="<i4"), np.array([n_tokens]))
    return TokenFile(prefix)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> TokenFile:
    return counting_tokens(tmp_path_factory.mktemp("loader") / "x", 997)


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


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 13), st.integers(0, 2**40), st.integers(0, 3))
def test_each_window_is_visited_exactly_once_an_epoch(tokens, seq_len, batch_size, seed, epoch):
    loader = Loader(tokens, seq_len=seq_len, batch_size=batch_size, seed=seed)
    first_row, last_row = epoch * loader.n_windows, (epoch + 1) * loader.n_windows
    first_step = first_row // batch_size
    rows = torch.cat([loader.batch(step) for step in range(first_step, -(-last_row // batch_size))])
    rows = rows[first_row - first_step * batch_size :][: loader.n_windows]
    assert sorted(rows[:, 0].tolist()) == [window * seq_len for window in range((997 - 1) // seq_len)]
    assert torch.equal(rows, rows[:, :1] + torch.arange(seq_len + 1))


@settings(max_examples=30)
@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 100), st.integers(1, 60))
def test_rows_of_all_processes_make_up_the_global_batch(tokens, world_size, step, seq_len):
    options = {"seq_len": seq_len, "batch_size": 12, "seed": 5}
    parts = [Loader(tokens, **options, rank=rank, world_size=world_size).batch(step) for rank in range(world_size)]
    assert torch.equal(torch.cat(parts), Loader(tokens, **options).batch(step))


@settings(max_examples=20)
@given(st.integers(0, 50), st.integers(0, 20), st.sampled_from([1, 2]))
def test_resuming_continues_the_same_batches_on_any_number_of_processes(tokens, n_before, n_after, world_size):
    options = {"seq_len": 31, "batch_size": 6, "seed": 11}
    uninterrupted = Loader(tokens, **options)
    for _ in range(n_before):
        next(uninterrupted)
    resumed = [Loader(tokens, **options, rank=rank, world_size=world_size) for rank in range(world_size)]
    for loader in resumed:
        loader.load_state_dict(uninterrupted.state_dict())
    for _ in range(n_after):
        assert torch.equal(torch.cat([next(loader) for loader in resumed]), next(uninterrupted))


def test_batches_differ_between_epochs_and_seeds(tokens):
    options = {"seq_len": 9, "batch_size": 110}  # one step is one epoch of 110 windows
    loader = Loader(tokens, **options, seed=0)
    assert loader.n_windows == 110
    assert not torch.equal(loader.batch(0), loader.batch(1))
    assert not torch.equal(loader.batch(0), Loader(tokens, **options, seed=1).batch(0))


def test_batch_is_int64_of_the_stated_shape(tokens):
    batch = Loader(tokens, seq_len=17, batch_size=5, seed=0).batch(3)
    assert batch.dtype == torch.int64
    assert batch.shape == (5, 18)


@pytest.mark.parametrize("key", ["seed", "seq_len", "batch_size", "n_windows", "data"])
def test_resuming_on_anything_else_is_refused_by_name(tokens, key):
    loader = Loader(tokens, seq_len=17, batch_size=5, seed=0)
    with pytest.raises(UserError, match=f"the saved {key} is 99"):
        loader.load_state_dict({**loader.state_dict(), key: 99})


def test_the_longest_sequence_is_stated(tokens):
    assert Loader(tokens, seq_len=996, batch_size=1, seed=0).batch(0).shape == (1, 997)
    with pytest.raises(UserError, match=r"seq_len: got 997.*1 to 996"):
        Loader(tokens, seq_len=997, batch_size=1, seed=0)


def test_sizes_that_do_not_fit_are_refused(tokens):
    with pytest.raises(UserError, match="multiple of the 3 processes"):
        Loader(tokens, seq_len=5, batch_size=4, seed=0, world_size=3)
    with pytest.raises(UserError, match="seed: got -1"):
        Loader(tokens, seq_len=5, batch_size=4, seed=-1)


@given(st.integers(1, 996), st.integers(1, 20), st.integers(0, 400) | st.none())
def test_validation_scores_every_token_once_in_order(tokens, seq_len, batch_size, extra_tokens):
    max_tokens = None if extra_tokens is None else seq_len + extra_tokens
    batches = list(held_out_batches(tokens, seq_len, batch_size, max_tokens))
    targets = torch.cat([batch[:, 1:].flatten() for batch in batches])
    n_targets = min(996, max_tokens or 996) // seq_len * seq_len
    assert torch.equal(targets, torch.arange(1, n_targets + 1))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_validation_on_less_than_a_sequence_is_refused(tokens):
    with pytest.raises(UserError, match="max_tokens: got 4"):
        next(held_out_batches(tokens, 5, 1, max_tokens=4))


def test_counter_of_targets_over_an_epoch_is_one_each(tokens):
    loader = Loader(tokens, seq_len=12, batch_size=83, seed=2)
    assert loader.n_windows == 83
    assert set(Counter(loader.batch(4)[:, 1:].flatten().tolist()).values()) == {1}
