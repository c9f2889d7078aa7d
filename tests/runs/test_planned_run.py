"""What a plan predicts, from formulas, on which devices, and what it remarks on.

What training really needs is measured by benchmarks/memory.py.
"""

from dataclasses import replace

import pytest
from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.data.corpus import synthetic_documents
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.cost import Deployment, Plan
from widthwise.runs.plan import data_cost, remarks
from widthwise.runs.plan import plan as plan_of
from widthwise.training.devices import Device

DEVICE = Device("a device", 10**9, peak_flops_per_second=1e12)


def plan(recipe: Recipe, device: Device, n_devices: int = 1) -> Plan:
    return plan_of(recipe, [n_devices], device)


def deployment(recipe: Recipe, device: Device, n_devices: int = 1) -> Deployment:
    (result,) = plan(recipe, device, n_devices).deployments
    return result


def test_the_largest_pass_is_the_largest_that_fits() -> None:
    """Passes are divisors of a device's sequences; the device has the memory that one of them needs."""
    sizes = ("train.batch_size=12", "model.vocab_size=300", "seq_len=90")
    for n in (1, 2, 3, 4, 6):
        n_bytes = deployment(tiny_recipe(*sizes, f"train.micro_batch_size={n}"), DEVICE).memory.total_bytes
        found = deployment(tiny_recipe(*sizes), replace(DEVICE, memory_bytes=n_bytes))
        assert found.setups[0].micro_batch_size == n
        assert found.setups[0].memory.total_bytes == n_bytes
    nothing = deployment(tiny_recipe(*sizes), replace(DEVICE, memory_bytes=1))
    assert [each.micro_batch_size for each in nothing.setups] == [None] * 3
    assert not nothing.fits


def test_hours_follow_from_the_rate() -> None:
    recipe = tiny_recipe("train.batch_size=8")
    seconds = recipe.training_flops / (0.25 * 1e12)
    device = replace(DEVICE, mfu=0.25)
    assert deployment(recipe, device).run_hours == pytest.approx(seconds / 3600)
    assert deployment(recipe, device, n_devices=4).run_hours == pytest.approx(seconds / 4 / 3600)
    none, layer, selective = deployment(recipe, device).setups
    assert none.run_hours == pytest.approx(seconds / 3600)
    assert none.run_hours < selective.run_hours < layer.run_hours < 4 / 3 * none.run_hours  # type: ignore
    assert deployment(recipe, Device("memory alone", 10**9)).run_hours is None


def test_tokens_and_what_they_take_on_disk() -> None:
    found = plan(tiny_recipe(), DEVICE)
    assert (found.tokens, found.steps) == (9 * 4 * 17, 9)
    assert found.tokens_per_param == found.tokens / found.params
    assert data_cost(1000, vocab_size=300).disk_bytes == 2000
    assert data_cost(1000, vocab_size=100_000).disk_bytes == 4000
    assert plan(tiny_recipe("model.vocab_size=70000"), DEVICE).data == plan(tiny_recipe(), DEVICE).data  # of its bytes


def test_peaks_of_geforce_are_twice_those_of_their_cores() -> None:
    for name, n_cores, boost_clock in (
        ("RTX 3060", 3584, 1.777e9),
        ("RTX 3090", 10496, 1.695e9),
        ("RTX 4060 Ti 16GB", 4352, 2.535e9),
        ("RTX 4070", 5888, 2.475e9),
        ("RTX 4080", 9728, 2.505e9),
        ("RTX 4090", 16384, 2.52e9),
        ("RTX 5080", 10752, 2.617e9),
        ("RTX 5090", 21760, 2.407e9),
    ):
        peak = Device.from_options(name).peak_flops_per_second
        assert peak == pytest.approx(2 * 2 * n_cores * boost_clock, rel=0.005)


