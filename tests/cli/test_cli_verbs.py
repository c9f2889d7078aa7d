"""The verbs from argument to output, on tiny models: inspect, design, compare, generate, and what all share."""

import json
import re
from pathlib import Path

import pytest
import typer
import yaml

from widthwise.cli.main import app
from widthwise.cli.options import Command
from widthwise.experiments.compare import read_plan
from widthwise.recipe.recipe import load_recipe
from widthwise.reports.formats import signed

SLOTS = "model.residual={kind: hyper_connections, n_fractions: 4, n_slots: 12, embedding: expand}"


def test_inspect_prints_one_object_with_the_promised_keys(recipe: Path, answer) -> None:
    summary = answer("inspect", recipe, "model.shape={kind: x, bottleneck_width: 0.5}")
    assert len(summary["widths"]) == len(summary["n_heads"]) == len(summary["head_dim"]) == len(summary["layers"]) == 6
    assert summary["average_width"] == sum(summary["widths"]) / 6
    parts = {"embedding", "attention", "ffn", "norm", "residual", "head", "mtp"}
    assert set(summary["params"]) == parts | {"total", "active", "dead"}
    assert summary["params"]["total"] == sum(summary["params"][part] for part in parts)
    flops = summary["flops_per_token"]
    assert flops["training"] == 3 * flops["forward"] == 3 * sum(summary["flops_by_part"].values())
    score_flops = 4 * 24 * sum(h * d for h, d in zip(summary["n_heads"], summary["head_dim"]))
    assert flops["forward"] - flops["forward_causal"] == score_flops / 2
    assert summary["kv_bytes_per_token"] == 2 * 2 * sum(summary["widths"])
    assert summary["baseline"]["widths"] == [32] * 6
    assert summary["n_tokens"] == 3 * 4 * 24


def test_inspect_compares_with_another_recipe_and_changes_both(recipe: Path, succeeds, answer) -> None:
    wide = recipe.with_name("wide.yaml")
    wide.write_text("extends: base.yaml\nmodel: {d_model: 64}\n")
    asked = ("inspect", wide, "model.n_layers=3", "--against", recipe)
    found = answer(*asked)
    assert (found["ratio"]["average_width"], found["n_layers"], found["baseline"]["n_layers"]) == (2.0, 3, 3)
    assert "2.0000" in succeeds(*asked)[0]


def test_inspect_shows_a_virtual_width_beside_the_plain_model(recipe: Path, succeeds, answer) -> None:
    asked = ("inspect", recipe, SLOTS, "model.mtp={n_depths: 2}")
    table, summary = succeeds(*asked)[0], answer(*asked)
    header = table.rsplit("costs", 1)[1].split("parameters", 1)[0]
    assert all(word in header for word in ("hyper_connections", "mtp 2", "plain", "uniform"))
    values = {name: cells for name, *cells in (re.split(" {2,}", line.strip()) for line in table.splitlines())}
    assert values["width of the stream"] == ["96", "32", "3.0000"]
    sites, reduction, gains = 6 * 2 * (2 * 12 * 20 + 8 * 20 + 8), 96 * 32, 96
    assert values["parameters, residual"] == [f"{sites + reduction + gains:,}", "0", "-"]
    assert "FLOPs per token, forward, mtp" not in values
    assert values["FLOPs per token, training, mtp"] == [f"{3 * summary['flops_by_part']['mtp']:,}", "0", "-"]


def test_a_part_that_no_model_has_is_not_shown_and_layers_are_counted_alone(recipe: Path, succeeds) -> None:
    table, _ = succeeds("inspect", recipe)
    assert not re.search("mtp|residual", table)
    (line,) = (line for line in table.splitlines() if "parameters, layers without norms" in line)
    assert f" {6 * 16 * 32**2:,} " in line


@pytest.mark.parametrize("match", ["params", "kv_bytes"])
def test_design_writes_a_recipe_that_meets_its_budget(match: str, recipe, tmp_path, succeeds, answer, refused) -> None:
    out = tmp_path / "made" / "shape.yaml"
    asked = ("--turn-layer", 0.5, "--turn-width", 0.5, "--match", match)
    changes = ("model.d_model=256", "model.n_layers=12", "optimizer.betas=[0.8, 0.9]", "optimizer.betas.0=0.7")
    succeeds("design", recipe, *asked, *changes, "--out", out)
    assert load_recipe(out).optimizer.betas == (0.7, 0.9)
    summary = answer("inspect", out)
    assert summary["ratio"][match] == pytest.approx(1, abs=1e-3)
    assert min(summary["widths"]) == summary["widths"][5] == 128
    assert "exists already" in refused("design", recipe, "--out", out)
    base = tmp_path / "several.yaml"
    base.write_text("extends: made/shape.yaml\ncompare: {variants: {a: {}, b: {}}}\n")
    succeeds("design", base, *asked, "compare=null", "--out", tmp_path / "one.yaml")
    assert load_recipe(tmp_path / "one.yaml").model == load_recipe(out).model


