"""`widthwise plan` from argument to output."""

import json
import re
from pathlib import Path

import pytest

from widthwise.recipe.recipe import load_recipe
from widthwise.reports.page.formats import duration

SMALL = ("seq_len=512", "model.vocab_size=512", "data.tokenizer=bpe-512")


def test_it_says_whether_a_recipe_fits(recipe: Path, widthwise) -> None:
    code, out, _ = widthwise("plan", recipe, "--device", "rtx4090", "--days", "10")
    assert code == 0
    assert out.startswith("fits: a model of ")
    words = " ".join(out.split())
    for each in ("RTX 4090 has 24.0GB", "optimizer", "what fits into RTX 4090", "within 10 d", "B on disk from"):
        assert each in words


def test_what_would_fit_is_named(recipe: Path, widthwise) -> None:
    sizes = ("train.batch_size=64", "model.vocab_size=8192", "seq_len=128")
    needed = json.loads(widthwise("plan", recipe, *sizes, "--device", "1GB", "--json")[1])["memory"]["total_bytes"]
    code, out, _ = widthwise("plan", recipe, *sizes, "--memory", f"{needed / 1e6 - 1:.3f}MB")
    assert code == 0
    assert out.startswith("does not fit: ")
    assert "train.micro_batch_size=32 train.activation_checkpointing=none would fit" in out.splitlines()[0]
    assert "time needs a device with known FLOPs, or --tflops" in out


def test_where_nothing_fits_the_exit_code_says_so(recipe: Path, widthwise) -> None:
    code, out, error = widthwise("plan", recipe, "--device", "10kB")
    assert code == 2
    assert out.startswith("does not fit: ")
    assert error == "error: --device: not one sequence at a time fits into the 10.0kB of the device\n"


def test_shards_are_tried_where_copies_do_not_fit(recipe: Path, widthwise) -> None:
    error = widthwise("plan", recipe, "--device", "10kB", "--n-devices", 4)[2]
    assert error.endswith("; try train.shards=4\n")
    error = widthwise("plan", recipe, "train.shards=4", "--device", "10kB", "--n-devices", 4)[2]
    assert error.endswith("of the device\n")


def test_without_flops_it_says_what_the_days_need(recipe: Path, widthwise) -> None:
    flops = json.loads(widthwise("plan", recipe, "--device", "1GB", "--json")[1])["training_flops"]
    out = widthwise("plan", recipe, "--device", "1GB", "--days", 1e-6)[1]
    assert f"need {flops / 0.0864 / 1e12:.3g} TFLOP/s in use on each device" in out


def test_without_flops_the_devices_with_about_this_memory_are_named(recipe: Path, widthwise) -> None:
    """An RTX 3090 has 71 TFLOP/s, of which 40% are in use."""
    found = json.loads(widthwise("plan", recipe, "--device", "rtx3090", "--json")[1])
    hours = found["run_hours"]
    for days, said in ((2 * hours / 24, "with about 23.0GB, "), (1e-12, "with about 23.0GB is so fast; ")):
        out = widthwise("plan", recipe, "--device", "23GB", "--days", days)[1]
        assert said in out
        assert f"RTX 3090 in {duration(hours)}" in out
        assert all(name in out for name in ("RTX 4090 in", "A10 in", "L4 in"))
        assert "H100" not in out
    assert "no device known by name has about 1.00TB" in widthwise("plan", recipe, "--device", "1TB", "--days", 1)[1]


def test_json_is_the_record(recipe: Path, widthwise) -> None:
    numbers = ("--memory", "24GB", "--tflops", "82", "--bandwidth", "1TB/s", "--mfu", "0.5")
    code, out, _ = widthwise("plan", recipe, *numbers, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["device_memory_bytes"], found["mfu"], found["fits"]) == (24e9, 0.5, True)
    assert [each["activation_checkpointing"] for each in found["setups"]] == ["none", "layer", "selective"]


