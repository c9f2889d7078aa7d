"""Which comparisons go together, and how their sizes and lengths are called."""

from pathlib import Path
from typing import Any

import pytest
from fake_comparison import cost
from fake_effects import BASE_TOKENS, EFFECTS, comparison_data, write, write_scales

from widthwise.config_io import UserError
from widthwise.reports.effects.scales import read_scales, told_apart


def pair(folder: Path, other: dict[str, Any]) -> list[Path]:
    """A good comparison and another one."""
    return [write(folder / "good", comparison_data(64, 0)), write(folder / "other", other)]


def refused(folders: list[Path]) -> str:
    with pytest.raises(UserError) as error:
        read_scales(folders)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_they_are_ordered_by_size_and_tokens_of_the_baseline(tmp_path: Path) -> None:
    scales = read_scales(write_scales(tmp_path)[::-1])
    sizes = [cost([width] * 5)["params"]["total"] for width in (64, 192)]
    expected = [(size, BASE_TOKENS * factor) for size in sizes for factor in (1, 4)]
    assert [(scale.params, scale.tokens) for scale in scales.each] == expected


def test_a_variant_that_a_comparison_lacks_is_none_there(tmp_path: Path) -> None:
    effects = {effect.name: effect for effect in read_scales(write_scales(tmp_path)).effects}
    assert list(effects) == list(EFFECTS)
    assert [each is None for each in effects["noise"].differences] == [False, False, False, True]
    assert len(effects["noise"].measured) == 3
    means = [each.mean for each in effects["turns"].measured]
    assert means == [EFFECTS["turns"](doublings) for doublings in (0, 2, 0, 2)]


def test_other_baselines_are_refused(tmp_path: Path) -> None:
    data = comparison_data(192, 0)
    data["variants"][0]["name"] = data["baseline"] = "plain"
    assert "other: its baseline is 'plain', that of" in refused(pair(tmp_path, data))


def test_the_same_size_and_tokens_are_refused(tmp_path: Path) -> None:
    size = cost([64] * 5)["params"]["total"]
    message = refused(pair(tmp_path, comparison_data(64, 0)))
    assert f"has the size and tokens of {tmp_path / 'good'} ({size:,} parameters, 5,000,000 tokens)" in message


def test_no_variant_in_common_is_refused(tmp_path: Path) -> None:
    other = comparison_data(192, 0, {"diamond": lambda doublings: 0.0})
    message = refused(pair(tmp_path, other))
    assert "has no variant of the others" in message
    assert all(name in message for name in (*EFFECTS, "diamond"))


def test_a_variant_of_two_out_of_three_is_enough(tmp_path: Path) -> None:
    only = {name: EFFECTS[name] for name in ("helps",)}
    folders = [*pair(tmp_path, comparison_data(192, 0)), write(tmp_path / "third", comparison_data(192, 1, only))]
    assert [len(effect.measured) for effect in read_scales(folders).effects] == [2, 3, 2]


def test_other_levels_of_confidence_are_refused(tmp_path: Path) -> None:
    message = refused(pair(tmp_path, comparison_data(192, 0) | {"confidence": 0.9}))
    assert "its intervals are of 90%, those of" in message


def test_a_file_that_says_no_tokens_is_refused(tmp_path: Path) -> None:
    data = comparison_data(192, 0)
    del data["variants"][0]["measured"]
    assert "comparison.json: does not say how many tokens uniform was trained on" in refused(pair(tmp_path, data))


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([5_000_000, 656_448], ["656k", "5.00M"]),
        ([656_448, 656_448], ["656k"]),
        ([5_001_000, 5_000_000], ["5M", "5.001M"]),
        ([5_000_100, 5_000_000], ["5,000,000", "5,000,100"]),
    ],
)
def test_names_have_the_digits_that_tell_them_apart(values: list[int], names: list[str]) -> None:
    assert list(told_apart(values).values()) == names
    assert list(told_apart(values)) == sorted(set(values))
