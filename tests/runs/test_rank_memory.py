"""What a process is said to hold and send is what `fully_shard` makes processes hold and send; see sharded_ranks.py."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from measured import kept_bytes
from model_cases import config, decoder, random_tokens, variant
from ranks import said_by_script
from sharded_ranks import N_RANKS, LiveMemory
from thinned import in_turn
from tiny_runs import tiny_recipe

from widthwise.config_io import to_data
from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint, build
from widthwise.model.recompute import RECOMPUTE
from widthwise.model.shards import sharded_units
from widthwise.recipe.optimizers import state_shapes
from widthwise.recipe.recipe import Recipe
from widthwise.records.cost import RankMemory
from widthwise.runs.rank_memory import ShardedModel
from widthwise.runs.save import write_new_run
from widthwise.training.growth_step import FrozenEntries
from widthwise.training.objective import LoadedTeacher
from widthwise.training.train_state import TrainState

SCRIPT = Path(__file__).with_name("sharded_ranks.py")
SLOTS = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 7}
CASES = {
    "muon": config("uniform"),
    "tied": variant("zigzag", "learned_positions"),
    "moe": variant("zigzag", "moe"),
    "slots_with_a_shared_reduction": config("uniform", residual=SLOTS, mtp={"n_depths": 2}),
}
"""Odd numbers of rows, fewer rows than processes, parameters with two names; the first takes a step of Muon."""
LARGER = ("model.vocab_size=2003", "model.d_model=160", "model.shape.widths=[240,80,200]", "seq_len=199")
STEPS = [
    (8, 8, "fp32", 1, ("model.tie_embeddings=true",)),
    (8, 2, "bf16", 2, ("model.mtp={n_depths: 1}",)),
    (6, 1, "bf16", 2, ("train.activation_checkpointing=layer",)),
    (8, 2, "bf16", 2, ("train.distill.temperature=2",)),
    (6, 6, "fp32", 1, ("train.distill.weight=1", "model.d_model=32", "model.shape={kind: uniform}")),
]
"""Devices, shards, precision, passes of a step, changes to the recipe; some have a teacher."""
OPTIMIZERS = ("{kind: adamw, lr: 0.1}", "{kind: muon, lr: 0.1, adamw: {lr: 0.1}}")


class Real(NamedTuple):
    ranks: list[dict[str, Any]]
    """What each process held and sent: case -> number of shards -> what."""
    memory: list[int]
    """The most bytes that each of STEPS needed."""
    recipes: list[Recipe]
    """Those of STEPS."""


def memory_of(recipe: Recipe, config: ModelConfig | None = None, n_devices: int = 1) -> RankMemory:
    """What a process is said to need, on the CPU, whose loss works in smaller chunks than a GPU's."""
    model = None if config is None else blueprint(config)
    return ShardedModel(recipe, "cpu", model).memory(recipe.train, n_devices)


def taught_by(teacher: Path, *changes: str) -> Recipe:
    """A recipe; if the changes say what it learns of a teacher, with one, which has random weights."""
    if not any("distill" in change for change in changes):
        return tiny_recipe(*LARGER, *changes)
    if not teacher.exists():
        recipe = tiny_recipe(*LARGER[:3]).resolved()
        write_new_run(teacher, recipe, build(recipe.explicit_model, seed=1), None, {})
    return tiny_recipe(*LARGER, f"train.distill.teacher={teacher}", *changes)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Real:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "cases.json").write_text(json.dumps({name: to_data(case) for name, case in CASES.items()}))
    recipes, steps = [], []
    for n_devices, n_shards, precision, n_passes, changes in STEPS:
        batch = (f"train.batch_size={2 * n_devices * n_passes}", "train.micro_batch_size=2", f"train.shards={n_shards}")
        recipe = taught_by(folder / "teacher", *batch, f"train.precision={precision}", *changes)
        division = {"n_devices": n_devices, "n_shards": n_shards, "n_passes": n_passes}
        recipes.append(recipe)
        steps.append({"recipe": to_data(recipe.resolved()), "shape": (2, 199), **division})
    (folder / "steps.json").write_text(json.dumps(steps))
    said_by_script(N_RANKS, SCRIPT, folder, folder=folder)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(N_RANKS)]
    return Real(ranks, json.loads((folder / "memory.json").read_text()), recipes)


