"""Points of laws: from a user's tables, and from the folders that `train`, `compare` and `sweep` write."""

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from widthwise.config_io import check_one_of, refusing
from widthwise.experiments.outcome import SeedRuns, variant_of
from widthwise.files import read_text
from widthwise.mistakes import UserError
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import LOSSES, MODEL_COSTS, QUANTITY, RUN_QUANTITIES
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.records.scaling import ScalingPoint
from widthwise.run_dir import RunDir
from widthwise.yaml_io import parse_yaml

X_QUANTITIES = [name for name in (*RUN_QUANTITIES, *MODEL_COSTS) if name not in (*LOSSES, "val_perplexity")]
"""All quantities that are not losses."""


@dataclass(frozen=True)
class Axes:
    """The quantities on both axes, and the grouping of models into curves."""

    x: str
    y: str
    group_by: str | None = None
    """A column of a table; "folder", to group models by folder; or a key of a sweep. None: the variant of a comparison,
    the group of a sweep, the stem of a table; all run directories are one group."""


class SeededPoint(ScalingPoint):
    """One model of a group, with the y of each seed, which is not recorded. x and y are above 0."""

    per_seed: tuple[float, ...]

    @classmethod
    def of_seeds(cls, name: str, x: float, per_seed: Sequence[float]) -> "SeededPoint":
        n_seeds = len(per_seed)
        y_sd = float(np.std(per_seed, ddof=1)) if n_seeds > 1 else None
        y = float(np.mean(per_seed))
        return cls(name=name, x=x, y=y, y_sd=y_sd, n_seeds=n_seeds, per_seed=tuple(per_seed))


@dataclass(frozen=True)
class CurveGroup:
    """Models of one curve, in increasing order of x."""

    name: str
    points: tuple[SeededPoint, ...]

    @property
    def x(self) -> np.ndarray:
        return np.array([point.x for point in self.points], dtype=np.float64)

    @property
    def y(self) -> np.ndarray:
        return np.array([point.y for point in self.points], dtype=np.float64)

    @property
    def n_seeds(self) -> tuple[int, ...]:
        """Number of seeds of each point."""
        return tuple(point.n_seeds for point in self.points)


@dataclass(frozen=True)
class FitData:
    """The data that laws are fitted to."""

    axes: Axes
    groups: tuple[CurveGroup, ...]
    """In order of first appearance."""
    baseline: str | None
    """One of the groups; None computes no savings."""
    left_out: tuple[str, ...] = ()
    """Messages about unfinished points of sweeps in the paths."""


PointKey = tuple[str, str, str, float]
"""The table of a point, or "" for folders; its group, name and x."""


def gather(paths: Sequence[Path], axes: Axes, baseline: str | None = None) -> FitData:
    """Collect every model in the paths: .csv files, run directories, or folders of comparisons or sweeps.

    Models with equal group, name and x are seeds of one point, in all folders together and in each table. baseline: a
    group; by default the common baseline of all comparisons, if it is a group. Raises UserError if a path is none of
    these, or a number is missing or has no logarithm.
    """
    for path, n_times in Counter(path.resolve() for path in paths).items():
        if n_times > 1:
            raise UserError(f"{path}: is given twice; a model counts once")
    tables = [path for path in paths if path.is_file()]
    rows = [row for path in tables for row in _read_table(path, axes)]
    models, baselines, left_out = _read_folders([path for path in paths if path not in tables], axes)
    seeds: dict[PointKey, list[float]] = {}
    for key, per_seed in (*rows, *models):
        seeds.setdefault(key, []).extend(per_seed)
    groups: dict[str, list[SeededPoint]] = {}
    for (_, group, name, x), per_seed in seeds.items():
        groups.setdefault(group, []).append(SeededPoint.of_seeds(name, x, per_seed))
    if not groups:
        raise UserError(f"fit: got no finished model; {'; '.join(left_out)}")
    if baseline is not None:
        check_one_of("--baseline", baseline, groups)
    elif len(baselines) == 1:
        baseline = next((name for name in groups if name in baselines), None)
    curves = [CurveGroup(name, tuple(sorted(group, key=lambda point: point.x))) for name, group in groups.items()]
    return FitData(axes, tuple(curves), baseline, tuple(left_out))


