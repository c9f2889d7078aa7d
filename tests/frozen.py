"""Write the numbers of one tiny run of each kind, for a comparison of two checkouts.

`PYTHONPATH=CHECKOUT/src python tests/frozen.py OUT` prints the SHA-256 of each file under OUT, after less than two
minutes on two quiet cores. `diff -r OUT_A OUT_B` shows what a change did to the numbers. Times, speeds, memory,
commands, versions and dates are removed. A command that the checkout refuses is skipped with a line that says so.
"""

import contextlib
import csv
import hashlib
import io
import json
import re
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

CONFIGS = Path(__file__).parents[1] / "configs"
MEASURED = re.compile(
    r"(^|_|\b)(seconds?|hours?|speed|mfu|memory|cpu|command|commit|versions?|machine|age|environment|checksums|created)"
    r"(_|\b|$)|per_second|packages",
    re.IGNORECASE,
)
"""Keys of JSON and headers of CSV whose values differ from run to run."""
X = "{kind: x, bottleneck_layer: 0.5, bottleneck_width: 0.5, rounding: balanced, quantum: 8}"
SLOTS = "{kind: hyper_connections, n_slots: 2, n_fractions: 2, embedding: expand, reduce: slot}"
MODEL_X = f"model: {{shape: {X}}}"
TINY = """
model: {vocab_size: 257, d_model: 32, n_layers: 4, attention: {head_dim: 8}}
seq_len: 32
data: {corpus: synthetic, tokenizer: bytes}
optimizer: {kind: adamw, lr: 0.01}
schedule: {kind: cosine, warmup_steps: 2}
train:
  {steps: 6, batch_size: 2, precision: fp32, validate_every: 2, validation_tokens: 512, checkpoint_every: 3,
   loss_window_steps: 2}
"""
COMPARE = f"""
extends: tiny.yaml
compare:
  seeds: [1, 2]
  match: {{quantity: params, adjust: ffn}}
  variants:
    uniform: {{}}
    x: {{{MODEL_X}}}
"""
RECIPES = {
    "tiny": TINY,
    "grows": "extends: tiny.yaml\ngrowth: [{at_step: 3, model: {n_layers: 6}}]",
    "compare": f"""{COMPARE}
    hourglass: {{model: {{ffn: {{kind: hourglass, n_blocks: 2, d_hidden: 8}}}}}}
    virtual: {{model: {{residual: {SLOTS}}}}}
""",
    "longer": f"{COMPARE}train: {{steps: 8}}",
    "sweep": f"""
extends: tiny.yaml
sweep:
  seeds: [1]
  match: {{quantity: params, adjust: ffn}}
  baseline: {{}}
  groups: {{x: {{change: {{{MODEL_X}}}, over: {{model.shape.bottleneck_width: [0.5, 0.75]}}}}}}
""",
    "rungs": f"""
extends: tiny.yaml
sweep:
  seeds: [1]
  match: {{quantity: params, adjust: ffn}}
  tokens_per_param: 0.05
  rungs: {{d32: {{model: {{d_model: 32}}}}, d48: {{model: {{d_model: 48}}}}, d64: {{model: {{d_model: 64}}}}}}
  groups: {{uniform: {{}}, x: {{change: {{{MODEL_X}}}}}}}
""",
}
RUNS = """
train tiny.yaml --out runs/tiny
train tiny.yaml model.ffn.kind=dynamic --out runs/dynamic
train grows.yaml --out runs/grows
compare compare.yaml --jobs 1 --out runs/compare
compare longer.yaml --jobs 1 --out runs/longer
sweep sweep.yaml --jobs 1 --out runs/sweep
sweep rungs.yaml --jobs 1 --out runs/rungs
fit runs/rungs --law power --out runs/fit
grow runs/tiny --d-model 32 --add-layers 2 --out runs/grown
resume runs/grown
shrink runs/tiny --flops 0.8 --multiple 4 --out runs/shrunk
export runs/tiny exports/hf
export runs/dynamic exports/widthwise
import exports/hf runs/imported --recipe tiny.yaml
resume runs/imported
eval runs/tiny runs/dynamic --text text.md --out runs/eval.json --report runs/evaluated
analyze runs/tiny runs/dynamic --tokens 1024 --out runs/analysis
report runs/tiny runs/dynamic runs/grows --out runs/report
report runs/compare runs/longer --out runs/reports
"""
"""One command a line, in the folder of the recipes."""
PLANS = """
inspect CONFIGS/smoke.yaml
inspect CONFIGS/x_200m.yaml
inspect CONFIGS/compare_ffn.yaml
inspect CONFIGS/papers/models/virtual_width_1.5x_mtp.yaml
plan CONFIGS/x_200m.yaml --device h100
plan CONFIGS/grow_2x.yaml --device rtx4090
plan --params 350M --device 24GB
plan CONFIGS/x_200m.yaml --devices 1,8
"""
"""Commands that train nothing, whose output with --json is compared."""


def run(command: str) -> str | None:
    """Run a command of widthwise in this process and return its output; None if the checkout refuses it."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["widthwise", *command.replace("CONFIGS", str(CONFIGS)).split()]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_module("widthwise", run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
    if code not in (0, 2):
        raise SystemExit(f"{command}: exit code {code}\n{err.getvalue()}")
    if code == 2:
        print(f"skipped: {command}: {(err.getvalue().strip().splitlines() or ['no such verb'])[-1]}")
        return None
    return out.getvalue()


def lasting(value: Any) -> Any:
    """Return JSON data without the keys of MEASURED."""
    if isinstance(value, dict):
        return {key: lasting(item) for key, item in value.items() if not MEASURED.search(key)}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def normalised(path: Path) -> str:
    """Return what a result file says, without what differs from run to run."""
    if path.suffix == ".json":
        return json.dumps(lasting(json.loads(path.read_text())), indent=1) + "\n"
    header, *rows = csv.reader(path.read_text().splitlines())
    columns = [place for place, name in enumerate(header) if not MEASURED.search(name)]
    return "".join(",".join(row[place] for place in columns) + "\n" for row in (header, *rows))


def results(folder: Path) -> dict[str, str]:
    """Return a dict from relative path to content, for the files with numbers below a folder of runs and exports."""
    files = {}
    for path in sorted((folder / "runs").rglob("*")):
        is_number_file = path.suffix in (".json", ".csv") and path.stem not in ("environment", "planned", "manifest")
        if is_number_file and "checkpoints" not in path.parts and "corpora" not in path.parts:
            files[str(path.relative_to(folder))] = normalised(path).replace(str(folder), ".")
    for path in sorted((folder / "exports").glob("*/*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        files[f"{path.relative_to(folder)}.sha256"] = f"{digest}\n"
    return files


def main(out: Path) -> None:
    """Run all commands in a temporary folder, and write and print their results."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for recipe, text in RECIPES.items():
            Path(f"{recipe}.yaml").write_text(text)
        Path("text.md").write_text("Every layer has a width. " * 40)
        files = {}
        for place, command in enumerate(PLANS.strip().splitlines()):
            output = run(f"{command} --json")
            if output is not None:
                files[f"plans/{place}_{command.split()[0]}.json"] = output.replace(str(CONFIGS), "configs")
        for command in RUNS.strip().splitlines():
            run(command)
        files |= results(Path(name))
    for path, content in sorted(files.items()):
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(content)
        print(hashlib.sha256(content.encode()).hexdigest(), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
