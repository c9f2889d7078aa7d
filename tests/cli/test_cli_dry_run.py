"""`widthwise train --dry-run` from argument to output."""

import json
from pathlib import Path

import pytest

SHAPE = ("train.batch_size=64", "train.micro_batch_size=2")


def test_it_prints_a_prediction_and_writes_nothing(
    recipe: Path, widthwise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    code, out, _ = widthwise("train", recipe, *SHAPE, "--dry-run", "--devices", "8,32", "--device", "h100")
    assert code == 0
    assert out.lstrip().startswith("predicted, not measured:")
    for words in ("8 devices", "32 devices", "optimizer state", "assumed: H100 at 40% of 989 TFLOP/s"):
        assert words in " ".join(out.split()) or words in out
    assert set(tmp_path.rglob("*")) == before


def test_json_is_the_record(recipe: Path, widthwise) -> None:
    code, out, _ = widthwise("train", recipe, *SHAPE, "train.shards=2", "--dry-run", "--devices", "8", "--json")
    assert code == 0
    (found,) = json.loads(out)["deployments"]
    assert (found["n_devices"], found["n_shards"], found["n_passes"]) == (8, 2, 4)
    parts = {name: value for name, value in found["memory"].items() if name not in ("moment", "total_bytes")}
    assert found["memory"]["total_bytes"] == sum(parts.values())
    assert "times" not in found


def test_bandwidths_replace_those_of_the_data_sheet(recipe: Path, widthwise) -> None:
    arguments = ("train", recipe, *SHAPE, "--dry-run", "--devices", "16", "--device", "H100", "--mfu", "0.5", "--json")
    seconds = [
        json.loads(widthwise(*arguments, *given)[1])["deployments"][0]["times"]["communication_seconds"]
        for given in ((), ("--bandwidth", "450,25"))
    ]
    assert seconds[1] == pytest.approx(2 * seconds[0])


def test_what_does_not_fit_is_refused_after_the_table(recipe: Path, widthwise) -> None:
    sizes = ("model.d_model=4096", "model.n_layers=32", "model.attention.head_dim=128", "train.batch_size=8")
    code, out, error = widthwise("train", recipe, *sizes, "--dry-run", "--devices", "8", "--device", "H100")
    assert code == 2
    assert "memory of a device" in out
    assert error.startswith("error: 8 devices: each needs ")
    assert error.endswith("an H100 has 80.0GB; train.shards=2 would fit\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--devices", "8"), "--devices: goes with --dry-run"),
        (("--mfu", "0.3"), "--mfu: goes with --dry-run"),
        (("--dry-run", "--devices", "a"), "--devices: got 'a'; expected whole numbers"),
        (("--dry-run", "--devices", "3"), "train.batch_size: got 4; must be a multiple of"),
        (("--dry-run", "--mfu", "0.3"), "--mfu: got 0.3; it needs a --device"),
        (("--dry-run", "--device", "H10"), "--device: got 'H10'; allowed: A100, H100, H200, B200"),
        (("--dry-run", "--device", "H100", "--mfu", "1.5"), "--mfu: got 1.5; must be above 0 and at most 1"),
        (("--dry-run", "--device", "H100", "--bandwidth", "9"), "--bandwidth: got '9'; expected GB/s"),
        (("--dry-run", "--device", "H100", "--bandwidth", "0,1"), "--bandwidth: got 0,1; must be two numbers above 0"),
    ],
)
def test_mistakes_are_one_line(recipe: Path, widthwise, arguments: tuple[str, ...], named: str) -> None:
    code, out, error = widthwise("train", recipe, *arguments)
    assert (code, out) == (2, "")
    assert error.startswith(f"error: {named}")
    assert error.count("\n") == 1