def _read_table(path: Path, axes: Axes) -> Iterator[tuple[PointKey, list[float]]]:
    """Yield the point and the y of each row of a table with a header. Empty lines and comments (#) are skipped.

    A model is named by the column `name`, or without it by its line. Without a column to group by, all rows are one
    group. Raises UserError that names the line of a mistake.
    """
    lines = list[tuple[str, list[str]]]()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            try:
                cells = [cell.strip() for cell in next(csv.reader([line]))]
            except csv.Error as error:  # a cell is too long
                raise UserError(f"{path}: line {number}: cannot be read ({error})") from None
            lines.append((f"line {number}", cells))
    if not lines:
        raise UserError(f"{path}: holds no table; expected a line of column names")
    (_, header), *rows = lines
    if len(set(header)) < len(header):
        raise UserError(f"{path}: two columns have the same name ({', '.join(header)})")
    for option, column in (("--x", axes.x), ("--y", axes.y), ("--group", axes.group_by)):
        if column is not None:
            check_one_of(f"{path}: {option}", column, header)
    if not rows:
        raise UserError(f"{path}: has column names but no rows")
    for where, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{path}: {where}: has {len(cells)} cells; expected {len(header)} ({', '.join(header)})")
        row = dict(zip(header, cells))
        x, y = (_positive(row[column], column, f"{path}: {where}") for column in (axes.x, axes.y))
        group = path.stem if axes.group_by is None else row[axes.group_by]
        yield (str(path), group, row.get("name") or where, x), [y]


def _positive(text: str | float, name: str, where: str) -> float:
    """Return the number in a text. Raises UserError if there is none, or it has no logarithm."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where}: {name} is {text!r}, not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{where}: {name} is {value:g}; a law needs finite numbers above 0")
    return value


def _point(variant: Variant, axes: Axes, where: str, default_group: str, folder: Path) -> tuple[PointKey, list[float]]:
    """Return the point of a variant, and the y of its seeds. folder: of its comparison or sweep, or above its run."""
    check_one_of("--x", axes.x, X_QUANTITIES)
    check_one_of("--y", axes.y, LOSSES)
    values = dict[str, list[float]]()
    for name in (axes.x, axes.y):
        value = QUANTITY[name].of_variant(variant)
        numbers = [] if value is None else value.per_seed or [value.mean]
        if not numbers:
            raise UserError(f"{where}: has no {name}")
        values[name] = [_positive(finite(number), name, where) for number in numbers]
    group = default_group
    if axes.group_by is not None:
        groups = {"folder": folder.resolve().name, **variant.values}
        check_one_of("--group", axes.group_by, groups)
        group = str(groups[axes.group_by])
    return ("", group, variant.name, values[axes.x][0]), values[axes.y]


def _read_folders(
    folders: Sequence[Path], axes: Axes
) -> tuple[list[tuple[PointKey, list[float]]], set[str | None], list[str]]:
    """Read run directories, comparisons and sweeps. Raises UserError for any other folder.

    Returns their models with the y of the seeds, the names of their baselines, and messages about unfinished points of
    sweeps. Runs that differ only in the seed are one model.
    """
    models = list[tuple[PointKey, list[float]]]()
    baselines = set[str | None]()
    left_out = list[str]()
    runs_of_recipe: dict[str, dict[Path, RunResult]] = {}
    for path in folders:
        if (path / Outcome.file_name).is_file():
            outcome = Outcome.read(path)
            baselines |= {outcome.baseline, outcome.baseline_group}
            if missing := [f"{point.name} ({point.state})" for point in outcome.unfinished_points]:
                left_out.append(f"{path} without {', '.join(missing)}")
            for variant in outcome.points:
                if not isinstance(variant, Variant):
                    continue
                group = (variant.group or path.name) if outcome.axes else variant.name
                models.append(_point(variant, axes, f"{path}: {variant.name}", group, path))
        elif RunDir(path).exists:
            recipe = parse_yaml(RunDir(path).config_yaml(), str(path))
            with refusing(f"{path}/config.yaml: has no section train", AttributeError, KeyError, TypeError):
                recipe["train"].pop("seed", None)
            result = RunDir(path).result()
            if result is None:
                raise UserError(f"{path}: has not finished (no result.json); `widthwise resume` continues it")
            runs_of_recipe.setdefault(repr(recipe), {})[path] = result
        else:
            allowed = "a .csv file, a run directory (config.yaml), or a folder with outcome.json"
            raise UserError(f"{path}: is not {allowed}")
    for results in runs_of_recipe.values():
        first = next(iter(results))
        variant = variant_of(first.name, SeedRuns([path.name for path in results], [*results.values()]), None)
        models.append(_point(variant, axes, str(first), "runs", first.resolve().parent))
    return models, baselines - {None}, left_out
