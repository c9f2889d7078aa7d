"""Made-up runs and comparisons on disk: numbers of a plausible size, odd layer counts, two seeds."""

import json
import math
import random
from pathlib import Path
from typing import Any

from page_section import change, write

from widthwise.records.run import RunResult
from widthwise.run_dir import RunDir

SHAPES = {"uniform": [576] * 7, "x": [640, 576, 448, 320, 448, 576, 640], "hourglass": [608] * 5}
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
RATIOS = {"average_width": "average_width", "kv_bytes": "kv_bytes_per_token"}
RATIOS |= {"activation_bytes": "activation_bytes_per_token"}


def cost(widths: list[int]) -> dict[str, Any]:
    ends, n = 4096 * max(widths), len(widths)
    parts = {"embedding": ends, "attention": sum(4 * width**2 for width in widths), "norm": 2 * sum(widths)}
    parts |= {"ffn": sum(8 * width**2 for width in widths), "residual": 0, "head": ends}
    total, heads = sum(parts.values()), [width // 64 for width in widths]
    sizes = {"widths": widths, "average_width": sum(widths) / n, "virtual_width": 1 + n / 8, "d_model": max(widths)}
    sizes |= {"n_heads": heads, "n_kv_heads": heads, "head_dim": [64] * n}
    return {
        **sizes,
        "hidden_widths": [[8 * width // 3] for width in widths],
        "params": {"total": total, "active": total, **parts},
        "flops_per_token": {"forward": 2.2 * total, "training": 6.6 * total, "forward_causal": 2.1 * total},
        "kv_bytes_per_token": 4 * sum(widths),
        "activation_bytes_per_token": 68 * sum(widths),
    }


def token_widths(n_layers: int) -> dict[str, Any]:
    """Layer i uses a narrow or a wide band around (i + 1) / (n_layers + 1) of its hidden width."""
    layers = []
    for i in range(n_layers):
        middle = round(32 * (i + 1) / (n_layers + 1))
        histogram = [0.0] * 32
        histogram[middle - 1 : middle + 1] = [0.25, 0.75]
        layers.append(
            {"layer": i + 1, "d_ff": 512, "mean": middle / 32, "sd": 0.02, "min": 0.1, "max": 0.9}
            | {"histogram": histogram, "floor_share": 0.0, "ceiling_share": 0.01, "dead_share": 0.125, "max_units": 448}
            | {"gain": 1.0, "bias": -0.3, "temperature": 16.0}
        )
    return {
        "n_tokens": 8192,
        "mean_fraction": 0.6,
        "token_variance_share": 0.4,
        "flops_per_token": {"full": 3e6, "asked": 1.8e6, "bucketed": 1.95e6, "executed": 3e6},
        "layers": layers,
        "by_frequency_decile": [0.5 + i / 50 for i in range(10)],
        "by_token_class": {"word": 0.61, "space": 0.4},
        "forced": [{"fraction": 0.25, "loss": 3.9}, {"fraction": 1.0, "loss": 3.1}],
    }


def write_run(
    folder: Path, name: str, seed: int, shape: list[int], offset: float, finished: bool = True, n_records: int = 60
) -> None:
    """A run directory of 6000 steps with so many training records and a validation every 500 steps that has one."""
    folder.mkdir(parents=True)
    noise = random.Random(f"{name}-{seed}")
    environment = {"python": "3.11.7", "torch": "2.13.0", "cpu": "test machine", "n_cpus": 2, "gpu": None}
    RunDir(folder).begin(f"name: x\nmodel: {{layers: {shape}}}\ntrain: {{seed: {seed}}}\n", environment)
    records: list[dict[str, Any]] = []
    for step in range(6000 // n_records, 6001, 6000 // n_records):
        loss = 3 + offset + 6 * math.exp(-step / 400) + 2 / math.sqrt(step) + noise.gauss(0, 0.03)
        lr = 1e-2 * min(1, step / 300, (6100 - step) / 3000)
        measured = {"grad_norm": 0.4 + noise.random() / 5, "tokens_per_second": 41e3, "step_seconds": 0.1, "mfu": None}
        records.append({"step": step, "event": "train", "loss": loss, "lr": lr, "tokens": step * 4096, **measured})
        if step % 500 == 0:
            loss += noise.gauss(0.02, 0.004)
            records.append({"step": step, "event": "validation", "loss": loss, "perplexity": math.exp(loss)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        result = {"status": "finished", "name": name, "seed": seed, "steps": 6000, "tokens": 6000 * 4096}
        result |= {"train_loss": 3.02, "val_loss": 3.04 + offset, "val_perplexity": 20.9, "val_bits_per_byte": 1.2}
        result |= {"cost": cost(shape), "tokens_per_second": 41e3, "wall_seconds": 599.2}
        RunDir(folder).write_result(RunResult.model_validate(result))


def estimate(mean: float, half_width: float, n_seeds: int = 2) -> dict[str, Any]:
    """One whose seeds do not differ, as if all doubt came from the text."""
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width, "per_seed": [mean] * n_seeds}


def add_to_result(run: Path, **changes: Any) -> None:
    """What a run found besides. changes: of the fields of its result."""
    result = RunDir(run).result()
    RunDir(run).write_result(result.with_changes(**changes))


def add_records(run: Path, *records: dict[str, Any]) -> None:
    """Adds records to the metrics of a finished run, in the order of their steps."""
    result = RunDir(run).result()
    ordered = sorted([*RunDir(run).metrics(), *records], key=lambda record: record["step"])
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in ordered))
    RunDir(run).write_result(result)


def write_comparison(folder: Path, names: tuple[str, str, str] = ("uniform", "x", "hourglass")) -> Path:
    """A comparison of a baseline with two variants under the given names; returns the folder."""
    variants: list[dict[str, Any]] = []
    base = cost(next(iter(SHAPES.values())))
    rows = zip(names, SHAPES.values(), (0.0, -0.0123, 0.004), (0, 0.008, 0.009), ("baseline", "better", "cannot tell"))
    for i, (name, shape, offset, half_width, verdict) in enumerate(rows):
        runs = [f"runs/variant{i}-seed{seed}" for seed in (1, 2)]
        for seed, run in zip((1, 2), runs):
            write_run(folder / run, name, seed, shape, offset)
        own = cost(shape)
        ratio = {
            "params": own["params"]["total"] / base["params"]["total"],
            "flops": own["flops_per_token"]["forward"] / base["flops_per_token"]["forward"],
            **{name: own[of] / base[of] for name, of in RATIOS.items()},
            "tokens_per_second": 1 + i / 50,
        }
        variant: dict[str, Any] = {"name": name, "state": "finished", "runs": runs, "verdict": verdict}
        variant |= {"cost": own, "ratio": ratio}
        variant |= {"val_loss": estimate(3.05 + offset, 0.02), "train_loss": estimate(3.02 + offset, 0.02)}
        variant |= {"val_bits_per_byte": estimate(1.21 + offset / 2, 0.01)}
        variant |= {"tokens_per_second": estimate(41e3 * (1 + i / 50), 300)}
        variants.append(variant | {"difference": estimate(offset, half_width) if i else None})
    comparison = {"title": "quickstart", "command": "widthwise compare configs/quickstart.yaml"}
    comparison |= {"created": "2026-11-21T10:00:00+00:00", "confidence": 0.95, "seeds": [1, 2]}
    comparison |= {"baseline": names[0], "matched": "params", "points": variants}
    environment = {"python": "3.11.7", "torch": "2.13.0", "widthwise": "0.1.0", "n_cpus": 2, "gpu": None}
    return write(folder / "outcome.json", {**comparison, "environment": environment})


def at_equal_loss(**changes: Any) -> dict[str, Any]:
    """What a variant needs that ends lower than the baseline. changes: of the entries."""
    found = {
        "n_reached": 2,
        "tokens": estimate(20.5e6, 1e6),
        "training_flops": estimate(4.5e15, 1e14),
        "tokens_ratio": estimate(0.8125, 0.03),
        "training_flops_ratio": estimate(0.875, 0.04),
    }
    return found | changes


def write_full_comparison(folder: Path) -> Path:
    """One whose main table has every usual column, with one further head."""

    def add(data: dict[str, Any]) -> None:
        for variant in data["points"]:
            measured = {"val_loss_next_2": estimate(3.55, 0.02), "pflops_days": estimate(1.99e-8, 1e-10)}
            variant["measured"] = measured | {"peak_memory_bytes": estimate(6.77e8, 1e5)}
            if variant["difference"]:
                variant["at_equal_loss"] = {"val_loss": at_equal_loss()}
                variant["differences"] = {"val_loss_next_2": estimate(-0.0123, 0.02)}

    return change(write_comparison(folder) / "outcome.json", add)


def growth(step: int, change: float = 0.25, **values: Any) -> dict[str, Any]:
    """The record of a growth that changes the held-out loss. values: other entries."""
    spent = {"event": "growth", "step": step, "tokens": 4096 * step, "training_flops": 3.0 * 4096 * step}
    sizes = {"params_before": cost(SHAPES["uniform"])["params"]["total"], "params_after": 99_999_999}
    return {**spent, **sizes, "loss_before": 3.5, "loss_after": 3.5 + change, **values}


def write_grown_run(folder: Path) -> Path:
    """A run that `grow` made larger; its source was validated at the step of the growth, its last one."""
    write_run(folder, "large", 1, [64, 48, 64], 0.0)
    grown = growth(3000, event="grown", params_before=78_984.0, params_after=124_112.0)
    del grown["loss_before"], grown["loss_after"]
    add_records(folder, grown)
    (folder / "certificate.json").write_text(json.dumps(CERTIFICATE))
    return folder
