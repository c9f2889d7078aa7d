"""A mistake on the command line or in a recipe costs one line that names it and exit code 2, and changes nothing."""

import shlex
import shutil
from pathlib import Path

import pytest

COMPARED = "extends: base.yaml\ncompare: {match: none, variants: {base: {}, narrow: {model: {d_model: 24}}}}\n"
SWEPT = "extends: base.yaml\nsweep: {over: {optimizer.lr: [1]}}\n"
OVER = "--over optimizer.lr=1,2"
TO = "--to wide.yaml --out large"
MISTAKES = {
    "inspect": [
        ("inspect", "'recipe'"),
        ("no-such-verb", "'no-such-verb'"),
        ("inspect x.yaml --jsn", "--json"),
        ("inspect base.yaml model.d_modle=3", "model.d_modle: unknown key; did you mean 'd_model'?"),
        ("inspect base.yaml model.layers.3.ffn.d_f=3", "model.layers.3: ffn.d_f: unknown key; did you mean 'd_ff'?"),
        ("inspect base.yaml train.steps=many", "train.steps: got 'many'"),
    ],
    "design": [
        ("design base.yaml --kind diamond --turn-width 30", "largest feasible ratio"),
        ("design base.yaml --kind growing --turn-layer 0.5", "--turn-layer"),
        ("design base.yaml --budget 10", "too small"),
        ("design pair.yaml", "pair.yaml: has a compare section"),
    ],
    "train": [
        ("train base.yaml schedule.warmup_steps=6", "schedule.warmup_steps: got 6; must be less than train.steps = 3"),
        ("train pair.yaml", "`widthwise compare`"),
        ("train swept.yaml", "NAME` for one, or sweep=null for the rest of the recipe"),
        ("train base.yaml --devices 8", "--devices: was removed; `widthwise plan RECIPE --devices 1,8`"),
    ],
    "plan": [
        ("plan", "--device: is required; give a name, as rtx4090, or a memory, as 24GB"),
        ("plan --device rtx409", "--device: got 'rtx409'; allowed: RTX 4090; for any other"),
        ("plan --device a100 --days 0", "--days: got 0; input should be greater than 0"),
        ("plan --device 24", "--device: got '24'; expected a size above 0"),
        ("plan base.yaml --devices a", "--devices: got 'a'; expected whole numbers"),
        ("plan base.yaml --devices 3", "train.batch_size: got 4; must be a multiple of"),
        ("plan base.yaml --mfu 0.3", "--mfu: got 0.3; needs --device"),
        ("plan --device a100 --params many", "--params: got 'many'; expected a positive number"),
        ("plan --device 24GB --days 5", "which a memory size does not have; name a device, or give --tflops"),
        ("plan --device 1MB", "--device: not even d_model = 64 fits on the device"),
        ("plan model.d_model=64 --device a100", "model.d_model=64: a plan without a recipe proposes this value"),
        ("plan base.yaml --device a100 --params 3M", "--params: conflicts with a recipe; use one of them"),
        ("plan --variant wide --device 24GB", "--variant: got 'wide'; needs a recipe"),
    ],
    "search": [
        ("search base.yaml --n-blocks 2,x", "--n-blocks: got '2,x'; expected whole numbers such as 2,4 or 8..16"),
        ("search base.yaml --ratio nan", "--ratio: got nan"),
        ("search base.yaml --per n_heads", "--per: got 'n_heads'"),
    ],
    "compare": [
        ("compare train.steps=3", "got no recipe"),
        ("compare pair.yaml --match kv_bytes --dry-run", "narrow: "),
        ("compare pair.yaml --jobs 0", "--jobs: got '0'; must be auto or a number of at least 1"),
        ("discover base.yaml", "discover: was removed; `shape: {kind: found}`"),
        ("family small --to wide.yaml", "family: was removed; `grow RUN --to RECIPE` for each size, or `compare`"),
        ("bake run --out baked", "bake: was removed; `widthwise export` folds"),
        ("explore base.yaml model.d_modl=3 --no-browser", "did you mean 'd_model'?"),
        ("explore base.yaml --port 65536", "--port: got 65536"),
    ],
    "sweep": [
        ("sweep base.yaml", "has no sweep section"),
        ("sweep base.yaml --over optimizer.lr", "expected key=value,value"),
        (f"sweep base.yaml {OVER} --match weight", "match.quantity: got 'weight'"),
        (f"sweep base.yaml {OVER} --sampler tpe", "search.n_trials: is required but missing"),
        ("sweep ladder.yaml", "ladder: was removed; use a `sweep` section with rungs"),
    ],
    "grow": [
        ("grow small --to wide.yaml", "--out: is required"),
        ("grow small --out large", "no target given"),
        (f"grow small {TO} --layers 0,1,neu", "--layers: got 'neu'"),
        (f"grow small {TO} --reset new", "--reset: was removed"),
        ("grow small 'model.shape={kind: x}' --out large", "give the run's recipe, as --to RECIPE 'model.shape="),
        ("grow small model.d_model=48 --out large", "or use --d-model"),
        ("grow small --to wide.yaml --out small", "small: exists already"),
        (f"grow small {TO} --d-ff 192", "--to: conflicts with --d-ff"),
        ("grow small --d-ff 1000000000000 --out large", "d_ff: got 1000000000000; input should be less than or equal"),
        ("shrink small", "--out: is required, unless --plan-only is given"),
        ("shrink small --plan-only --flops 1.5", "1.5"),
    ],
    "generate": [
        ("generate run --seed 100000000000000000000", "--seed: got 100000000000000000000; input should be less"),
        ("generate run --max-new-tokens 0", "--max-new-tokens: got 0"),
        ("generate small --prompt \udcff", "--prompt: '\\udcff' is not UTF-8 text"),
        ("generate small --speculative --temperature 0.7", "--temperature 0.7"),
        ("generate small --speculative --temperature 0", "model.mtp"),
    ],
    "analyze": [
        ("analyze absent", "absent: is not a run directory (no config.yaml); there is no such folder"),
        ("analyze small --out small", "small: holds config.yaml, whose report would be replaced; choose another"),
        ("fit points.csv --x compute --y los", "--y: got 'los'; did you mean 'loss'?"),
        (
            "fit none.csv --x compute",
            "none.csv: is not a .csv file, a run directory (config.yaml), or a folder with outcome.json",
        ),
    ],
    "eval": [
        ("eval small --tasks piqa,", "--tasks: got ''; string should have at least 1 character"),
        ("eval small --device gpu", "device: got 'gpu'; torch has no such device on this machine"),
        ("eval small --data nowhere", "nowhere: no such folder; looked at "),
        ("eval small --step 3 --every-checkpoint", "--step: got 3; conflicts with --every-checkpoint"),
        ("eval small --report small", "holds config.yaml"),
    ],
    "data": [
        ("data prepare points.csv --out out --held-out 0.1 --held-out-from points.csv", "got 0.1; conflicts"),
        ("data prepare a.txt --out out --held-out 0.000001 --tokenizer bytes", "(on the command line --held-out), or"),
        ("data adopt --train x --out out --tokenizer bytes", "--held-out"),
    ],
}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def world(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("mistakes"), dirs_exist_ok=True)
    texts = {"pair.yaml": COMPARED, "swept.yaml": SWEPT, "ladder.yaml": "extends: base.yaml\nladder: {}\n"}
    texts |= {"a.txt": "a", "points.csv": "name,compute,loss\na,1,3\nb,3,2.9\nc,9,2.8\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("group", MISTAKES)
def test_a_mistake_in_a_command_is_one_line_and_changes_nothing(group: str, world: Path, refused, monkeypatch) -> None:
    monkeypatch.chdir(world)
    before = files(world)
    for command, named in MISTAKES[group]:
        assert named in refused(*shlex.split(command))
        assert (command, files(world)) == (command, before)