def test_verbs_name_the_command_that_comes_next_which_works(
    recipe: Path, succeeds, next_command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)

    def then(*arguments: object, **filled: str) -> list[str]:
        out, _ = succeeds(*arguments)
        return next_command(out, **filled)

    train = then(*then("design", "base.yaml", "train.steps=2", "--kind", "x", RECIPE="x.yaml"))
    assert train == ["train", "x.yaml"]
    small = ("data.tokenizer=bpe-512", "model.vocab_size=512", "seq_len=512")
    asked = ("plan", *small, "--params", "100k", "--device", "24GB")
    assert then(*then(*asked, RECIPE="planned.yaml")) == ["train", "planned.yaml"]
    assert then("plan", "x.yaml", "train.seed=4", "--device", "24GB") == ["train", "x.yaml", "train.seed=4"]
    succeeds(*train, "--out", "run")
    grow = ("grow", "run", "--add-layers", 1, "train.steps=3", "--plan-only")
    resume = then(*then(*grow, RUN="grown run"))
    assert resume == ["resume", "grown run"]
    succeeds(*resume)


HOURGLASS = "model.ffn={kind: hourglass, n_blocks: 3, ratio: 0.5}"
STREAM = "model.residual={kind: hyper_connections, slot_width: 12, n_slots: 40}"


@pytest.mark.parametrize(
    ("change", "match", "budget", "step"),
    [
        ("train.steps=3", "params", 1.01e6, 8),
        ("train.steps=3", "params", 1.03e6, 8),
        (HOURGLASS, "layer_params", 5e5, 8),
        (STREAM, "params", 7e5, 24),
    ],
)
def test_design_fits_the_model_to_a_budget_by_the_nearest_width(
    change: str, match: str, budget: float, step: int, recipe: Path, succeeds, answer
) -> None:
    """step: least common multiple of head and slot. The miss is said."""
    asked = ("design", recipe, change, "--kind", "uniform", "--match", match, "--budget", budget)
    summary = answer(*asked)
    costs = {}
    for d_model in (summary["d_model"] - step, summary["d_model"], summary["d_model"] + step):
        params = answer("inspect", recipe, change, f"model.d_model={d_model}")["params"]
        costs[d_model] = params["total"] if match == "params" else params["attention"] + params["ffn"]
    assert min(costs, key=lambda d_model: abs(costs[d_model] - budget)) == summary["d_model"]
    miss = costs[summary["d_model"]] / budget - 1
    assert summary["budget"] == {"match": match, "asked": budget, "miss": pytest.approx(miss)}
    assert f"missed by {signed(100 * miss, 2)}%" in succeeds(*asked)[0]


COMPARED = """extends: base.yaml
compare:
  seeds: [3, 5]
  match: {quantity: params, adjust: {narrow: ffn}}
  variants: {base: {}, narrow: {model: {d_model: 24}}, same: {}}
"""


