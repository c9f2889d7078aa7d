"""Predictions for several devices, from formulas; test_rank_memory.py has what processes really hold and send."""

from dataclasses import replace

import pytest
from boxes import refusal
from tiny_runs import tiny_recipe

from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.runs.plan import plan
from widthwise.training.devices import Device

H100 = Device.from_options("h100", 0.5)


def large(*overrides: str) -> Recipe:
    return load_recipe("x_2b", overrides)


def test_nodes_and_network_may_have_other_rates() -> None:
    slow = Device.from_options("h100", 0.5, node_bandwidth="450GB/s", network_bandwidth="25GB/s")
    alone = [plan(tiny_recipe("train.batch_size=32"), [16], device).deployments[0] for device in (H100, slow)]
    assert alone[1].communication_seconds == pytest.approx(2 * alone[0].communication_seconds)
    unknown = plan(tiny_recipe("train.batch_size=32"), [16], Device.from_options("rtx4090")).deployments[0]
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
    (found,) = plan(recipe, [64], H100).deployments
    flops = recipe.training_flops / recipe.train.steps / 64
    assert found.training_flops == pytest.approx(flops)
    assert found.compute_seconds == pytest.approx(flops / (0.5 * 989e12))
    assert found.run_hours == pytest.approx(recipe.train.steps * found.compute_seconds / 3600)
    traffic = found.traffic
    # Shards are the devices of a node; of a shard's copies each is in another node.
    in_node = (traffic.all_gather_bytes + traffic.reduce_scatter_bytes) / 450e9
    assert found.communication_seconds == pytest.approx(in_node + traffic.all_reduce_bytes / 50e9)


def test_a_ring_over_whole_nodes_has_the_network_of_all_their_devices() -> None:
    (found,) = plan(large("train.shards=64"), [64], H100).deployments
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
        device = replace(H100, memory_bytes=plan(mended, [8]).deployments[0].memory.total_bytes)
        (found,) = plan(recipe, [8], device).deployments
        assert (found.fits, found.remedy) == (False, remedy)
        (fitting,) = plan(mended, [8], device).deployments
        assert (fitting.fits, fitting.remedy) == (True, None)


def test_numbers_that_do_not_divide_are_refused() -> None:
    odd = ("train.batch_size=12", "train.micro_batch_size=2")
    for overrides, n_devices, named in (
        (odd[:1], 8, "train.batch_size: got 12; must be a multiple of the number of processes, which is 8"),
        (odd, 4, "train.micro_batch_size: got 2; must divide the 3 sequences that each of 4 processes has of a step"),
        (["train.shards=3"], 4, "train.shards: got 3; must divide the number of processes, which is 4"),
        ([], 0, "--devices: got 0; must be at least 1"),
    ):
        assert named in refusal(plan, tiny_recipe(*overrides), [n_devices])