@pytest.mark.hard
@in_turn(("n_shards", [2, 3]), ("case", CASES))
def test_the_first_process_holds_what_was_said(real: Real, case: str, n_shards: int) -> None:
    """It holds the most."""
    model = blueprint(CASES[case])
    held = [sum(rank[case][str(n_shards)]["held"].values()) for rank in real.ranks[:n_shards]]
    units = sharded_units(model.named_layers(), model)
    assert held[0] == max(held) == sum(unit.block_entries(n_shards) for unit in units)
    assert sum(held) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.hard
@in_turn(("n_shards", [1, 2, 3]), ("case", CASES))
def test_a_process_sends_what_was_said(real: Real, case: str, n_shards: int) -> None:
    n_devices = N_RANKS if n_shards == 1 else n_shards
    sizes = (f"train.batch_size={4 * n_devices}", "train.micro_batch_size=2", f"train.shards={n_shards}")
    recipe = tiny_recipe(*sizes, f"optimizer={OPTIMIZERS[case == 'muon']}")
    traffic = ShardedModel(recipe, "cpu", blueprint(CASES[case])).traffic(recipe.train, n_devices)
    for rank in range(n_devices):
        given = Counter(real.ranks[rank][case][str(n_shards)]["n_bytes"])
        if n_shards > 1:
            gathered = given["c10d::_allgather_base_"] + given["_c10d_functional::all_gather_into_tensor"]
            assert 0 < traffic.all_gather_bytes == (n_shards - 1) * gathered
            assert 0 < traffic.reduce_scatter_bytes == (n_shards - 1) * given["c10d::_reduce_scatter_base_"]
            assert traffic.broadcast_bytes == (n_shards - 1) * given["c10d::broadcast_"] // n_shards
            assert (traffic.broadcast_bytes > 0) == (case == "muon")
            assert traffic.all_reduce_bytes == 0
        else:
            assert traffic.all_gather_bytes == traffic.reduce_scatter_bytes == traffic.broadcast_bytes == 0
            assert 0 < traffic.all_reduce_bytes == 2 * (n_devices - 1) * given["c10d::allreduce_"] // n_devices


@pytest.mark.hard
@pytest.mark.parametrize("index", range(len(STEPS)))
def test_a_step_needs_nearly_the_memory_that_was_said(real: Real, index: int) -> None:
    said = memory_of(real.recipes[index], n_devices=STEPS[index][0])
    assert 0.85 < real.memory[index] / said.total_bytes < 1.05, said


SMALL = ("model.shape={kind: uniform}", "model.d_model=32", "model.n_layers=2", "train.activation_checkpointing=layer")
TAUGHT = {
    "loss": ("train.precision=bf16", "train.distill.weight=1", "train.activation_checkpointing=layer"),
    "teacher": ("train.distill.temperature=2", *SMALL, "train.batch_size=16"),
}
"""The moment that takes most; the student of the last is small."""


@pytest.mark.parametrize("moment", TAUGHT)
def test_a_taught_step_needs_nearly_the_memory_that_was_said(tmp_path: Path, moment: str) -> None:
    recipe = taught_by(tmp_path / "teacher", *TAUGHT[moment], "train.micro_batch_size=null")
    model, batch = build(recipe.explicit_model, seed=0), random_tokens(recipe.train.batch_size, recipe.seq_len + 1)
    model.recompute = RECOMPUTE[recipe.train.activation_checkpointing]
    optimizer = torch.optim.AdamW([{"params": list(model.parameters()), "lr_factor": 1.0}], foreach=False)
    with LiveMemory() as live:
        for parameter in model.parameters():
            live.see(parameter)
        train_state = TrainState(recipe, recipe.phases[0], model, optimizer, teacher=LoadedTeacher(recipe))
        for _ in range(2):
            live.peak_bytes = 0
            train_state.train_step(1, batch)
    said = memory_of(recipe)
    assert said.moment == moment
    assert 0.85 < live.peak_bytes / said.total_bytes < 1.05, said


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_keeps_what_was_said(optimizer: str) -> None:
    recipe = tiny_recipe(f"optimizer={optimizer}")
    model = blueprint(recipe.explicit_model)
    kept = state_shapes(recipe.optimizer.build(model)).values()
    n_numbers = sum(shape.numel() for state in kept for name, shape in state.items() if name != "step")
    assert memory_of(recipe).optimizer_bytes == 4 * n_numbers