@pytest.fixture
def compared(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(recipe.parent)
    recipe.with_name("pair.yaml").write_text(COMPARED)
    return "pair.yaml"


def test_inspect_shows_all_variants_and_train_takes_one(compared: str, succeeds, answer) -> None:
    base, narrow, _ = answer("inspect", compared)["points"]
    assert narrow["ratio"]["params"] == narrow["params"] / base["params"]
    table, _ = succeeds("inspect", compared)
    assert f"{narrow['ratio']['params']:.4f}" in table
    assert f"narrow: model.ffn.ratio 4 -> {narrow['adjusted']['changes'][0]['after']:.7g}, params missed by" in table
    alone = answer("inspect", compared, "--variant", "narrow")
    assert alone["params"]["total"] == narrow["params"]
    assert answer("train", compared, "--variant", "narrow")["cost"]["hidden_widths"] == alone["hidden_widths"]
    assert Path("runs/pair-narrow/result.json").is_file()


def test_a_dry_run_of_a_comparison_shows_the_work_and_does_none(compared: str, succeeds, answer) -> None:
    out, error = succeeds("compare", compared, "--out", "out", "--dry-run")
    assert error == ""
    plan = read_plan(compared)
    adjustment = plan.points["narrow"].adjustment
    (narrow,) = [line for line in out.splitlines() if line.startswith("narrow ")]
    assert narrow.endswith(f"{100 * abs(adjustment.miss):.3f}%")
    assert "3 variants x 2 seeds: 6 runs of 3 steps and" in " ".join(out.split())
    assert f"narrow: {adjustment}" in out
    planned = read_plan(compared, ["train.steps=3"], [7]).workload()
    assert answer("compare", compared, "--seed", 7, "train.steps=3", "--dry-run") == json.loads(json.dumps(planned))
    assert not Path("out").exists()


def test_compare_trains_reports_and_continues(recipe: Path, tmp_path: Path, succeeds) -> None:
    """The recipe's name has a `=`; the variants differ in their rate, too, which is said wherever they are compared."""
    shape = {"model": {"shape": {"kind": "x", "bottleneck_width": 0.5, "rounding": "balanced"}}}
    compare = {"seeds": [1, 2], "match": "none", "variants": {"uniform": {}, "x": {**shape, "optimizer": {"lr": 0.03}}}}
    path, folder = tmp_path / "lr=0.03.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump({"extends": recipe.name, "compare": compare}, sort_keys=False))
    asked = ("compare", path, "train.steps=2", "model.n_layers=4", "optimizer.lr=0.01", "--out", folder)
    out, _ = succeeds(*asked)
    assert out.endswith(f"wrote {folder}/report.html\n")
    assert out.index("no verdict") < out.index("──")  # the answer is above the table
    assert "x differs from uniform in optimizer.lr 0.03 rather than 0.01." in " ".join(out.split())
    found = json.loads((folder / "outcome.json").read_text())
    assert found["command"].startswith("widthwise compare ")
    assert found["command"].endswith("yaml train.steps=2 model.n_layers=4 optimizer.lr=0.01 --out out")
    for name in ("report.html", "table.csv", "table.tex", "runs/uniform-seed1/result.json"):
        assert (folder / name).is_file()
    out, error = succeeds(*asked, "--json")
    assert (json.loads(out)["baseline"], error.count("has finished already")) == ("uniform", 4)


def test_generate_drafts_with_the_heads_for_later_tokens(recipe: Path, tmp_path: Path, succeeds, answer) -> None:
    run = tmp_path / "run"
    out, error = succeeds("train", recipe, "model.mtp={n_depths: 2}", "model.n_layers=2", "--out", run)
    assert re.search(r"step 3/3  validation loss \d\.\d{4}  mtp \d\.\d{4} \d\.\d{4}$", error, re.MULTILINE)
    assert re.search(r"^  MTP heads     next-2 \d\.\d{4}, next-3 \d\.\d{4}$", out, re.MULTILINE)
    greedy = ("--prompt", "the", "--prompt", "a longer one", "--max-new-tokens", 7, "--temperature", 0)
    found = answer("generate", run, *greedy, "--speculative")
    assert [row["prompt"] for row in found["continuations"]] == ["the", "a longer one"]
    drafting = found.pop("speculative")
    assert found == answer("generate", run, *greedy)
    assert set(drafting) == {"accept_rate", "tokens_per_pass", "tokens_per_second"}
    out, error = succeeds("generate", run, *greedy[:-2], "--speculative")  # greedy if nothing else is said
    assert out == succeeds("generate", run, *greedy)[0]
    assert error.startswith(f"{drafting['accept_rate']:.1%} of the drafts accepted, ")
    assert re.search(r", [\d.]+ tokens/pass, [\d,.]+ tokens/s\n$", error)


def test_the_checkpoint_of_a_step_is_taken(small: str, answer) -> None:
    for verb in (
        ("generate", small, "--max-new-tokens", 2),
        ("export", small, "exported"),
        ("grow", small, "--d-ff", 160, "--out", "grown"),
    ):
        assert answer(*verb, "--step", 2)["step"] == 2
    assert [path.name for path in Path("grown/checkpoints").iterdir()] == ["step_00000002"]
    steps = [json.loads(line)["step"] for line in Path("grown/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 2


def test_a_folder_that_may_not_be_entered_is_one_line(tmp_path: Path, widthwise, monkeypatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert widthwise("report", tmp_path) == (2, "", f"error: {tmp_path}/outcome.json: Permission denied\n")


def test_under_torchrun_a_verb_of_one_process_is_refused_once(recipe: Path, widthwise, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        code, out, error = widthwise("data", "prepare", "x.txt")
        assert (code, out, error.count("\n")) == (2, "", int(rank == 0))
        assert error.startswith("error: WORLD_SIZE: got 3; `widthwise data` ") == (rank == 0)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert widthwise("inspect", recipe)[0] == 0


def test_every_verb_has_an_example_and_every_option_a_help_and_without_arguments_help_is_printed(widthwise) -> None:
    code, out, error = widthwise()
    assert (code, error, "compare" in out) == (2, "", True)
    commands = [("", typer.main.get_command(app))]
    for prefix, command in commands:
        commands += [(f"{prefix} {name}", sub) for name, sub in getattr(command, "commands", {}).items()]
        if isinstance(command, Command):
            command.describe_options()
            assert f"widthwise{prefix} " in " ".join((command.help or "").split("Example", 1)[1].split()), prefix
            assert not [param.name for param in command.params if not getattr(param, "help", None)], prefix
    assert len(commands) > 25
    code, out, _ = widthwise("generate", "--help")
    assert code == 0
    assert "Text to continue; repeat for a batch." in " ".join(out.replace("│", " ").split())
