from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_files import counting_tokens, three_sources

from widthwise.config_io import UserError
from widthwise.data.held_out import HeldOut


@dataclass(frozen=True)
class Data:
    """As much of prepared data as windows need."""

    held_out: Any
    tokenizer: Any = None


def held_out(tokens, seq_len: int, batch_size: int = 1, max_tokens: int | None = None) -> HeldOut:
    return HeldOut(Data(tokens), seq_len, batch_size, max_tokens, "fp32")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return counting_tokens(tmp_path_factory.mktemp("held_out") / "x", 997)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return three_sources(tmp_path_factory.mktemp("mixture"))


@given(st.integers(1, 996), st.integers(1, 20), st.integers(0, 400) | st.none())
def test_validation_scores_every_token_once_in_order(tokens, seq_len, batch_size, extra_tokens):
    max_tokens = None if extra_tokens is None else seq_len + extra_tokens
    batches = list(held_out(tokens, seq_len, batch_size, max_tokens).batches())
    targets = torch.cat([batch[:, 1:].flatten() for batch in batches])
    n_targets = min(996, max_tokens or 996) // seq_len * seq_len
    assert torch.equal(targets, torch.arange(1, n_targets + 1))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_validation_on_less_than_a_sequence_is_refused(tokens):
    with pytest.raises(UserError, match="validation_tokens: got 4; must be at least seq_len = 5"):
        held_out(tokens, 5, max_tokens=4).check()
    with pytest.raises(UserError, match="validation_tokens: got 4"):
        next(held_out(tokens, 5, max_tokens=4).batches())


def test_one_source_has_no_means_by_source(tokens):
    found = held_out(tokens, 100)
    assert found.sources == []
    assert found.means_by_source([1.0] * found.n_windows) == {}


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 900) | st.none())
def test_a_mixture_is_validated_in_its_proportions(mixture, seq_len, batch_size, extra_tokens):
    max_tokens = None if extra_tokens is None else seq_len + extra_tokens
    found = held_out(mixture, seq_len, batch_size, max_tokens)
    rows = torch.cat(list(found.batches()))
    names = ["a" if token < 997 else "b" if token < 997 + 311 else "c" for token in rows[:, 0].tolist()]
    assert names == found.sources
    assert len(rows) == found.n_windows
    for name, weight in mixture.weights.items():
        assert abs(names.count(name) - weight * len(rows) / 8) < 1.68


def test_means_by_source_are_of_the_windows_of_each(mixture):
    found = held_out(mixture, 30, max_tokens=600)
    losses = [float(row) for row in range(found.n_windows)]
    means = found.means_by_source(losses)
    n_windows = Counter(found.sources)
    assert sum(means[name] * n for name, n in n_windows.items()) == pytest.approx(sum(losses))
    assert list(means) == ["a", "b", "c"]
    assert means["b"] == pytest.approx(sum(x for x, name in zip(losses, found.sources) if name == "b") / n_windows["b"])


def test_a_source_that_no_window_is_left_for_has_no_mean(mixture):
    found = held_out(mixture, 30, max_tokens=60)
    assert found.sources == ["b", "c"]
    assert list(found.means_by_source([1.0, 2.0])) == ["b", "c"]
