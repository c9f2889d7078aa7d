import tracemalloc
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_files import N_TOKENS, counting_tokens, three_sources

from widthwise.config_io import UserError
from widthwise.data.loader import Loader
from widthwise.data.shards import TokenFile
from widthwise.data.windows import TokenMixture


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> TokenFile:
    return counting_tokens(tmp_path_factory.mktemp("loader") / "x", 997)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> TokenMixture:
    return three_sources(tmp_path_factory.mktemp("mixture"))


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


def test_counter_of_targets_over_an_epoch_is_one_each(tokens):
    loader = Loader(tokens, seq_len=12, batch_size=83, seed=2)
    assert loader.n_windows == 83
    assert set(Counter(loader.batch(4)[:, 1:].flatten().tolist()).values()) == {1}


OPTIONS = {"seq_len": 17, "batch_size": 24, "seed": 5}


@settings(max_examples=30)
@given(st.sampled_from([2, 3, 4, 8]), st.integers(0, 10**12))
def test_batches_of_a_mixture_are_the_same_on_any_number_of_processes(mixture, world_size, step):
    parts = [Loader(mixture, **OPTIONS, rank=rank, world_size=world_size).batch(step) for rank in range(world_size)]
    assert torch.equal(torch.cat(parts), Loader(mixture, **OPTIONS).batch(step))


@settings(max_examples=20)
@given(st.integers(0, 10**12), st.sampled_from([1, 2, 4, 8]), st.integers(1, 5))
def test_a_mixture_goes_on_at_any_step_on_any_number_of_processes(mixture, step, world_size, n_after):
    uninterrupted = Loader(mixture, **OPTIONS)
    uninterrupted.step = step
    resumed = [Loader(mixture, **OPTIONS, rank=rank, world_size=world_size) for rank in range(world_size)]
    for loader in resumed:
        loader.load_state_dict(uninterrupted.state_dict())
    for _ in range(n_after):
        assert torch.equal(torch.cat([next(loader) for loader in resumed]), next(uninterrupted))


@settings(max_examples=20)
@given(st.integers(1, 40), st.integers(0, 2**63 - 1))
def test_each_source_of_a_mixture_is_read_as_it_is_alone(mixture, n_steps, seed):
    options = {**OPTIONS, "seed": seed}
    rows = torch.cat([Loader(mixture, **options).batch(step) for step in range(n_steps)])
    first = 0
    for tokens, n_tokens in zip(mixture.files.values(), N_TOKENS, strict=True):
        own = rows[(first <= rows[:, 0]) & (rows[:, 0] < first + n_tokens)]
        assert torch.equal(own, Loader(tokens, **{**options, "batch_size": len(own)}).batch(0))
        first += n_tokens


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"b": None}, "b.weight"),
        ({"b": 5}, "b.weight"),
        ({"d": 1}, "d.weight"),
    ],
)
def test_a_mixture_of_others_is_refused_by_name(mixture, change, key):
    weights = {name: weight for name, weight in {**mixture.weights, **change}.items() if weight is not None}
    other = TokenMixture({name: mixture.files.get(name, mixture.files["a"]) for name in weights}, weights)
    saved, own = mixture.weights.get(key[0]), weights.get(key[0])
    with pytest.raises(UserError, match=rf"the saved {key} is {saved}, this run's is {own}"):
        Loader(other, **OPTIONS).load_state_dict(Loader(mixture, **OPTIONS).state_dict())


def test_a_changed_file_of_a_mixture_is_refused_by_name(mixture, tmp_path):
    other = TokenMixture({**mixture.files, "c": counting_tokens(tmp_path / "c", N_TOKENS[2] + 1)}, mixture.weights)
    with pytest.raises(UserError, match=r"the saved c\.data is \d+, this run's is \d+; they must be equal"):
        Loader(other, **OPTIONS).load_state_dict(Loader(mixture, **OPTIONS).state_dict())


def test_the_state_of_one_source_is_what_it_always_was(tokens):
    state = Loader(tokens, seq_len=17, batch_size=5, seed=7).state_dict()
    expected = {"step": 0, "seed": 7, "seq_len": 17, "batch_size": 5, "n_windows": 58, "data": tokens.fingerprint}
    assert list(state.items()) == list(expected.items())


def test_memory_does_not_grow_with_the_number_of_batches(mixture):
    """Less than a token for each further window, of which 60 batches have 1440: 30 epochs of the smallest source."""
    loader = Loader(mixture, **OPTIONS)
    tracemalloc.start()
    try:
        peaks = []
        for n_batches in (5, 5, 60):
            tracemalloc.reset_peak()
            for _ in range(n_batches):
                next(loader)
            peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 60 * OPTIONS["batch_size"] * 4
