"""What several processes train is what one process trains."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cases import BITWISE, CHECKPOINTED, COMPILED, KINDS, ON_FOUR, WITHOUT_COPY, case
from compared_runs import loss_difference, recorded_difference, records, tensor_difference
from ranks import said_by_script
from resuming import Row, bound, differences, launches, rows_of
from thinned import hard_but
from together import n_graphs
from train_many import Order, carry_out, order

from widthwise.training.processes import ALONE

HERE = Path(__file__).resolve().parent
ROWS = [
    *rows_of(["x, grown before and after the stop"], ["float32"], [("2", "2"), ("1", "2"), ("2", "1")]),
    *rows_of(["x"], ["float64"], [("1", "4"), ("2", "2x2")]),
]
"""Those of the table of benchmarks/resuming.py that take least time, and every way to divide a model."""
FEW = ("x, projected", "dynamic", "slots", "muon")
"""Kinds that `make test` trains on two processes, in one launch; `make test-hard` does all else."""


class Launch(NamedTuple):
    """What so many processes have left behind."""

    runs: Path
    graphs: dict[str, Any]
    """Number of graphs in each process, by case."""


def fp64_orders(folder: Path, n_shards: int, names: tuple[str, ...] = tuple(KINDS)) -> list[Order]:
    recipes = {name: case(name, f"train.shards={n_shards}") for name in names}
    return [order(recipe, folder / f"{name}, {n_shards} shards", "float64") for name, recipe in recipes.items()]


def launched(folder: Path, n_processes: int, orders: list[Order], compiled: Iterable[str] = ()) -> Launch:
    """compiled: names of the cases that are compiled without being trained."""
    task_path, found = folder / "task.json", folder / "found.json"
    task_path.write_text(json.dumps({"orders": orders, "compiled": list(compiled)}))
    said_by_script(n_processes, HERE / "together.py", task_path, found, folder=folder)
    return Launch(folder, json.loads(found.read_text()))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains in this process, once: a case by its name, with further overrides."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def trained(name: str, *overrides: str, dtype: str = "float32") -> Path:
        path = folder / f"{len(list(folder.iterdir()))}"
        carry_out([order(case(name, *overrides), path, dtype)])
        return path

    return trained


class Resuming(NamedTuple):
    """Runs that are begun on some processes and resumed on others, and where they are."""

    folder: Path
    turns: list[list[Order]]
    """Alone, on 2 processes, on 4, and alone again."""


@pytest.fixture(scope="module")
def resuming(tmp_path_factory: pytest.TempPathFactory) -> Resuming:
    folder = tmp_path_factory.mktemp("resuming")
    turns = [orders for _, orders in launches(ROWS, folder, (1, 2, 4, 1))]
    carry_out(turns[0])
    return Resuming(folder, turns)


def bitwise_orders(folder: Path, names: Iterable[str]) -> list[Order]:
    return [order(case(*BITWISE[name]), folder / f"{name}, bitwise") for name in names]


@pytest.fixture(scope="module")
def few_on_2(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    folder = tmp_path_factory.mktemp("few_on_2")
    orders = [*bitwise_orders(folder, ("fp32",)), *fp64_orders(folder, 2, FEW)]
    return launched(folder, 2, orders)


@pytest.fixture(scope="module")
def on_2(tmp_path_factory: pytest.TempPathFactory, resuming: Resuming) -> Launch:
    folder = tmp_path_factory.mktemp("on_2")
    orders = bitwise_orders(folder, [name for name in BITWISE if name != "fp32"])
    orders += [order(case("grown", "train.shards=2"), folder / "in fp32")]
    orders += [order(case("further heads", CHECKPOINTED, "train.shards=2"), folder / "checkpointed", "float64")]
    orders += [*fp64_orders(folder, 2, tuple(name for name in KINDS if name not in FEW)), *resuming.turns[1]]
    return launched(folder, 2, orders, COMPILED)


@pytest.fixture(scope="module")
def on_4(tmp_path_factory: pytest.TempPathFactory, on_2: Launch, resuming: Resuming) -> Launch:
    folder = tmp_path_factory.mktemp("on_4")
    orders = [*fp64_orders(folder, 2, ON_FOUR), *fp64_orders(folder, 4, WITHOUT_COPY), *resuming.turns[2]]
    return launched(folder, 4, orders)


@pytest.fixture(scope="module")
def resumed(on_4: Launch, resuming: Resuming) -> Path:
    carry_out(resuming.turns[3])
    return resuming.folder


def assert_same_in_fp64(ours: Path, theirs: Path) -> None:
    assert loss_difference(ours, theirs) <= 1e-11
    for difference, where in (
        recorded_difference(ours, theirs),
        tensor_difference(ours, theirs, "model"),
        tensor_difference(ours, theirs, "optimizer"),
    ):
        assert difference <= 1e-9, where


@pytest.mark.parametrize("name", hard_but(["fp32"], BITWISE))
def test_two_processes_that_each_hold_the_model_are_bitwise_one(request, alone, name: str) -> None:
    runs = request.getfixturevalue("few_on_2" if name == "fp32" else "on_2").runs
    ours, theirs = runs / f"{name}, bitwise", alone(*BITWISE[name])
    assert records(ours) == records(theirs)
    assert recorded_difference(ours, theirs)[0] == 0
    for stem in ("model", "optimizer"):
        assert tensor_difference(ours, theirs, stem)[0] == 0


@pytest.mark.parametrize("name", hard_but(FEW, KINDS))
def test_two_processes_that_share_the_model_find_what_one_does(request, alone, name: str) -> None:
    runs = request.getfixturevalue("few_on_2" if name in FEW else "on_2").runs
    assert_same_in_fp64(runs / f"{name}, 2 shards", alone(name, dtype="float64"))


@pytest.mark.hard
@pytest.mark.parametrize(("name", "n_shards"), [(name, 2) for name in ON_FOUR] + [(name, 4) for name in WITHOUT_COPY])
def test_four_processes_find_what_one_does(on_4: Launch, alone, name: str, n_shards: int) -> None:
    assert_same_in_fp64(on_4.runs / f"{name}, {n_shards} shards", alone(name, dtype="float64"))


@pytest.mark.hard
def test_a_shared_model_differs_by_rounding_also_with_activation_checkpointing(on_2: Launch, alone) -> None:
    assert loss_difference(on_2.runs / "in fp32", alone("grown")) <= 1e-5
    assert_same_in_fp64(on_2.runs / "checkpointed", alone("further heads", dtype="float64"))


@pytest.mark.hard
def test_a_shared_model_is_compiled_to_as_many_graphs(on_2: Launch) -> None:
    for name, overrides in COMPILED.items():
        assert set(on_2.graphs[name]) == {n_graphs(case(name, *overrides), ALONE)}, name


@pytest.mark.hard
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_run_that_is_resumed_on_other_processes_is_the_same_run(resumed: Path, row: Row) -> None:
    found = differences(row, resumed)
    assert found["losses"] <= bound(row)
    if bound(row) == 0:
        assert set(found.values()) == {0.0}


@pytest.mark.hard
def test_processes_that_share_a_student_share_its_teacher(alone, tmp_path: Path) -> None:
    taught = f"train.distill={{teacher: {alone('x, carried')}}}"
    orders = [order(case("x, projected", taught, "train.shards=2"), tmp_path / "shared", "float64")]
    launched(tmp_path, 2, orders)
    assert_same_in_fp64(tmp_path / "shared", alone("x, projected", taught, dtype="float64"))