def test_frozen_entries_take_what_was_said() -> None:
    """Weights before the update, and a mark of each entry, beside what the update takes in any case."""
    wider = "growth=[{at_step: 3, freeze_steps: 2, model: {shape: {kind: explicit, widths: [24, 16, 24]}}}]"
    recipe = tiny_recipe("seq_len=3", "train.micro_batch_size=1", "model.n_layers=3", wider)
    growth = recipe.phases[-1].growth
    model = build(recipe.final_model, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    frozen, peaks = FrozenEntries(model, growth.rewarmup, growth.plan), []
    for step in (4, 5):
        with LiveMemory() as live, frozen.applied(step):
            for parameter in model.parameters():
                live.see(parameter)
            optimizer.step()
        peaks.append(live.peak_bytes)
    said = memory_of(recipe)
    assert said.moment == "update"
    assert max(peaks) == pytest.approx(said.total_bytes, rel=0.05)
    assert peaks[-1] == pytest.approx(said.total_bytes, rel=0.01)


PACKED = {"documents": ("data.mask_documents=true",), "positions": ("data.reset_positions=true",)}
PACKED["both"] = (*PACKED["documents"], *PACKED["positions"])


@in_turn(("told", PACKED), ("name", ["frequencies", "unrotated", "further_heads"]))
def test_autograd_keeps_what_was_said_to_tell_documents_apart(name: str, told: str) -> None:
    """Beside the rotary tables of one row, which rows without documents of their own share."""
    resolved, length = variant("x", name), 11
    model = decoder(resolved, dtype=torch.float32)

    def kept_by_rows(precision: str, boundaries: Boundaries) -> int:
        def kept(n: int) -> int:
            tokens = random_tokens(n, length)
            documents, positions = boundaries.documents(tokens), boundaries.positions(tokens)
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                return kept_bytes(lambda: model.loss(tokens, tokens, documents=documents, positions=positions))

        return kept(4) - kept(2)

    for precision in ("fp32", "bf16"):
        base = (f"train.precision={precision}", "train.micro_batch_size=2", f"seq_len={length}")
        recipe = tiny_recipe(*base, *PACKED[told])
        boundaries = Boundaries(7, recipe.data.mask_documents, recipe.data.reset_positions)
        measured = kept_by_rows(precision, boundaries) - kept_by_rows(precision, NO_BOUNDARIES)
        packed, plain = (memory_of(each, resolved).buffer_bytes for each in (recipe, tiny_recipe(*base)))
        assert measured == packed - plain
        assert measured > 0 or (name, told) == ("unrotated", "positions")


@pytest.mark.parametrize("case", ["muon", "tied", "moe"])
def test_autograd_keeps_the_casts_that_were_said(case: str) -> None:
    """Beside what grows with the batch it keeps weights: in fp32 the weights themselves, in bf16 their casts alone."""
    model = decoder(CASES[case], dtype=torch.float32)
    fp32, bf16 = (memory_of(tiny_recipe(f"train.precision={each}"), CASES[case]) for each in ("fp32", "bf16"))

    def kept_for_no_tokens(precision: str) -> int:
        def kept(n: int) -> int:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                return kept_bytes(lambda: model.loss(random_tokens(n, 7), random_tokens(n, 7)))

        return 2 * kept(2) - kept(4)

    assert kept_for_no_tokens("fp32") - kept_for_no_tokens("bf16") == bf16.cast_weight_bytes
    assert fp32.cast_weight_bytes == 0
