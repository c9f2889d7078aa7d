"""Answers to the page: the costs of a setting, and the devices that it fits on."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from widthwise.explorer.setting import Setting, controls
from widthwise.recipe.design import budget_met
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.reports.formats import MISSING, duration, si
from widthwise.reports.inspection import budget_lines, cost_table, layer_table
from widthwise.reports.table import Table
from widthwise.yaml_io import dump_yaml, read_recipe, recipe_name

N_KEPT = 128
"""Number of cached answers of each kind: a slider often returns to an earlier position."""


class Answers:
    """Answers about one recipe, which is read once. Thread-safe. Methods raise UserError for an impossible setting."""

    def __init__(self, recipe: Path | str, overrides: Sequence[str] = ()):
        self._where = str(recipe)
        self._base = read_recipe(recipe, overrides)
        self.controls = {"name": recipe_name(recipe), **controls(parse_recipe(self._base, self._where), self._where)}
        self.costs_json = remembered(self.costs)
        self.memory_json = remembered(self.memory)
        self.costs_json(Setting())  # refuses a recipe that `inspect` refuses

    def recipe_yaml(self, setting: Setting) -> str:
        """Return a complete recipe, which extends no other."""
        return dump_yaml(setting.applied(self._base, self._where)[0])

    def recipe(self, setting: Setting) -> Recipe:
        return parse_recipe(setting.applied(self._base, self._where)[0], self._where)

    def costs(self, setting: Setting) -> dict[str, Any]:
        """Return the inspection, as `inspect --json` prints it, its tables, and the difference from a budget."""
        data, request = setting.applied(self._base, self._where)
        recipe = parse_recipe(data, self._where)
        inspection = inspect_recipe(recipe)
        return {
            "inspection": inspection,
            "costs": _cells(cost_table(inspection)),
            "layers": _cells(layer_table(inspection)),
            "budget": "; ".join(budget_lines(inspection | budget_met(recipe, request))),
            "yaml": dump_yaml(data),
        }

    def memory(self, setting: Setting) -> dict[str, Any]:
        """Return the table of all devices with their largest passes, as `plan` computes them; imports torch."""
        from widthwise.runs.plan import Planner
        from widthwise.training.devices import WITH_MEMORY

        recipe = self.recipe(setting)
        kind = recipe.train.activation_checkpointing
        planner = Planner(recipe)
        rows = []
        for device in sorted(WITH_MEMORY, key=lambda device: device.memory_bytes):
            setup = planner.setup(device, kind)
            row = [device.name, f"{si(device.memory_bytes)}B", MISSING, f"{si(setup.memory.total_bytes)}B", MISSING]
            if setup.micro_batch_size is not None:
                row[2] = str(setup.micro_batch_size)
                row[4] = duration(setup.run_hours)
            rows.append(row)
        header = ["one device", "has", "largest pass", "needs", "time of the run"]
        caption = f"training memory, activation checkpointing {kind}; a pass in sequences of {recipe.seq_len:,} tokens"
        return _cells(Table(caption, header, rows))


def remembered(count: Callable[[Setting], Any]) -> Callable[..., str]:
    """Return a function that gives the counted numbers as JSON, with a cache for the last `N_KEPT` settings.

    Requests do not wait for each other.
    """
    return lru_cache(N_KEPT)(lambda setting: json.dumps(count(setting)))


def _cells(table: Table) -> dict[str, Any]:
    return {"caption": table.caption, "header": list(table.header), "rows": [list(row) for row in table.rows]}
