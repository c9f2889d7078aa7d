"""A made-up run that `grow` made larger, with its certificate."""

import json
from pathlib import Path
from typing import Any

from fake_comparison import SHAPES, add_records, cost, write_run

CERTIFICATE: dict[str, Any] = {
    "dtype": "float64",
    "n_sequences": 2,
    "n_tokens": 32,
    "largest_logit": 7.5,
    "logit_difference": 4.4e-15,
    "logit_bound": 8e-12,
    "stored_logit_difference": 2.1e-7,
    "stored_logit_bound": 7.5e-5,
    "gradient_difference": 1.2e-15,
    "gradient_bound": 1e-10,
    "liveness": {
        "layers.1.ffn.w_up": {"n_new": 640, "n_alive": 630, "n_dead": 10, "n_unjudged": 0},
        "embedding": {"n_new": 300, "n_alive": 100, "n_dead": 0, "n_unjudged": 200},
    },
    "seq_len": 64,
    "before": {"params": 78_984, "flops_per_token": 156_352.0},
    "after": {"params": 124_112, "flops_per_token": 255_552.0},
}


def growth(step: int, change: float = 0.25, **values: Any) -> dict[str, Any]:
    """The record of a growth that changes the held-out loss. values: other entries."""
    spent = {"event": "growth", "step": step, "tokens": 4096 * step, "training_flops": 3.0 * 4096 * step}
    sizes = {"params_before": cost(SHAPES["uniform"])["params"]["total"], "params_after": 99_999_999}
    return {**spent, **sizes, "loss_before": 3.5, "loss_after": 3.5 + change, **values}


def write_grown_run(folder: Path) -> Path:
    """Its source was validated at the step of the growth, as runs are that come to their end."""
    write_run(folder, "large", 1, [64, 48, 64], 0.0)
    add_records(folder, growth(3000, event="grown", params_before=78_984.0, params_after=124_112.0))
    (folder / "certificate.json").write_text(json.dumps(CERTIFICATE))
    return folder