def test_a_proposal_can_be_written_and_planned(widthwise, tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    asked = ("--params", "3M", "--shape", "x", "--device", "rtx3060")
    code, text, _ = widthwise("plan", *SMALL, *asked, "--out", out)
    assert code == 0
    assert text.startswith("proposed: the size nearest to 3,000,000 parameters, ")
    proposed = [int(each.replace(",", "")) for each in re.findall(r"parameters, ([\d,]+) \(", text)]
    assert f" ({proposed[0] / 3e6 - 1:+.1%}); 20 tokens per parameter" in text
    assert f"wrote {out}" in text
    written = load_recipe(out)
    assert len(set(written.explicit_model.widths)) > 1
    assert proposed == [written.explicit_model.cost().params]
    assert written.model.vocab_size == 512  # type: ignore
    written.check()
    code, again, _ = widthwise("plan", out, "--device", "rtx3060")
    assert code == 0
    assert again.splitlines()[0] in text
    code, _, error = widthwise("plan", *asked, "--out", out)
    assert (code, error) == (2, f"error: {out}: exists already; choose another --out\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--device: is required; give a name, as rtx4090, or a memory, as 24GB"),
        (("--device", "rtx409"), "--device: got 'rtx409'; allowed: RTX 4090; for any other"),
        (("--device", "4090"), "--device: got '4090'; allowed: RTX 4090; for any other"),
        (("350M", "--device", "24GB"), "350M: no such recipe; for a model of so many parameters, give --params 350M"),
        (("--memory", "24"), "--memory: got '24'; expected a size above 0"),
        (("--device", "24"), "--device: got '24'; expected a size above 0"),
        (("--device", "a100", "--tflops", "0"), "--tflops: got 0; must be a number above 0"),
        (("--device", "a100", "--mfu", "2"), "--mfu: got 2; must be above 0 and at most 1"),
        (("--device", "a100", "--days", "0"), "--days: got 0; must be above 0"),
        (("--device", "a100", "--n-devices", "0"), "--n-devices: got 0; must be above 0"),
        (("--device", "a100", "--bandwidth", "1"), "--bandwidth: got '1'; expected a size above 0"),
        (("--device", "a100", "--params", "many"), "--params: got 'many'; expected a positive number"),
        (("--device", "a100", "--shape", "round"), "model.shape"),
        (("--device", "24GB", "--days", "5"), "--device 'A10' or 'L4' or 'RTX 3090' or 'RTX 4090' (of about"),
        (("--device", "1TB", "--days", "5"), "a memory has none; give --tflops"),
        (("--device", "1MB"), "--device: not even d_model = 64 can be had on the device"),
        (("model.d_model=64", "--device", "a100"), "model.d_model=64: is what a plan without a recipe proposes"),
    ],
)
def test_mistakes_are_one_line(widthwise, arguments: tuple[str, ...], named: str) -> None:
    code, out, error = widthwise("plan", *arguments)
    assert (code, out) == (2, "")
    assert named in error
    assert error.count("\n") == 1


def test_what_goes_without_a_recipe_is_refused_with_one(recipe: Path, widthwise) -> None:
    code, _, error = widthwise("plan", recipe, "--device", "a100", "--params", "3M")
    assert (code, error) == (2, "error: --params: goes without a recipe\n")


def test_one_variant_is_planned(recipe: Path, tmp_path: Path, widthwise) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text("extends: base.yaml\ncompare: {match: none, variants: {base: {}, wide: {model: {d_model: 64}}}}\n")
    _, out, _ = widthwise("plan", path, "--variant", "wide", "--device", "24GB", "--json")
    _, alone, _ = widthwise("plan", recipe, "model.d_model=64", "--device", "24GB", "--json")
    assert json.loads(out) == json.loads(alone)
    code, _, error = widthwise("plan", "--variant", "wide", "--device", "24GB")
    assert (code, error) == (2, "error: --variant: got 'wide'; goes with a recipe\n")
