"""Recipes and README say what is true."""

import re
from pathlib import Path

import pytest
import yaml
from recipes import RECIPES, one_of_each_kind, recipe_data

import widthwise
from widthwise.cli.main import PATHS
from widthwise.config_io import checked_copy, parse, to_data
from widthwise.experiments.compare import read_plan
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.shrink import smaller_config
from widthwise.recipe.objective import DistillConfig, TeacherSizes
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.shrinking import sizes_at_budget
from widthwise.runs.plan import plan
from widthwise.runs.train import train
from widthwise.training.devices import Device
from widthwise.yaml_io import merge, parse_yaml, read_recipe, to_yaml

ROOT = Path(__file__).parent.parent
TOY = {
    "model": {"vocab_size": 257, "n_layers": 4},
    "seq_len": 16,
    "data": {"corpus": "synthetic", "tokenizer": "bytes"},
    "schedule": {"warmup_steps": 1},
    "train": {"steps": 2, "batch_size": 2, "micro_batch_size": 1, "compile": False, "validation_tokens": 32},
}
"""What makes any recipe a matter of a second without changing what kind of model it is."""


def toy(data: dict) -> dict:
    """A recipe in toy size; its width fits its heads. One that grows keeps its sizes, and grows at each step. Texts and
    tasks that were fetched are not there to be asked."""
    events = [{**event, "at_step": i} for i, event in enumerate(data.get("growth", []), start=1)]
    n_heads = data["model"].get("attention", {}).get("n_heads")
    sizes = {"model": {"d_model": 8 * n_heads if n_heads else 128}}
    if events:
        sizes = {"model": {key: data["model"][key] for key in ("d_model", "n_layers")}, "growth": events}
        sizes["train"] = {"steps": len(events) + 1}
    data["schedule"].pop("decay_steps", None)
    data.pop("validation", None)
    return merge(merge(data, TOY), sizes)


def test_every_recipe_resolves_and_one_of_each_kind_reads_back_equal() -> None:
    resolved = [(path, parse(Recipe, data, path.name).resolved()) for path in RECIPES for data in recipe_data(path)]
    for path, recipe in one_of_each_kind(resolved, lambda named: to_data(named[1])):
        assert parse(Recipe, parse_yaml(to_yaml(recipe), "dump")) == recipe, path.name


@pytest.mark.hard
def test_every_kind_of_recipe_trains(tmp_path: Path) -> None:
    """In toy size those whose models, optimizers and growth differ in numbers alone are one."""
    toys = [(path, toy(data)) for path in RECIPES for data in recipe_data(path)]
    kinds = one_of_each_kind(toys, lambda named: [named[1].get(key) for key in ("model", "optimizer", "growth")])
    for number, (path, data) in enumerate(kinds):
        result = train(parse(Recipe, data, path.name), tmp_path / str(number))
        assert result["steps"] == max(2, len(data.get("growth", [])) + 1), path.name
        assert result["val_loss"] < 8, path.name


@pytest.mark.parametrize("name", ["quickstart", "compare_ffn", "compare_small", "compare_virtual_width", "evidence"])
def test_a_comparison_is_matched(name: str) -> None:
    assert len(read_plan([Path(name)]).recipes) >= 2


@pytest.mark.hard
def test_every_comparison_is_matched() -> None:
    for path in RECIPES:
        if "compare" in read_recipe(path):
            assert len(read_plan([path]).recipes) >= 2, path


def test_readme_names_every_verb_and_only_what_exists() -> None:
    text = (ROOT / "README.md").read_text()
    commands = text.split("## Commands\n")[1].split("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", commands)) == sorted(PATHS)
    for named in re.findall(r"(?:configs|docs|benchmarks)/[\w./-]*\w", text):
        assert (ROOT / named).exists(), named
    rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"make ([\w-]+)", text)) <= {target for rule in rules for target in rule.split()}


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (widthwise.__version__, "Apache-2.0")


LLAMA_8B = {
    "vocab_size": 128256,
    "d_model": 4096,
    "n_layers": 32,
    "attention": {"head_dim": 128, "kv_group_size": 4, "rope_base": 5e5},
    "ffn": {"kind": "swiglu", "d_ff": 14336},
}


@pytest.mark.hard
def test_costs_of_healing_8b_are_what_the_dry_run_predicts() -> None:
    text = (ROOT / "docs/shrink.md").read_text()
    settings = parse_yaml(text.partition("# heal.yaml\n")[2].partition("```")[0], "heal.yaml")
    recipe = parse(Recipe, {"model": LLAMA_8B, **settings})
    model, seq_len = recipe.explicit_model, recipe.seq_len
    sizes = sizes_at_budget(model, ShrinkOptions(flops=0.7, shape="uniform"), seq_len)
    alone = checked_copy(recipe, "recipe", model=smaller_config(model, sizes))
    distill = DistillConfig(teacher="runs/llama", sizes=TeacherSizes.of("runs/llama", model, seq_len))
    taught = checked_copy(alone, "recipe", train=alone.train.model_copy(update={"distill": distill}))
    found = [plan(each, [8], Device.from_options("h100")) for each in (alone, taught)]
    assert f"({found[0].params / 1e9:.2f}B parameters)" in text
    runs = [each.deployments[0] for each in found]
    rows = {
        "memory of a device": [f"{run.memory.total_bytes / 1e9:.1f} GB" for run in runs],
        "computation of a step": [f"{run.compute_seconds:.2f} s" for run in runs],
        "time of the run": [f"{run.run_hours:.2f} h" for run in runs],
    }
    for name, cells in rows.items():
        assert f"| {name} | {' | '.join(cells)} |" in text, cells
