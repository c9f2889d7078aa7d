"""The verbs from argument to output, on tiny models."""

import json
import re
from pathlib import Path

import pytest
import yaml

from widthwise.recipe.recipe import load_recipe
from widthwise.reports.page.formats import signed


def test_inspect_prints_one_object_with_the_promised_keys(recipe: Path, widthwise) -> None:
    code, out, _ = widthwise("inspect", recipe, "model.shape={kind: x, bottleneck_width: 0.5}", "--json")
    summary = json.loads(out)
    assert code == 0
    assert len(summary["widths"]) == len(summary["n_heads"]) == len(summary["head_dim"]) == len(summary["layers"]) == 6
    assert summary["average_width"] == sum(summary["widths"]) / 6
    parts = {"embedding", "attention", "ffn", "norm", "residual", "head", "mtp"}
    assert set(summary["params"]) == parts | {"total", "active", "dead"}
    assert summary["params"]["total"] == sum(summary["params"][part] for part in parts)
    flops = summary["flops_per_token"]
    assert flops["training"] == 3 * flops["forward"]
    assert flops["training_mtp"] == 0
    assert set(summary["flops_by_part"]) == parts
    assert sum(summary["flops_by_part"].values()) == flops["forward"]
    score_flops = 4 * 24 * sum(h * d for h, d in zip(summary["n_heads"], summary["head_dim"]))
    assert flops["forward"] - flops["forward_causal"] == score_flops / 2
    assert summary["kv_bytes_per_token"] == 2 * 2 * sum(summary["widths"])
    assert summary["baseline"]["widths"] == [32] * 6
    assert summary["n_tokens"] == 3 * 4 * 24


def test_inspect_against_another_recipe(recipe: Path, tmp_path: Path, widthwise) -> None:
    (tmp_path / "wide.yaml").write_text("extends: base.yaml\nmodel: {d_model: 64}\n")
    _, out, _ = widthwise("inspect", tmp_path / "wide.yaml", "--against", recipe, "--json")
    assert json.loads(out)["ratio"]["average_width"] == 2.0
    code, table, _ = widthwise("inspect", tmp_path / "wide.yaml", "--against", recipe)
    assert code == 0
    assert "2.0000" in table


SLOTS = "model.residual={kind: hyper_connections, n_fractions: 4, n_slots: 12, embedding: expand}"


def test_inspect_shows_a_virtual_width_beside_the_plain_model(recipe: Path, widthwise) -> None:
    code, table, _ = widthwise("inspect", recipe, SLOTS, "model.mtp={n_depths: 2}")
    assert code == 0
    header, lines = table.rsplit("costs", 1)[1].split("parameters", 1)[0], table.splitlines()
    for word in ("model", "hyper_connections", "mtp 2", "baseline", "plain", "uniform", "ratio"):
        assert word in header
    values = {name: cells for name, *cells in (re.split(" {2,}", line.strip()) for line in lines)}
    assert values["width of the stream"] == ["96", "32", "3.0000"]
    assert values["virtual width, times d_model"] == ["3", "1", "3.0000"]
    sites, reduction, gains = 6 * 2 * (2 * 12 * 20 + 8 * 20 + 8), 96 * 32, 96
    assert values["parameters, residual"] == [f"{sites + reduction + gains:,}", "0", "-"]
    assert values["FLOPs per token, forward, embedding"] == [f"{2 * 32 * 96:,}", "0", "-"]
    _, out, _ = widthwise("inspect", recipe, SLOTS, "model.mtp={n_depths: 2}", "--json")
    summary = json.loads(out)
    assert values["parameters, mtp"] == [f"{summary['params']['mtp']:,}", "0", "-"]
    assert "FLOPs per token, forward, mtp" not in values
    assert values["FLOPs per token, training, mtp"] == [f"{3 * summary['flops_by_part']['mtp']:,}", "0", "-"]
    assert summary["flops_per_token"]["training"] > 3 * summary["flops_per_token"]["forward"]


