"""What a plan predicts, from formulas; what training really needs is measured by benchmarks/memory.py."""

from dataclasses import replace

import pytest
from tiny_runs import tiny_recipe

from widthwise.model.recompute import RECOMPUTE
from widthwise.runs.devices import Device
from widthwise.runs.dry_run import dry_run
from widthwise.runs.plan import data_cost, plan

DEVICE = Device("a device", 10**9, peak_flops_per_second=1e12)


@pytest.mark.parametrize("kind", RECOMPUTE)
@pytest.mark.parametrize("change", ["train.nested=null", "model.mtp={n_depths: 2}", "train.precision=bf16"])
def test_parts_make_up_the_model(kind: str, change: str) -> None:
    recipe = tiny_recipe(f"train.activation_checkpointing={kind}", change)
    found, model = plan(recipe, DEVICE), recipe.final_model
    parts = {each.part: each for each in found.parts}
    for part, cost in model.costs().items():
        assert parts[part].params == cost.params if part in parts else cost.params == 0
    assert sum(each.params for each in found.parts) == found.params == model.cost().params
    assert sum(each.parameter_bytes for each in found.parts) == 4 * found.params
    kept = RECOMPUTE[kind].kept(model).activation_bytes(2 if recipe.train.precision == "bf16" else 4)  # type: ignore
    assert sum(each.activation_bytes for each in found.parts) == pytest.approx(2 * 17 * kept)


def test_of_a_matrix_that_muon_updates_one_number_is_kept() -> None:
    recipe = tiny_recipe("optimizer={kind: muon, lr: 0.1, adamw: {lr: 0.1}}")
    parts = {each.part: each for each in plan(recipe, DEVICE).parts}
    assert parts["ffn"].optimizer_bytes == parts["ffn"].parameter_bytes
    assert parts["embedding"].optimizer_bytes == 2 * parts["embedding"].parameter_bytes


def test_it_is_the_memory_of_a_dry_run() -> None:
    recipe = tiny_recipe("train.batch_size=8", "train.shards=2")
    assert plan(recipe, DEVICE, n_devices=4).memory == dry_run(recipe, [4]).deployments[0].memory


def test_the_largest_pass_is_the_largest_that_fits() -> None:
    """Passes are divisors of a device's sequences; the device has the memory that one of them needs."""
    sizes = ("train.batch_size=12", "model.vocab_size=300", "seq_len=90")
    needed = {
        n: plan(tiny_recipe(*sizes, f"train.micro_batch_size={n}"), DEVICE).memory.total_bytes for n in (1, 2, 3, 4, 6)
    }
    for n, n_bytes in needed.items():
        found = plan(tiny_recipe(*sizes), replace(DEVICE, memory_bytes=n_bytes))
        assert found.setups[0].micro_batch_size == n
        assert found.setups[0].memory.total_bytes == n_bytes
    nothing = plan(tiny_recipe(*sizes), replace(DEVICE, memory_bytes=1))
    assert [each.micro_batch_size for each in nothing.setups] == [None] * 3
    assert not nothing.fits


def test_hours_follow_from_the_rate() -> None:
    recipe = tiny_recipe("train.batch_size=8")
    seconds = recipe.training_flops / (0.25 * 1e12)
    assert plan(recipe, DEVICE, mfu=0.25).run_hours == pytest.approx(seconds / 3600)
    assert plan(recipe, DEVICE, n_devices=4, mfu=0.25).run_hours == pytest.approx(seconds / 4 / 3600)
    none, layer, selective = plan(recipe, DEVICE, mfu=0.25).setups
    assert none.run_hours == pytest.approx(seconds / 3600)
    assert none.run_hours < selective.run_hours < layer.run_hours < 4 / 3 * none.run_hours  # type: ignore
    assert plan(recipe, Device("memory alone", 10**9)).run_hours is None


def test_a_slow_memory_is_what_takes_the_time() -> None:
    """A pass reads weights twice and gradients once, and writes gradients; the update moves 7 numbers for each."""
    recipe = tiny_recipe("train.batch_size=4", "train.micro_batch_size=2")
    n_bytes = 4 * recipe.final_model.cost().params * (2 * 4 + 7)
    slow = replace(DEVICE, memory_bytes_per_second=1e3)
    assert plan(recipe, slow).run_hours == pytest.approx(recipe.train.steps * n_bytes / 1e3 / 3600)


def test_tokens_and_what_they_take_on_disk() -> None:
    found = plan(tiny_recipe(), DEVICE)
    assert (found.tokens, found.steps) == (9 * 4 * 17, 9)
    assert found.tokens_per_param == found.tokens / found.params
    assert data_cost(1000, vocab_size=300).disk_bytes == 2000
    assert data_cost(1000, vocab_size=100_000).disk_bytes == 4000
    assert plan(tiny_recipe("model.vocab_size=70000"), DEVICE).data == plan(tiny_recipe(), DEVICE).data  # of its bytes
