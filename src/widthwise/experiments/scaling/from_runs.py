"""Points of a law, from the folders that `train`, `compare` and `sweep` write."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, nearest_hint
from widthwise.experiments.scaling.points import Axes, Found, checked_point
from widthwise.records.comparison import Comparison, Variant
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS, OF_RUNS
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.records.sweep import FinishedPoint, Sweep
from widthwise.run_dir import RunDir
from widthwise.yaml_io import parse_yaml

METRICS = [name for name, quantity in OF_RUNS.items() if quantity.is_loss]
"""Quantities that y can be."""
X_QUANTITIES = [name for name in (*OF_RUNS, *OF_MODELS) if name not in (*METRICS, "val_perplexity")]
"""Those that x can be: all that do not measure how good a model is."""
BY_FOLDER = "folder"
"""Value of --group-by that groups models by their folder instead of a recipe key."""


@dataclass(frozen=True)
class _Model:
    """The runs of one recipe."""

    name: str
    where: str
    group: str
    """The group, unless --group-by says otherwise."""
    folder: Path
    """Folder of the comparison or sweep, or the parent folder of the runs."""
    run: RunDir
    """A run that stands for all seeds, if its folder exists."""
    cost: CostSummary | None
    per_seed: Sequence[float]
    values: Mapping[str, Any] = field(default_factory=dict)
    """The values of a sweep's point."""

    def found(self, axes: Axes) -> Found:
        """Raises UserError if a number is missing or has no logarithm."""
        return Found(self._group(axes), checked_point(self.name, self._x(axes.x), self.per_seed, self.where, axes))

    def _x(self, name: str) -> float:
        if name in OF_RUNS:
            run = self._saved_run("--x", name)
            return _number(_result(run), name, run)
        value = None if self.cost is None else OF_MODELS[name].read(self.cost)
        if value is None:
            raise UserError(f"{self.where}: its cost has no {name}")
        return float(value)

    def _group(self, axes: Axes) -> str:
        key = axes.group_by
        if key is None:
            return self.group
        if key == BY_FOLDER:
            return self.folder.resolve().name
        if key in self.values:
            return str(self.values[key])
        return _value_at(_recipe(self._saved_run("--group-by", key)), key, f"{self.run.path}/config.yaml")

    def _saved_run(self, option: str, name: str) -> RunDir:
        if not self.run.exists:
            raise UserError(f"{self.where}: {option} {name} is only in the run itself, and {self.run.path} is missing")
        return self.run


@dataclass(frozen=True)
class MeasuredModels:
    """The models found in run directories and folders."""

    points: tuple[Found, ...]
    baselines: frozenset[str]
    """The names of the baselines of the comparisons among them."""
    left_out: tuple[str, ...]
    """Points of sweeps that have not finished, in words."""


def read_measured(paths: Iterable[Path], axes: Axes) -> MeasuredModels:
    """The models of run directories and of folders with a comparison or a sweep. Raises UserError for anything else.

    Run directories that differ only in the seed are one point.
    """
    _check_names(axes)
    models: list[_Model] = []
    runs: list[RunDir] = []
    baselines: set[str] = set()
    left_out: list[str] = []
    for path in paths:
        if (path / "comparison.json").is_file():
            comparison = Comparison.read(path)
            baselines.add(comparison.baseline)
            models += [_of_variant(variant, variant.name, path, axes.y) for variant in comparison.variants]
        elif (path / "sweep.json").is_file():
            sweep = Sweep.read(path)
            baselines |= {name for name in (sweep.baseline, sweep.baseline_group) if name is not None}
            models += [
                _of_variant(point, point.group or path.name, path, axes.y, point.values)
                for point in sweep.points
                if isinstance(point, FinishedPoint)
            ]
            missing = [f"{point.name} ({point.state})" for point in sweep.open_points]
            left_out += [f"{path} without {', '.join(missing)}"] if missing else []
        elif RunDir(path).exists:
            runs.append(RunDir(path))
        else:
            allowed = "a .csv file, a run directory (config.yaml), or a folder with comparison.json or sweep.json"
            raise UserError(f"{path}: is not {allowed}")
    models += _of_runs(runs, axes.y)
    return MeasuredModels(tuple(model.found(axes) for model in models), frozenset(baselines), tuple(left_out))


def _check_names(axes: Axes) -> None:
    """Raises UserError for a name of a quantity that runs do not have."""
    for option, name, allowed in (
        ("--x", axes.x, X_QUANTITIES),
        ("--y", axes.y, METRICS),
    ):
        if name not in allowed:
            raise UserError(f"{option}: got {name!r}; {nearest_hint(name, allowed)}")


def _of_variant(variant: Variant, group: str, folder: Path, y: str, values: Mapping[str, Any] | None = None) -> _Model:
    where = f"{folder}: {variant.name}"
    losses = OF_RUNS[y].of_variant(variant)
    if losses is None or not losses.per_seed:
        raise UserError(f"{where}: has no {y}")
    run, per_seed = RunDir(folder / variant.runs[0]), [finite(loss) for loss in losses.per_seed]
    return _Model(variant.name, where, group, folder, run, variant.cost, per_seed, values or {})


def _of_runs(runs: Iterable[RunDir], y: str) -> list[_Model]:
    alike: dict[str, list[RunDir]] = {}
    for run in runs:
        recipe = _recipe(run)
        recipe.get("train", {}).pop("seed", None)
        alike.setdefault(repr(recipe), []).append(run)
    models = []
    for seeds in alike.values():
        run, results = seeds[0], [_result(run) for run in seeds]
        per_seed = [_number(result, y, run) for result, run in zip(results, seeds)]
        folder = run.path.resolve().parent
        models.append(_Model(run.path.name, str(run.path), "runs", folder, run, results[0].cost, per_seed))
    return models


def _result(run: RunDir) -> RunResult:
    result = run.result()
    if result is None:
        raise UserError(f"{run.path}: has not finished (no result.json); `widthwise resume` continues it")
    return result


def _number(result: RunResult, key: str, run: RunDir) -> float:
    value = OF_RUNS[key].of_run(result)
    if value is None:
        raise UserError(f"{run.path}/result.json: {key} is {value!r}, not a number")
    return float(value)


def _recipe(run: RunDir) -> dict[str, Any]:
    where = f"{run.path}/config.yaml"
    data = parse_yaml(run.config_yaml(), where)
    if not isinstance(data, dict) or not isinstance(data.get("train", {}), dict):
        raise UserError(f"{where}: is not a recipe")
    return data


def _value_at(recipe: dict[str, Any], key: str, where: str) -> str:
    """The value of a dotted key; numbers index lists."""
    node: Any = recipe
    for part in key.split("."):
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            allowed = nearest_hint(part, node) if isinstance(node, dict) else f"it has no keys here, but {node!r}"
            raise UserError(f"--group-by: got {key!r}; {where} has no {part!r} there; {allowed}")
    return str(node)
