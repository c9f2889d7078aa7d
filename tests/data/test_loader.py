"""The order of windows: random in each epoch, the same on any number of processes, and from any step on.

Windows of a mixture are divided among its sources by weight, so that no source is ever far from its share.
"""

import tracemalloc
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.data.loader import Boundaries, HeldOut, Loader
from widthwise.data.mixture import MixedWindows, TokenMixture, divide_rows, permute
from widthwise.data.shards import TokenFile, write_tokens
from widthwise.mistakes import UserError

few, more = settings(max_examples=25), settings(max_examples=50)
OPTIONS = {"seq_len": 17, "batch_size": 24, "seed": 5}
MAX_ROW_ERROR = Fraction("1.68")
"""Half of the sum of the reciprocals of the Fibonacci numbers, 3.3598..., rounded up."""
N_TOKENS = (997, 311, 2003)
"""Tokens of each of the three sources."""


def counting_tokens(prefix: Path, n_tokens: int, first: int = 0) -> TokenFile:
    """A file whose token i is first + i, so that a window shows where it was cut."""
    return write_tokens(prefix, 2**20, [list(range(first, first + n_tokens))])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> TokenFile:
    return counting_tokens(tmp_path_factory.mktemp("loader") / "x", 997)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> TokenMixture:
    """Sources a, b and c, of which a has the first tokens, c the last."""
    folder, firsts = tmp_path_factory.mktemp("mixture"), np.cumsum([0, *N_TOKENS]).tolist()
    files = {name: counting_tokens(folder / name, n, first) for name, n, first in zip("abc", N_TOKENS, firsts)}
    return TokenMixture(files, {"a": 1, "b": 3, "c": 4})