def test_any_device_has_the_numbers_that_are_given_else_those_of_its_data_sheet() -> None:
    found = Device.from_options(None, 0.5, memory="24GiB", tflops=82.0, memory_bandwidth="1TB/s")
    assert (found.memory_bytes, found.peak_flops_per_second, found.memory_bytes_per_second) == (24 * 2**30, 82e12, 1e12)
    assert found.flops_per_second == 41e12
    found = Device.from_options("rtx3060", 0.5, memory="11GB", tflops=20.0)
    assert (found.name, found.memory_bytes, found.flops_per_second) == ("RTX 3060", 11e9, 10e12)
    assert found.memory_bytes_per_second == 360e9


@pytest.mark.parametrize(
    ("given", "name"),
    [("4090", "RTX 4090"), ("a6000", "A6000"), ("RTX A6000", "A6000"), ("rtx-6000-ada", "RTX 6000 Ada")]
    + [(name, name) for name in ("T4", "V100", "MI300X")],
)
def test_a_device_is_known_without_its_rtx(given: str, name: str) -> None:
    assert Device.from_options(given).name == name


def test_of_an_ambiguous_name_the_possible_ones_are_named() -> None:
    message = "got 'rtx4060ti'; allowed: RTX 4060 Ti 8GB, RTX 4060 Ti 16GB; for any other"
    assert message in refusal(Device.from_options, "rtx4060ti")


QUIET = ("model.vocab_size=257", "model.d_model=128", "model.shape.widths=[128,128,128]", "train.steps=200000")


def said(*overrides: str) -> list[str]:
    """Return the remarks without the one on data, which the tiny corpus always gets."""
    return [each for each in remarks(tiny_recipe(*QUIET, *overrides)) if not each.startswith("data:")]


def test_a_usual_recipe_gives_no_reason() -> None:
    assert said() == []
    assert said("model.vocab_size=272") == []  # padded to a multiple of 16


@pytest.mark.parametrize(("tokenizer", "bytes_per_token"), [("bytes", 1), ("bpe-257", 4)])
def test_a_named_corpus_that_is_read_many_times(tokenizer: str, bytes_per_token: int) -> None:
    recipe = tiny_recipe(*QUIET, "data.corpus=synthetic", f"data.tokenizer={tokenizer}")
    n_tokens = 0.95 * sum(len(document.text) for document in synthetic_documents()) / bytes_per_token
    (found,) = remarks(recipe)
    assert found == f"data: has {n_tokens:,.0f} tokens, so the run reads each {recipe.n_tokens / n_tokens:,.0f} times"
    (found,) = said("data={path: elsewhere}")
    assert found.startswith("data.path: elsewhere is not on this machine; ")


def test_a_vocabulary_much_larger_than_the_tokenizers() -> None:
    recipe = load_recipe("uniform_200m")
    vocabulary, embedding, _ = remarks(recipe)
    n_unused = 2 * 640 * (100263 - 4096)
    assert vocabulary == (
        f"model.vocab_size: 100,263, but the tokenizer bpe-4096 has 4,096 tokens; about {n_unused:,} parameters of "
        "embedding and head have no token"
    )
    assert embedding.startswith("model.vocab_size: 55% of the parameters are in embedding and head")


def test_a_warmup_that_never_ends_and_one_that_nearly_does() -> None:
    (found,) = said("schedule.warmup_steps=200000")
    assert found.startswith("`train` refuses this: schedule.warmup_steps: got 200000; must be less than train.steps")
    (found,) = said("schedule.warmup_steps=100001")
    assert found.startswith("schedule.warmup_steps: 100,001 of 200,000 steps")
    assert said("schedule.warmup_steps=100000") == []


@pytest.mark.parametrize(("steps", "words"), [(30_000, "far below the 20"), (5_000_000, "far above the 20")])
def test_tokens_far_from_the_law(steps: int, words: str) -> None:
    (found,) = said(f"train.steps={steps}")
    assert found.startswith("train.steps: ")
    assert words in found