def test_a_part_that_no_model_has_is_not_shown(recipe: Path, widthwise) -> None:
    _, table, _ = widthwise("inspect", recipe)
    assert "mtp" not in table
    assert "residual" not in table


def test_inspect_counts_the_layers_without_embedding_head_and_gains(recipe: Path, widthwise) -> None:
    _, table, _ = widthwise("inspect", recipe)
    (line,) = (line for line in table.splitlines() if "parameters, layers without norms" in line)
    assert f" {6 * 16 * 32**2:,} " in line


@pytest.mark.parametrize("match", ["params", "layer_params", "flops", "flops_causal", "kv_bytes"])
def test_design_writes_a_recipe_that_meets_its_budget(match: str, recipe: Path, tmp_path: Path, widthwise) -> None:
    out = tmp_path / "made" / "shape.yaml"
    asked = ("--turn-layer", 0.5, "--turn-width", 0.5, "--match", match, "model.d_model=256", "model.n_layers=12")
    code, _, error = widthwise("design", recipe, *asked, "--out", out)
    assert code == 0, error
    _, text, _ = widthwise("inspect", out, "--json")
    summary = json.loads(text)
    assert summary["ratio"][match] == pytest.approx(1, abs=1e-3)
    assert min(summary["widths"]) == summary["widths"][5] == 128
    again, _, error = widthwise("design", recipe, "--out", out)
    assert again == 2
    assert "exists already" in error


def test_verbs_name_the_command_that_comes_next_which_works(
    recipe: Path, widthwise, next_command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)

    def then(*arguments: object, **filled: str) -> list[str]:
        code, out, error = widthwise(*arguments)
        assert code == 0, error
        return next_command(out, **filled)

    train = then(*then("design", "base.yaml", "train.steps=2", "--kind", "x", RECIPE="x.yaml"))
    assert train == ["train", "x.yaml"]
    small = ("data.tokenizer=bpe-512", "model.vocab_size=512", "seq_len=512")
    asked = ("plan", *small, "--params", "100k", "--device", "24GB")
    assert then(*then(*asked, RECIPE="planned.yaml")) == ["train", "planned.yaml"]
    assert then("plan", "x.yaml", "train.seed=4", "--device", "24GB") == ["train", "x.yaml", "train.seed=4"]
    assert widthwise(*train, "--out", "run")[0] == 0
    grow = ("grow", "run", "--add-layers", 1, "train.steps=3", "--plan-only")
    resume = then(*then(*grow, RUN="grown run"))
    assert resume == ["resume", "grown run"]
    assert widthwise(*resume)[0] == 0


def test_design_sizes_and_shapes_a_stream_of_slots(recipe: Path, tmp_path: Path, widthwise) -> None:
    """d_model is a multiple of head and slot, 24; no other is nearer to the budget."""
    stream = "model.residual={kind: hyper_connections, slot_width: 12, n_slots: 40}"
    out = tmp_path / "slots.yaml"
    asked = ("--turn-width", 0.5, "--turn-layer", 0.5, "--budget", "700k", "--out", out)
    code, _, error = widthwise("design", recipe, stream, *asked)
    assert code == 0, error
    _, text, _ = widthwise("inspect", out, "--json")
    summary = json.loads(text)
    assert summary["d_model"] % 24 == 0
    assert all(width % 24 == 0 for width in summary["widths"])
    budgets = []
    for d_model in (summary["d_model"] - 24, summary["d_model"], summary["d_model"] + 24):
        _, text, _ = widthwise("inspect", recipe, stream, f"model.d_model={d_model}", "--json")
        budgets.append(json.loads(text)["params"]["total"])
    assert min(budgets, key=lambda params: abs(params - 700_000)) == budgets[1]
    assert summary["baseline"]["params"]["total"] == budgets[1]


