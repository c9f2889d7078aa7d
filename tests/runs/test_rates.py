"""Rates are measured once, kept, and positive where there is work."""

import time

import pytest
import torch

from widthwise.runs import rates as module
from widthwise.runs.rates import known_rates, measured_rates, seconds


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Sizes that take a second, and a cache of the test's own."""
    monkeypatch.setenv("WIDTHWISE_CACHE", str(tmp_path))
    for name, value in {"SEQ_LEN": 64, "N_SEQUENCES": 2, "WIDTH": 64, "VOCAB_SIZE": 257, "N_LINKS": 2}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "PRODUCTS", ((64, 64), (128, 256), (64, 257)))
    monkeypatch.setattr(module, "HEADS", ((16, 64), (32, 128)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_takes_time_has_a_rate(precision):
    before = torch.get_rng_state()
    found = measured_rates(precision)
    numbers = {key: value for key, value in found.to_data().items() if key.startswith("seconds")}
    assert all(value >= 0 for value in numbers.values())
    assert found.seconds_per_flop + found.seconds_per_product_element > 0
    assert found.seconds_per_score_flop + found.seconds_per_score > 0
    assert min(found.seconds_per_kept_byte, found.seconds_per_param) > 0
    assert (found.precision, found.n_threads) == (precision, torch.get_num_threads())
    assert torch.equal(torch.get_rng_state(), before)


def test_rates_are_measured_once(monkeypatch, tmp_path):
    first = known_rates("fp32")
    monkeypatch.setattr(module, "measured_rates", lambda precision: pytest.fail("measured again"))
    assert known_rates("fp32") == first
    (path,) = (tmp_path / "rates").iterdir()
    assert known_rates("fp32", path) == first


def test_seconds_are_the_median_of_calls_after_the_first(monkeypatch):
    naps = iter([0.0, 9.0, 1.0, 5.0])
    now = [0.0]
    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: now[0])

    def nap() -> None:
        now[0] += next(naps)

    assert seconds(nap, n_calls=3) == 5.0


def test_a_fit_finds_the_rates_that_made_the_times():
    counts = [(1e9, 1e6), (3e9, 9e6), (2e6, 5e6)]
    times = [2e-11 * flops + 3e-9 * elements for flops, elements in counts]
    assert module._relative_fit(counts, times) == pytest.approx([2e-11, 3e-9])
