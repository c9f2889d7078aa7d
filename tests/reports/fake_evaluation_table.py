"""A made-up table of what two models know on disk."""

import json
from pathlib import Path
from typing import Any


def write_evaluation_table(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    columns = [
        {"name": "ARC_C", "metric": "acc_norm", "is_share": True, "source": "file", "n_items": 117},
        {"name": "WikiText", "metric": "word_perplexity", "is_share": False, "source": "file"},
    ]
    beside = {"value": 0.34, "difference": 0.01, "p_better": 0.03, "p_worse": 0.97}
    rows: list[dict[str, Any]] = [
        {"name": "uniform", "run": "runs/uniform", "step": 70, "cells": [{"value": 0.33}, {"value": 16.9}]},
        {"name": "x", "run": "runs/x", "step": 70, "baseline": "uniform", "cells": [beside, {"value": 16.3}]},
    ]
    table = {"title": "two models", "command": "widthwise eval runs/uniform runs/x", "created": "2026-11-22"}
    table |= {"significance": 0.05, "columns": columns, "rows": rows}
    (folder / "evaluation_table.json").write_text(json.dumps(table))
    return folder