def test_a_designed_recipe_keeps_the_overrides(recipe: Path, tmp_path: Path, widthwise) -> None:
    out = tmp_path / "shape.yaml"
    changes = ("optimizer.betas=[0.8, 0.9]", "optimizer.betas.0=0.7", "model.d_model=64")
    assert widthwise("design", recipe, *changes, "--out", out)[0] == 0
    written = load_recipe(out)
    assert written.optimizer.betas == (0.7, 0.9)
    assert written.explicit_model.d_model == 64
    assert written.train == load_recipe(recipe).train


def test_design_fits_the_model_to_a_budget(recipe: Path, widthwise) -> None:
    """To the nearest d_model, here 96 (935,328 parameters) or 104 (1,093,144), and the miss is said."""

    def params(d_model: int) -> int:
        return 6 * (16 * d_model**2 + 2 * d_model) + (2 * 257 + 1) * d_model

    for budget, d_model in (("1.01M", 96), ("1.03M", 104)):
        asked = ("design", recipe, "--kind", "uniform", "--budget", budget)
        summary = json.loads(widthwise(*asked, "--json")[1])
        miss = params(d_model) / (float(budget[:-1]) * 1e6) - 1
        assert summary["params"]["total"] == params(d_model)
        assert summary["budget"]["miss"] == pytest.approx(miss)
        assert f"budget: {budget} params, missed by {signed(100 * miss, 2)}%" in widthwise(*asked)[1]


