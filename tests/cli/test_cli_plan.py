"""`widthwise plan` and `widthwise train --dry-run` from argument to output."""

import re
from pathlib import Path

import pytest

from widthwise.recipe.recipe import load_recipe
from widthwise.reports.formats import duration

SMALL = ("seq_len=512", "model.vocab_size=512", "data.tokenizer=bpe-512")


def test_it_says_whether_a_recipe_fits(recipe: Path, succeeds) -> None:
    out, _ = succeeds("plan", recipe, "--device", "rtx4090", "--days", "10")
    assert out.startswith("fits: a model of ")
    words = " ".join(out.split())
    for each in ("RTX 4090 has 24.0GB", "optimizer", "what fits into RTX 4090", "within 10 d", "B on disk from"):
        assert each in words


def test_what_would_fit_is_named(recipe: Path, succeeds, answer) -> None:
    sizes = ("train.batch_size=64", "model.vocab_size=8192", "seq_len=128")
    needed = answer("plan", recipe, *sizes, "--device", "1GB")["memory"]["total_bytes"]
    out, _ = succeeds("plan", recipe, *sizes, "--memory", f"{needed / 1e6 - 1:.3f}MB")
    assert out.startswith("does not fit: ")
    assert "train.micro_batch_size=32 train.activation_checkpointing=none would fit" in out.splitlines()[0]
    assert "time needs a device with known FLOPs, or --tflops" in out


def test_where_nothing_fits_the_exit_code_says_so_and_shards_are_tried(recipe: Path, widthwise) -> None:
    code, out, error = widthwise("plan", recipe, "--device", "10kB")
    assert code == 2
    assert out.startswith("does not fit: ")
    assert error == "error: --device: not even one sequence fits into the 10.0kB of the device\n"
    error = widthwise("plan", recipe, "--device", "10kB", "--n-devices", 4)[2]
    assert error.endswith("; try train.shards=4\n")
    error = widthwise("plan", recipe, "train.shards=4", "--device", "10kB", "--n-devices", 4)[2]
    assert error.endswith("of the device\n")


def test_without_flops_it_says_what_the_days_need(recipe: Path, succeeds, answer) -> None:
    flops = answer("plan", recipe, "--device", "1GB")["training_flops"]
    for n_devices in (1, 2):
        out, _ = succeeds("plan", recipe, "--device", "1GB", "--days", 1e-6, "--n-devices", n_devices)
        assert f"need {flops / 0.0864 / 1e12 / n_devices:.3g} TFLOP/s in use on each device" in out


def test_without_flops_the_devices_with_about_this_memory_are_named(recipe: Path, succeeds, answer) -> None:
    """An RTX 3090 has 71 TFLOP/s, of which 40% are in use."""
    hours = answer("plan", recipe, "--device", "rtx3090")["run_hours"]
    for days, said in ((2 * hours / 24, "with about 23.0GB, "), (1e-12, "with about 23.0GB is so fast; ")):
        out, _ = succeeds("plan", recipe, "--device", "23GB", "--days", days)
        assert said in out
        assert f"RTX 3090 in {duration(hours)}" in out
        assert all(name in out for name in ("RTX 4090 in", "A10 in", "L4 in"))
        assert "H100" not in out
    out, _ = succeeds("plan", recipe, "--device", "1TB", "--days", 1)
    assert "no device known by name has about 1.00TB" in out


def test_json_is_the_record(recipe: Path, answer) -> None:
    found = answer("plan", recipe, "--memory", "24GB", "--tflops", "82", "--bandwidth", "1TB/s", "--mfu", "0.5")
    assert (found["device_memory_bytes"], found["mfu"], found["fits"]) == (24e9, 0.5, True)
    assert [each["activation_checkpointing"] for each in found["setups"]] == ["none", "layer", "selective"]


def test_a_proposal_can_be_written_and_planned(succeeds, refused, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    asked = ("--params", "3M", "--shape", "x", "--device", "rtx3060")
    text, _ = succeeds("plan", *SMALL, *asked, "--out", out)
    assert text.startswith("proposed: the size nearest to 3,000,000 parameters, ")
    proposed = [int(each.replace(",", "")) for each in re.findall(r"parameters, ([\d,]+) \(", text)]
    assert f" ({proposed[0] / 3e6 - 1:+.1%}); 20 tokens per parameter" in text
    assert f"wrote {out}" in text
    written = load_recipe(out)
    assert len(set(written.explicit_model.widths)) > 1
    assert proposed == [written.explicit_model.cost().params]
    assert written.model.vocab_size == 512  # type: ignore
    written.check()
    assert (written.data.path, written.data.corpus) == ("FILL_IN", None)  # type: ignore
    assert text.endswith("next: widthwise data prepare TEXT --tokenizer bpe-512 --out FILL_IN\n")
    again, _ = succeeds("plan", out, "--device", "rtx3060")
    assert again.splitlines()[0] in text
    assert refused("plan", *asked, "--out", out) == f"{out}: exists already; choose another --out"


def test_one_variant_is_planned(recipe: Path, tmp_path: Path, answer) -> None:
    path = tmp_path / "d_model=64.yaml"
    path.write_text("extends: base.yaml\ncompare: {match: none, variants: {base: {}, wide: {model: {d_model: 64}}}}\n")
    alone = answer("plan", recipe, "model.d_model=64", "--device", "24GB")
    assert answer("plan", path, "--variant", "wide", "--device", "24GB") == alone


SHAPE = ("train.batch_size=64", "train.micro_batch_size=2")


def test_a_dry_run_prints_a_prediction_and_writes_nothing(recipe: Path, succeeds, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    out, _ = succeeds("train", recipe, *SHAPE, "--dry-run", "--devices", "8,32", "--device", "h100")
    assert out.lstrip().startswith("predicted, not measured:")
    for words in ("8 devices", "32 devices", "optimizer state", "assumed: H100 at 40% of 989 TFLOP/s"):
        assert words in " ".join(out.split()) or words in out
    assert "layers." not in out
    assert set(tmp_path.rglob("*")) == before


def test_json_of_a_dry_run_is_the_record(recipe: Path, answer) -> None:
    (found,) = answer("train", recipe, *SHAPE, "train.shards=2", "--dry-run", "--devices", "8")["deployments"]
    assert (found["n_devices"], found["n_shards"], found["n_passes"]) == (8, 2, 4)
    parts = {name: value for name, value in found["memory"].items() if name not in ("moment", "total_bytes")}
    assert found["memory"]["total_bytes"] == sum(parts.values())
    assert "times" not in found


def test_bandwidths_replace_those_of_the_data_sheet(recipe: Path, answer) -> None:
    arguments = ("train", recipe, *SHAPE, "--dry-run", "--devices", "16", "--device", "H100", "--mfu", "0.5")
    found = [answer(*arguments, *given)["deployments"][0] for given in ((), ("--bandwidth", "450,25"))]
    seconds = [each["times"]["communication_seconds"] for each in found]
    assert seconds[1] == pytest.approx(2 * seconds[0])


def test_what_does_not_fit_is_refused_after_the_table(recipe: Path, widthwise) -> None:
    sizes = ("model.d_model=4096", "model.n_layers=32", "model.attention.head_dim=128", "train.batch_size=8")
    code, out, error = widthwise("train", recipe, *sizes, "--dry-run", "--devices", "8", "--device", "H100")
    assert code == 2
    assert "memory of a device" in out
    assert error.startswith("error: 8 devices: each needs ")
    assert error.endswith("an H100 has 80.0GB; train.shards=2 would fit\n")
    assert error.count("\n") == 1