def orders(n: int, seed: int, epochs: Iterable[int]) -> np.ndarray:
    """Return the order of the windows in each epoch, (n_epochs, n)."""
    of_row = np.repeat(np.array(list(epochs), dtype=np.uint64), n)
    positions = np.tile(np.arange(n, dtype=np.uint64), len(of_row) // n)
    return permute(positions, n, seed, of_row).reshape(-1, n)


@pytest.mark.parametrize("n", [2, 7, 16])
def test_every_window_is_equally_likely_at_every_position(n):
    n_orders = 3000
    drawn = np.concatenate([orders(n, seed, range(n_orders // 30)) for seed in range(30)])
    counts = np.stack([(drawn == window).sum(axis=0) for window in range(n)])
    expected = n_orders / n
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = (n - 1) ** 2
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


@few
@given(st.integers(1, 200), st.integers(1, 13), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_each_window_is_visited_exactly_once_an_epoch(tokens, seq_len, batch_size, seed, epoch):
    loader = Loader(tokens, seq_len=seq_len, batch_size=batch_size, seed=seed)
    first_row, last_row = epoch * loader.n_windows, (epoch + 1) * loader.n_windows
    first_step = first_row // batch_size
    rows = torch.cat([loader.batch(step) for step in range(first_step, -(-last_row // batch_size))])
    rows = rows[first_row - first_step * batch_size :][: loader.n_windows]
    assert sorted(rows[:, 0].tolist()) == [window * seq_len for window in range((997 - 1) // seq_len)]
    assert torch.equal(rows, rows[:, :1] + torch.arange(seq_len + 1))
    assert rows.dtype == torch.int64


@few
@given(st.booleans(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 50) | st.integers(0, 10**12), st.integers(1, 5))
def test_training_goes_on_at_any_step_with_the_same_batches_on_any_number_of_processes(
    tokens, mixture, is_mixed, world_size, step, n_after
):
    source = mixture if is_mixed else tokens
    uninterrupted = Loader(source, **OPTIONS)
    uninterrupted.step = step
    resumed = [Loader(source, **OPTIONS, rank=rank, world_size=world_size) for rank in range(world_size)]
    for loader in resumed:
        loader.load_state_dict(uninterrupted.state_dict())
    for later in range(step, step + n_after):
        rows = torch.cat([next(loader) for loader in resumed])
        assert torch.equal(rows, next(uninterrupted))
        assert torch.equal(rows, Loader(source, **OPTIONS).batch(later))


def test_resuming_on_anything_else_is_refused_by_name(tokens, mixture, tmp_path):
    loader = Loader(tokens, seq_len=17, batch_size=5, seed=7)
    state = {"step": 0, "seed": 7, "seq_len": 17, "batch_size": 5, "n_windows": 58, "data": tokens.fingerprint}
    assert list(loader.state_dict().items()) == list(state.items())  # what it always was
    for key in state.keys() - {"step"}:
        with pytest.raises(UserError, match=f"the saved {key} is 99"):
            loader.load_state_dict({**state, key: 99})
    files, weights = mixture.files, mixture.weights
    other = counting_tokens(tmp_path / "c", N_TOKENS[2] + 1)
    for changed, message in (
        (TokenMixture({name: files[name] for name in "ac"}, {"a": 1, "c": 4}), r"b\.weight is 3, this run's is None"),
        (TokenMixture(files, {**weights, "b": 5}), r"b\.weight is 3, this run's is 5"),
        (TokenMixture({**files, "d": other}, {**weights, "d": 1}), r"d\.weight is None, this run's is 1"),
        (TokenMixture({**files, "c": other}, weights), r"c\.data is \d+, this run's is \d+; must be equal"),
    ):
        with pytest.raises(UserError, match=f"the saved {message}"):
            Loader(changed, **OPTIONS).load_state_dict(Loader(mixture, **OPTIONS).state_dict())


def test_sizes_that_do_not_fit_are_refused_and_the_longest_sequence_is_stated(tokens, mixture, tmp_path):
    assert Loader(tokens, **{**OPTIONS, "seq_len": 996}).batch(0).shape == (24, 997)
    short = TokenMixture({**mixture.files, "d": counting_tokens(tmp_path / "short", 17)}, {**mixture.weights, "d": 1})
    for source, options, message in (
        (tokens, {"seq_len": 997}, r"seq_len: got 997.*1 to 996"),
        (tokens, {"batch_size": 4, "world_size": 3}, "multiple of the 3 processes"),
        (tokens, {"seed": -1}, "seed: got -1"),
        (short, {}, r"seq_len: got 17; .*short has 17 tokens, so 1 to 16"),
    ):
        with pytest.raises(UserError, match=message):
            Loader(source, **{**OPTIONS, **options})


@few
@given(st.integers(1, 40), st.integers(0, 2**63 - 1))
def test_each_source_of_a_mixture_is_read_as_it_is_alone(mixture, n_steps, seed):
    options = {**OPTIONS, "seed": seed}
    rows = torch.cat([Loader(mixture, **options).batch(step) for step in range(n_steps)])
    first = 0
    for tokens, n_tokens in zip(mixture.files.values(), N_TOKENS, strict=True):
        own = rows[(first <= rows[:, 0]) & (rows[:, 0] < first + n_tokens)]
        assert torch.equal(own, Loader(tokens, **{**options, "batch_size": len(own)}).batch(0))
        first += n_tokens


def test_a_mixture_lasts_until_one_of_its_sources_has_no_window_left(mixture):
    """a and b have half of the rows, and a a quarter of these: b has 24 - 24 / 4 = 18 of the first 48, its last one."""
    windows = MixedWindows(mixture, 17)
    assert (windows.n_windows, divide_rows(mixture.weights).counts(48)["b"], windows.source_of(48)) == (48, 18, "b")


def test_memory_does_not_grow_with_the_number_of_batches(mixture):
    """60 batches have 1440 windows, 30 epochs of the smallest source. Memory grows by less than a token per window."""
    loader, peaks = Loader(mixture, **OPTIONS), []
    tracemalloc.start()
    for n_batches in (5, 5, 60):
        tracemalloc.reset_peak()
        for _ in range(n_batches):
            next(loader)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert peaks[2] - peaks[1] < 60 * OPTIONS["batch_size"] * 4


def held_out(tokens, seq_len: int, batch_size: int = 1, max_tokens: int | None = None, skip: int = 0) -> HeldOut:
    data = SimpleNamespace(held_out=tokens, tokenizer=None)
    return HeldOut(data, seq_len, batch_size, max_tokens, "fp32", skip_tokens=skip)


@given(st.integers(1, 996), st.integers(1, 20), st.integers(0, 400) | st.none())
def test_validation_scores_every_token_once_in_order(tokens, seq_len, batch_size, extra_tokens):
    max_tokens = None if extra_tokens is None else seq_len + extra_tokens
    found = held_out(tokens, seq_len, batch_size, max_tokens)
    batches = list(found.batches())
    targets = torch.cat([batch[:, 1:].flatten() for batch in batches])
    n_targets = min(996, max_tokens or 996) // seq_len * seq_len
    assert torch.equal(targets, torch.arange(1, n_targets + 1))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert (found.sources, found.means_by_source([1.0] * found.n_windows)) == ([], {})


@few
@given(st.integers(1, 150), st.integers(1, 7), st.integers(0, 60), st.integers(0, 60))
def test_what_is_skipped_and_what_is_read_behind_it_share_no_target_and_leave_none_out(
    tokens, mixture, seq_len, batch_size, n_skipped, n_read
):
    for source in (tokens, mixture):
        whole = torch.cat(list(held_out(source, seq_len).batches()))
        skip, asked = n_skipped * seq_len, (1 + n_read) * seq_len + seq_len // 2
        behind = held_out(source, seq_len, batch_size, asked, skip)
        if n_skipped and n_skipped + 1 + n_read > len(whole):
            with pytest.raises(UserError, match=f"validation_skip: got {skip}, which leaves .* must leave "):
                behind.check()
            continue
        read = torch.cat(list(behind.batches()))
        assert torch.equal(read, whole[n_skipped : n_skipped + 1 + n_read])
        firsts = np.searchsorted(np.cumsum(N_TOKENS), read[:, 0].numpy(), side="right")
        assert behind.sources == ([] if source is tokens else ["abc"[index] for index in firsts])


def test_means_by_source_are_of_the_windows_of_each_that_has_any(mixture):
    found = held_out(mixture, 30, max_tokens=600)
    losses = np.arange(found.n_windows, dtype=float)
    of = {name: losses[np.array(found.sources) == name] for name in "abc"}
    assert found.means_by_source(losses) == {name: pytest.approx(values.mean()) for name, values in of.items()}
    assert held_out(mixture, 30, max_tokens=60).means_by_source([1.0, 2.0]) == {"b": 1.0, "c": 2.0}


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.sampled_from([3, 7, 9])] * 9), min_size=1))
def test_a_document_ends_behind_its_separator_and_positions_begin_anew_there(rows):
    tokens = torch.tensor(rows)
    told = Boundaries(7, masks=True, resets=True)
    for row, documents, positions in zip(rows, told.documents(tokens).tolist(), told.positions(tokens).tolist()):
        ends = [0, *(i + 1 for i, token in enumerate(row) if token == 7)]
        assert documents == [sum(end <= i for end in ends) - 1 for i in range(len(row))]
        assert positions == [i - max(end for end in ends if end <= i) for i in range(len(row))]
    assert Boundaries(7, masks=False, resets=True).documents(tokens) is None
    assert Boundaries(7, masks=True, resets=False).positions(tokens) is None


weightings = st.lists(st.integers(1, 10**6), min_size=1, max_size=12).map(
    lambda weights: {f"s{index}": weight for index, weight in enumerate(weights)}
)
row_numbers = st.integers(0, 3000) | st.integers(0, 10**15)


def farthest_off(weights, counts) -> Fraction:
    n_rows, total = sum(counts.values()), sum(weights.values())
    return Fraction(max(abs(counts[name] * total - n_rows * weights[name]) for name in weights), total)


@more
@given(weightings, row_numbers)
def test_no_source_is_ever_far_from_its_share_and_of_two_none_by_more_than_half_a_row(weights, n_rows):
    for own, bound in ((weights, MAX_ROW_ERROR), (dict([*weights.items()][:2]), Fraction(1, 2))):
        counts = divide_rows(own).counts(n_rows)
        assert sum(counts.values()) == n_rows
        assert farthest_off(own, counts) <= bound


@pytest.mark.parametrize("n_sources", [3, 21, 60])
def test_the_bound_holds_for_the_weights_that_come_nearest_to_it(n_sources):
    """Fibonacci numbers make the deepest tree."""
    fibonacci = [1, 1]
    while len(fibonacci) < n_sources:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    weights = {f"s{index}": weight for index, weight in enumerate(fibonacci)}
    division = divide_rows(weights)
    assert all(farthest_off(weights, division.counts(n)) < MAX_ROW_ERROR for n in range(0, 20_000, 7))


@more
@given(weightings, row_numbers, st.integers(1, 40))
def test_a_row_has_the_place_that_the_counts_before_it_say(weights, first, n_rows):
    division = divide_rows(weights)
    counts = Counter(division.counts(first))
    for row in range(first, first + n_rows):
        name, before = division.place(row)
        assert before == counts[name]
        counts[name] += 1
    assert counts == division.counts(first + n_rows)


@more
@given(weightings, row_numbers)
def test_neither_order_nor_a_common_factor_makes_a_difference(weights, row):
    backwards = {name: 6 * weight for name, weight in reversed(weights.items())}
    assert divide_rows(backwards).place(row) == divide_rows(weights).place(row)


@more
@given(weightings, st.integers(0, 50))
def test_rows_last_until_a_source_would_pass_its_limit(weights, most):
    limits = {name: most + index for index, name in enumerate(weights)}
    division = divide_rows(weights)
    n_rows = division.n_rows_within(limits)
    assert all(count <= limits[name] for name, count in division.counts(n_rows).items())
    assert any(count > limits[name] for name, count in division.counts(n_rows + 1).items())
