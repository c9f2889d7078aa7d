"""What a plan predicts, from formulas, on which devices; and proposals, which follow the law and fit.

test_rank_memory.py has what processes really hold and send, benchmarks/memory.py what training really needs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.design import WIDTH_PER_LAYER, Family
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.cost import Deployment
from widthwise.runs.plan import Planner, local_device, plan
from widthwise.runs.proposal import Proposal, propose
from widthwise.training.devices import Device

DEVICE = Device("a device", 10**9, peak_flops_per_second=1e12)


def deployment(recipe: Recipe, device: Device, n_devices: int = 1) -> Deployment:
    (result,) = plan(recipe, [n_devices], device).deployments
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
    found = plan(tiny_recipe(), [1])
    assert (found.tokens, found.steps) == (9 * 4 * 17, 9)
    assert found.tokens_per_param == found.tokens / found.params
    assert found.data.disk_bytes == 2 * found.tokens
    many = tiny_recipe("model.vocab_size=70000", "data.tokenizer=bpe-70000")
    assert plan(many, [1]).data.disk_bytes == 4 * found.tokens
    assert plan(tiny_recipe("model.vocab_size=70000"), [1]).data == found.data  # of its bytes


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
    found = Device.from_options("rtx3060", 0.5, memory="11GB", tflops=20)
    assert (found.name, found.memory_bytes, found.flops_per_second) == ("RTX 3060", 11e9, 10e12)
    assert found.memory_bytes_per_second == 360e9
    assert Device.from_options("4090", memory="48GB") == Device.from_options("rtx4090", memory="48GB")
    assert Device.from_options("3080", memory="10GB") == Device.from_options(None, memory="10GB")
    assert "expected a size above 0" in refusal(Device.from_options, "9" * 400 + "GB")


@pytest.mark.parametrize(("name", "n_bytes", "expected"), [("80GB", 85e9, 80e9), ("40GB", 42e9, 42e9)])
def test_the_device_at_hand_has_no_more_memory_than_its_driver_shows(monkeypatch, name, n_bytes, expected) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: f"NVIDIA A100-SXM4-{name}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=int(n_bytes)))
    device = local_device()
    assert device is not None
    assert (device.memory_bytes, device.peak_flops_per_second) == (expected, 312e12)


def test_a_device_is_known_without_its_rtx_and_of_an_ambiguous_name_the_possible_ones_are_named() -> None:
    names = {"4090": "RTX 4090", "a6000": "A6000", "RTX A6000": "A6000", "rtx-6000-ada": "RTX 6000 Ada"}
    for given, name in (names | {name: name for name in ("T4", "V100", "MI300X")}).items():
        assert Device.from_options(given).name == name
    message = "got 'rtx4060ti'; allowed: RTX 4060 Ti 8GB, RTX 4060 Ti 16GB; for any other"
    assert message in refusal(Device.from_options, "rtx4060ti")


H100 = Device.from_options("h100", 0.5)


def large(*overrides: str) -> Recipe:
    return load_recipe("x_2b", overrides)


def test_nodes_and_network_may_have_other_rates() -> None:
    slow = Device.from_options("h100", 0.5, node_bandwidth="450GB/s", network_bandwidth="25GB/s")
    devices = (H100, slow, Device.from_options("rtx4090"))
    fast, slow, unknown = (deployment(tiny_recipe("train.batch_size=32"), device, 16) for device in devices)
    assert slow.communication_seconds == pytest.approx(2 * fast.communication_seconds)
    assert unknown.communication_seconds is None


def test_padding_grows_with_shards_and_copies_hold_the_same_and_reduce_what_shards_have_reduced() -> None:
    assert plan(large("train.shards=64"), [64]).deployments[0].padding == pytest.approx(4.8e-3, rel=0.03)
    eight, many = plan(large("train.shards=8"), [8, 512]).deployments
    assert eight.padding == pytest.approx(1.6e-6, rel=0.03)
    assert eight.memory.parameter_bytes == many.memory.parameter_bytes
    assert eight.traffic.reduce_scatter_bytes == many.traffic.reduce_scatter_bytes
    assert eight.traffic.all_reduce_bytes == 0
    assert many.traffic.all_reduce_bytes == 2 * 63 * many.memory.parameter_bytes // 64


def test_times_follow_from_rates() -> None:
    recipe = large("train.shards=8")
    found = deployment(recipe, H100, 64)
    flops = recipe.training_flops / recipe.train.steps / 64
    assert found.training_flops == pytest.approx(flops)
    assert found.compute_seconds == pytest.approx(flops / (0.5 * 989e12))
    assert found.run_hours == pytest.approx(recipe.train.steps * found.compute_seconds / 3600)
    traffic = found.traffic
    # Shards are the devices of a node; of a shard's copies each is in another node.
    in_node = (traffic.all_gather_bytes + traffic.reduce_scatter_bytes) / 450e9
    assert found.communication_seconds == pytest.approx(in_node + traffic.all_reduce_bytes / 50e9)


def test_a_ring_over_whole_nodes_has_the_network_of_all_their_devices() -> None:
    found = deployment(large("train.shards=64"), H100, 64)
    sent = found.traffic.all_gather_bytes + found.traffic.reduce_scatter_bytes
    assert found.communication_seconds == pytest.approx(sent / (8 * 50e9))


def test_layers_that_run_again_cost_their_forward_pass_again() -> None:
    recipes = [load_recipe("x_200m", [f"train.activation_checkpointing={kind}"]) for kind in ("none", "layer")]
    plain, again = (plan(recipe, [8], H100).deployments[0] for recipe in recipes)
    model = recipes[0].explicit_model
    per_token = sum(cost.forward_flops(4096) for layer in model.layer_costs() for cost in layer.values())
    assert RECOMPUTE["layer"].repeated_flops(model, 4096) == per_token
    every_second = sum(cost.forward_flops(4096) for layer in model.layer_costs()[::2] for cost in layer.values())
    assert RECOMPUTE["selective"].repeated_flops(model, 4096) == every_second
    more = (again.compute_seconds - plain.compute_seconds) * 0.5 * 989e12
    assert more == pytest.approx(per_token * recipes[0].train.batch_size / 8 * 4096)
    assert again.training_flops == plain.training_flops
    assert again.memory.activation_bytes < plain.memory.activation_bytes / 5


def test_the_smallest_remedy_is_named() -> None:
    """The memory of the device is what the recipe needs with the remedy."""
    for overrides, remedy in (
        ((), "train.shards=2"),
        (("train.shards=8",), "train.micro_batch_size=1"),
        (("train.shards=8", "train.micro_batch_size=1"), "train.activation_checkpointing=selective"),
    ):
        base = ("train.batch_size=32", "train.micro_batch_size=2")
        recipe, mended = tiny_recipe(*base, *overrides), tiny_recipe(*base, *overrides, remedy)
        device = replace(H100, memory_bytes=deployment(mended, H100, 8).memory.total_bytes)
        found, fitting = (deployment(each, device, 8) for each in (recipe, mended))
        assert (found.fits, found.remedy) == (False, remedy)
        assert (fitting.fits, fitting.remedy) == (True, None)


def test_numbers_that_do_not_divide_and_recipes_that_do_not_train_are_refused() -> None:
    odd = ("train.batch_size=12", "train.micro_batch_size=2")
    for overrides, n_devices, named in (
        (odd[:1], 8, "train.batch_size: got 12; must be a multiple of the number of processes, which is 8"),
        (odd, 4, "train.micro_batch_size: got 2; must divide the 3 sequences that each of 4 processes has of a step"),
        (["train.shards=3"], 4, "train.shards: got 3; must divide the number of processes, which is 4"),
        ([], 0, "--devices: got 0; must be at least 1"),
        (["schedule.warmup_steps=9"], 1, "schedule.warmup_steps: got 9; must be less than train.steps = 9"),
    ):
        assert named in refusal(plan, tiny_recipe(*overrides), [n_devices])


SMALL = ("seq_len=512", "model.vocab_size=512", "data.tokenizer=bpe-512")
FAST = Device("a device", 10**12, 1e12, mfu=0.5)


def proposed(
    device: Device = FAST, days: float | None = 1, tokens_per_param: float = 20.0, n_params: float | None = None
) -> Proposal:
    return propose(Family(SMALL, {"kind": "uniform"}, 1), device, 1, days, tokens_per_param, n_params)


def days(proposal: Proposal, device: Device = FAST) -> float:
    return Planner(proposal.recipe).run_hours(device, proposal.recipe.train) / 24


def test_the_changes_of_a_family_stay_in_it() -> None:
    shape = {"kind": "uniform"}
    unchanged = Family((), shape, 1).uniform(1)
    Family(("optimizer.lr=0.5", "model.attention.head_dim=32", "model.shape.kind=x"), shape, 1)
    assert (Family((), shape, 1).uniform(1), shape) == (unchanged, {"kind": "uniform"})


@pytest.mark.parametrize("tokens_per_param", [20.0, 5.0])
def test_compute_is_spent_at_the_tokens_of_the_law(tokens_per_param: float) -> None:
    found = proposed(tokens_per_param=tokens_per_param)
    model, n_params = found.recipe.final_model, found.recipe.final_model.cost().params
    assert found.recipe.n_tokens / n_params == pytest.approx(tokens_per_param, rel=0.02)
    assert 0.4 < days(found) < 1.02
    assert model.n_layers == pytest.approx(model.d_model / WIDTH_PER_LAYER, abs=0.5)


def test_where_memory_is_the_bound_compute_goes_into_tokens() -> None:
    small = replace(FAST, memory_bytes=3 * 10**8)
    found = proposed(small)
    assert found.recipe.final_model.cost().params < proposed().recipe.final_model.cost().params
    assert "that fits into the memory" in found.law
    assert Planner(found.recipe).deployment(small).fits
    assert days(found, small) > 0.9


def test_a_size_of_ones_own_gets_no_more_tokens_than_the_days_have_compute_for() -> None:
    """Half of the days that the law needs are half of its tokens."""
    needed = days(proposed(days=100, n_params=2e6))
    half = proposed(days=needed / 2, n_params=2e6)
    assert half.recipe.n_tokens == pytest.approx(10 * half.recipe.final_model.cost().params, rel=0.02)
    assert days(half) <= 1.001 * needed / 2


def test_a_device_without_flops_gets_the_largest_model_that_fits() -> None:
    device = Device("memory", 3 * 10**8)
    found = proposed(device, days=None)
    assert Planner(found.recipe).deployment(device).fits
    assert found.recipe.n_tokens == pytest.approx(20 * found.recipe.final_model.cost().params, rel=0.02)
