"""Devices by name, by memory, and with numbers of one's own."""

import pytest

from widthwise.config_io import UserError
from widthwise.runs.devices import DEVICES, Device, parse_bytes


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "Rtx-4090", "rtx_4090"])
def test_spaces_and_capitals_do_not_matter(name: str) -> None:
    found = Device.named(name)
    assert (found.name, found.memory_bytes, found.peak_flops_per_second) == ("RTX 4090", 24e9, 165.2e12)


@pytest.mark.parametrize(
    ("name", "n_cores", "boost_clock"),
    [
        ("RTX 3060", 3584, 1.777e9),
        ("RTX 3090", 10496, 1.695e9),
        ("RTX 4060 Ti 16GB", 4352, 2.535e9),
        ("RTX 4070", 5888, 2.475e9),
        ("RTX 4080", 9728, 2.505e9),
        ("RTX 4090", 16384, 2.52e9),
        ("RTX 5080", 10752, 2.617e9),
        ("RTX 5090", 21760, 2.407e9),
    ],
)
def test_peaks_of_geforce_are_twice_those_of_their_cores(name: str, n_cores: int, boost_clock: float) -> None:
    assert Device.named(name).peak_flops_per_second == pytest.approx(2 * 2 * n_cores * boost_clock, rel=0.005)


def test_any_device_by_its_numbers() -> None:
    found = Device.asked(None, "24GiB", 82.0, "1TB/s")
    assert (found.memory_bytes, found.peak_flops_per_second, found.memory_bytes_per_second) == (24 * 2**30, 82e12, 1e12)
    assert found.rate(0.5) == 41e12


def test_a_memory_is_a_device_without_flops() -> None:
    found = Device.asked("24GB", None, None, None)
    assert (found.memory_bytes, found.peak_flops_per_second, found.rate(None)) == (24e9, None, None)


def test_numbers_replace_those_of_the_data_sheet() -> None:
    found = Device.asked("rtx3060", "11GB", 20.0, None)
    assert (found.name, found.memory_bytes, found.rate(0.5)) == ("RTX 3060", 11e9, 10e12)
    assert found.memory_bytes_per_second == 360e9


@pytest.mark.parametrize(("text", "n_bytes"), [("24GB", 24e9), ("1.5 TiB", 1.5 * 2**40), ("800MB", 8e8), ("3kB", 3e3)])
def test_sizes(text: str, n_bytes: float) -> None:
    assert parse_bytes("--memory", text) == n_bytes


@pytest.mark.parametrize("text", ["24", "GB", "-1GB", "0GB", "24 gigabytes", "1e3GB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--memory: got .*; expected a size above 0 such as 24GB or 80GiB"):
        parse_bytes("--memory", text)


def test_of_an_ambiguous_name_the_possible_ones_are_named() -> None:
    with pytest.raises(UserError, match=r"got 'rtx4060ti'; allowed: RTX 4060 Ti 8GB, RTX 4060 Ti 16GB; for any other"):
        Device.named("rtx4060ti")


def test_names_are_different() -> None:
    assert len({each.name.casefold().replace(" ", "") for each in DEVICES}) == len(DEVICES)
