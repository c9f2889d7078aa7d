"""How much of the machine other processes use while a run trains."""

import os

import pytest

from widthwise.runs import other_work
from widthwise.runs.other_work import LARGEST_SHARE, Clocks, OtherWork, is_shared, read_clocks


def test_it_is_what_all_did_but_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter([Clocks(busy=1000.0, own=7.0, wall=50.0), Clocks(busy=1024.0, own=22.0, wall=60.0)])
    monkeypatch.setattr(other_work, "read_clocks", lambda: next(clocks))
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert OtherWork().share() == pytest.approx((24 - 15) / 10 / 3)


def test_a_system_that_does_not_tell_is_unknown_and_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_work, "read_clocks", lambda: None)
    assert OtherWork().share() is None
    assert not is_shared(None)


def test_a_tenth_of_the_cpus_makes_a_machine_shared() -> None:
    assert not is_shared(0.99 * LARGEST_SHARE)
    assert is_shared(1.01 * LARGEST_SHARE)


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="not on Linux")
def test_the_clocks_go_forward() -> None:
    before, after = read_clocks(), read_clocks()
    assert before is not None
    assert after is not None
    assert all(later >= earlier for earlier, later in zip(before, after))