def test_design_fits_the_layers_of_an_hourglass_to_a_budget(recipe: Path, widthwise) -> None:
    """As the paper counts: attention and feed-forward, 6 d (4 d + 3 K d_hidden) with K = 3 and d_hidden = 0.5 d."""
    hourglass = "model.ffn={kind: hourglass, n_blocks: 3, ratio: 0.5}"
    asked = ("design", recipe, hourglass, "--kind", "uniform", "--match", "layer_params", "--budget", "0.5M", "--json")
    summary = json.loads(widthwise(*asked)[1])
    layers = {d: 6 * d * (4 * d + 9 * d // 2) for d in range(8, 200, 8)}
    assert summary["d_model"] == min(layers, key=lambda d: abs(layers[d] - 500_000))
    assert summary["budget"] == {
        "match": "layer_params",
        "asked": 500_000,
        "miss": pytest.approx(layers[summary["d_model"]] / 500_000 - 1),
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--kind", "diamond", "--turn-width", 30), "largest feasible ratio"),
        (("--kind", "growing", "--turn-layer", 0.5), "--turn-layer"),
        (("--kind", "oval"), "'oval'"),
        (("--budget", "10"), "too small"),
        (("--budget", "many"), "30M"),
        (("--match", "speed"), "speed"),
    ],
)
def test_design_says_what_would_be_feasible(arguments: tuple, named: str, recipe: Path, widthwise) -> None:
    code, _, error = widthwise("design", recipe, *arguments)
    assert code == 2
    assert error.count("\n") == 1
    assert named in error


def test_compare_trains_reports_and_continues(recipe: Path, tmp_path: Path, widthwise) -> None:
    shape = {"model": {"shape": {"kind": "x", "bottleneck_width": 0.5, "rounding": "balanced"}}}
    data = {
        "extends": recipe.name,
        "compare": {"seeds": [1, 2], "match": "none", "variants": {"uniform": {}, "x": shape}},
    }
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    folder = tmp_path / "out"
    code, out, error = widthwise("compare", tmp_path / "pair.yaml", "train.steps=2", "--out", folder)
    assert code == 0, error
    assert "fewer than three seeds, so no verdict" in " ".join(out.split())
    command = json.loads((folder / "comparison.json").read_text())["command"]
    assert command.startswith("widthwise compare ")
    assert command.endswith("pair.yaml train.steps=2 --out out")
    for name in ("comparison.json", "report.html", "table.csv", "table.tex", "runs/uniform-seed1/result.json"):
        assert (folder / name).is_file()
    code, out, error = widthwise("compare", tmp_path / "pair.yaml", "train.steps=2", "--out", folder, "--json")
    assert code == 0
    assert json.loads(out)["baseline"] == "uniform"
    assert error.count("has finished already") == 4


def test_generate_continues_every_prompt(recipe: Path, tmp_path: Path, widthwise) -> None:
    run = tmp_path / "run"
    assert widthwise("train", recipe, "--out", run)[0] == 0
    arguments = ("generate", run, "--prompt", "the", "--prompt", "a longer one", "--max-new-tokens", 5, "--json")
    code, out, _ = widthwise(*arguments)
    answers = json.loads(out)["continuations"]
    assert code == 0
    assert [answer["prompt"] for answer in answers] == ["the", "a longer one"]
    assert widthwise(*arguments)[1] == out
    code, out, _ = widthwise("generate", run, "--temperature", 0, "--max-new-tokens", 3)
    assert code == 0
    code, _, error = widthwise("generate", run, "--prompt", "\udcff")
    assert (code, error) == (2, "error: --prompt: '\\udcff' is not UTF-8 text\n")


def test_generate_drafts_with_the_heads_for_later_tokens(recipe: Path, tmp_path: Path, widthwise) -> None:
    run, plain = tmp_path / "run", tmp_path / "plain"
    code, out, error = widthwise("train", recipe, "model.mtp={n_depths: 2}", "--out", run)
    assert code == 0
    assert re.search(r"step 3/3  validation loss \d\.\d{4}  mtp \d\.\d{4} \d\.\d{4}$", error, re.MULTILINE)
    assert re.search(r"^  further heads next-2 \d\.\d{4}, next-3 \d\.\d{4}$", out, re.MULTILINE)
    greedy = ("--prompt", "the", "--prompt", "a longer one", "--max-new-tokens", 7, "--temperature", 0)
    expected = json.loads(widthwise("generate", run, *greedy, "--json")[1])
    found = json.loads(widthwise("generate", run, *greedy, "--speculative", "--json")[1])
    drafting = found.pop("speculative")
    assert found == expected
    assert set(drafting) == {"accept_rate", "tokens_per_pass", "tokens_per_second"}
    code, out, error = widthwise("generate", run, *greedy, "--speculative")
    assert code == 0
    assert out == widthwise("generate", run, *greedy)[1]
    assert error.startswith(f"{drafting['accept_rate']:.1%} of the drafts accepted, ")
    assert re.search(r", [\d.]+ tokens a pass, [\d,.]+ tokens/s\n$", error)

    assert widthwise("generate", run, *greedy[:-2], "--speculative")[1] == out  # greedy if nothing else is said
    code, _, error = widthwise("generate", run, "--speculative", "--temperature", 0.7)
    assert (code, error.count("\n")) == (2, 1)
    assert "--temperature 0.7" in error
    assert widthwise("train", recipe, "--out", plain)[0] == 0
    code, _, error = widthwise("generate", plain, "--temperature", 0, "--speculative")
    assert (code, error.count("\n")) == (2, 1)
    assert "model.mtp" in error


def test_a_run_that_diverges_exits_with_1(recipe: Path, tmp_path: Path, widthwise) -> None:
    code, _, error = widthwise(
        "train", recipe, "optimizer.lr=1e30", "train.log_every=1", "train.steps=20", "--out", tmp_path / "run"
    )
    assert code == 1
    assert error.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in error


@pytest.mark.parametrize("verb", ["inspect", "design", "train", "resume", "compare", "generate", "report"])
def test_help_has_an_example(verb: str, widthwise) -> None:
    code, out, _ = widthwise(verb, "--help")
    assert code == 0
    assert f"widthwise {verb}" in out.split("Usage", 1)[1].split("\n", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("inspect",), "'recipe'"),
        (("no-such-verb",), "'no-such-verb'"),
        (("inspect", "x.yaml", "--jsn"), "--json"),
        (("design", "x.yaml", "--turn-layer", "deep"), "'--turn-layer'"),
        (("generate", "run", "--seed", 10**20), "'--seed'"),
        (("generate", "run", "--max-new-tokens", 0), "'--max-new-tokens'"),
        (("compare", "train.steps=3"), "got no recipe"),
        (("compare", "x.yaml", "--study", "mine"), "goes with --storage"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(arguments: tuple, named: str, widthwise) -> None:
    code, out, error = widthwise(*arguments)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert named in error


def test_a_folder_that_may_not_be_entered_is_one_line(tmp_path: Path, widthwise, monkeypatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert widthwise("report", tmp_path) == (2, "", f"error: {tmp_path}/planned.json: Permission denied\n")


@pytest.mark.parametrize(
    "arguments", [("inspect", "x.yaml"), ("export", "run", "folder"), ("data", "prepare", "x.txt"), ("lm_eval", "run")]
)
def test_a_verb_of_one_process_is_refused_once_under_torchrun(arguments: tuple, widthwise, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    found = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        found.append(widthwise(*arguments))
    assert [(code, out) for code, out, _ in found] == [(2, "")] * 3
    first, *others = (error for _, _, error in found)
    assert first.startswith(f"error: WORLD_SIZE: got 3; `widthwise {arguments[0]}` ")
    assert (first.count("\n"), others) == (1, ["", ""])


def test_one_process_under_torchrun_runs_every_verb(recipe: Path, widthwise, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert widthwise("inspect", recipe)[0] == 0


def test_no_arguments_print_the_help_alone(widthwise) -> None:
    code, out, error = widthwise()
    assert (code, error) == (2, "")
    assert "compare" in out


@pytest.mark.parametrize("verb", ["train", "design"])
def test_a_verb_for_one_run_refuses_a_comparison(verb: str, recipe: Path, tmp_path: Path, widthwise) -> None:
    data = {"extends": recipe.name, "compare": {"variants": {"uniform": {}, "same": {}}}}
    (tmp_path / "pair.yaml").write_text(yaml.safe_dump(data))
    code, _, error = widthwise(verb, tmp_path / "pair.yaml")
    assert code == 2
    assert error.count("\n") == 1
    assert "pair.yaml: has a compare section" in error
    assert "`widthwise compare`" in error


def test_inspect_changes_both_recipes(recipe: Path, tmp_path: Path, widthwise) -> None:
    (tmp_path / "wide.yaml").write_text("extends: base.yaml\nmodel: {d_model: 64}\n")
    _, out, _ = widthwise("inspect", tmp_path / "wide.yaml", "model.n_layers=3", "--against", recipe, "--json")
    assert json.loads(out)["n_layers"] == json.loads(out)["baseline"]["n_layers"] == 3


COMPARED = """extends: base.yaml
compare:
  match: {quantity: params, adjust: ffn}
  variants: {base: {}, narrow: {model: {d_model: 24}}}
"""


def test_inspect_shows_all_variants_and_what_was_adjusted(recipe: Path, tmp_path: Path, widthwise) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(COMPARED)
    _, out, _ = widthwise("inspect", path, "--json")
    base, narrow = json.loads(out)["variants"]
    assert narrow["ratio"]["params"] == narrow["params"] / base["params"]
    code, table, _ = widthwise("inspect", path)
    assert code == 0
    assert f"{narrow['ratio']['params']:.4f}" in table
    assert f"narrow: model.ffn.ratio 4 -> {narrow['adjusted']['changes'][0]['after']:.7g}, params missed by" in table
    _, alone, _ = widthwise("inspect", path, "--variant", "narrow", "--json")
    assert json.loads(alone)["params"]["total"] == narrow["params"]


def test_train_takes_one_variant(recipe: Path, tmp_path: Path, monkeypatch, widthwise) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pair.yaml"
    path.write_text(COMPARED)
    _, out, _ = widthwise("inspect", path, "--variant", "narrow", "--json")
    code, _, _ = widthwise("train", path, "--variant", "narrow", "--json")
    assert code == 0
    result = json.loads((tmp_path / "runs" / "pair-narrow" / "result.json").read_text())
    assert result["cost"]["hidden_widths"] == json.loads(out)["hidden_widths"]
