"""Answers to the page: the numbers of a setting, and the devices it fits on."""

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
"""Remembered answers of one sort: a slider comes back to where it was."""


class Answers:
    """Answers on one recipe, which is read once. Every method raises UserError for an impossible setting.
    Safe to call from several threads.
    """

    def __init__(self, recipe: Path | str, overrides: Sequence[str] = ()):
        self._where = str(recipe)
        self._base = read_recipe(recipe, overrides)
        self.controls = {"name": recipe_name(recipe), **controls(parse_recipe(self._base, self._where), self._where)}
        self.costs_json = remembered(self.costs)
        self.memory_json = remembered(self.memory)
        self.costs_json(Setting())  # refuses a recipe that `inspect` refuses

    def recipe_yaml(self, setting: Setting) -> str:
        """A whole recipe that extends no other, so that it can be moved anywhere."""
        return dump_yaml(setting.applied(self._base, self._where)[0])

    def recipe(self, setting: Setting) -> Recipe:
        return parse_recipe(setting.applied(self._base, self._where)[0], self._where)

    def costs(self, setting: Setting) -> dict[str, Any]:
        """The inspection, as `inspect --json` prints it for the recipe, its tables, and how near a budget is."""
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
        """Return which devices known by name it fits on, as `plan` does; imports torch."""
        from widthwise.runs.plan import Planner
        from widthwise.training.devices import WITH_MEMORY

        recipe = self.recipe(setting)
        kind, planner = recipe.train.activation_checkpointing, Planner(recipe)
        devices = sorted(WITH_MEMORY, key=lambda device: device.memory_bytes)
        rows = [
            [
                device.name,
                f"{si(device.memory_bytes)}B",
                MISSING if found.micro_batch_size is None else str(found.micro_batch_size),
                f"{si(found.memory.total_bytes)}B",
                MISSING if found.micro_batch_size is None else duration(found.run_hours),
            ]
            for device in devices
            for found in [planner.setup(device, kind)]
        ]
        header = ["one device", "has", "largest pass", "needs", "time of the run"]
        caption = f"training memory, activation checkpointing {kind}; a pass in sequences of {recipe.seq_len:,} tokens"
        return _cells(Table(caption, header, rows))


def remembered(count: Callable[[Setting], Any]) -> Callable[..., str]:
    """Return the counted numbers as JSON, remembered for the last `N_KEPT` settings.

    No request waits while another's large model is counted.
    """
    return lru_cache(N_KEPT)(lambda setting: json.dumps(count(setting)))


def _cells(table: Table) -> dict[str, Any]:
    return {"caption": table.caption, "header": list(table.header), "rows": [list(row) for row in table.rows]}
