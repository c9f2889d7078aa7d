"""Options that must not change a bit of the records and weights of a run."""

import pytest
from growing_runs import GROWING, TWICE
from tiny_runs import SAMPLES, outcome, tiny_recipe

from widthwise.runs.train import train

RECOMPUTING = ("train.activation_checkpointing=layer", "train.activation_checkpointing=selective")
NORMS = "train.norms_every=2"
SPIKES = "train.on_spike={kind: skip, factor: 1000, window_steps: 3, max_skipped: 2}"
MIXTURE = "model.ffn={kind: moe, n_experts: 3, top_k: 2}"
BY_TOKEN = "model.ffn={kind: dynamic, d_ff: 9, score: {kind: linear}}"
CASES = {
    "an x": ((), (SAMPLES, SPIKES)),
    "an x in bf16 that recomputes": (("train.precision=bf16", RECOMPUTING[1]), (NORMS,)),
    "an x that grows twice": ((TWICE,), RECOMPUTING[:1]),
    "a mixture in bf16": (("train.precision=bf16", MIXTURE), RECOMPUTING[1:]),
    "dynamic widths in bf16": (("train.precision=bf16", BY_TOKEN), (SAMPLES,)),
    "slots that grow": (GROWING["slots"], (NORMS,)),
}
"""Name -> overrides of the recipe, and options that are added one at a time."""


@pytest.mark.parametrize("name", CASES)
def test_no_bit_of_the_run_changes(tmp_path, name):
    overrides, options = CASES[name]
    recipe = tiny_recipe(*overrides)
    train(recipe, tmp_path / "without")
    for option in options:
        train(tiny_recipe(*overrides, option), tmp_path / option)
        found = outcome(tmp_path / option)
        norms = [record for record in found["metrics"] if record["event"] == "norms"]
        n_layers = [(step, recipe.model_at(step).n_layers) for step in (2, 4, 6, 8) if option == NORMS]
        assert [(record["step"], len(record["grad_norms"])) for record in norms] == n_layers
        found["metrics"] = [record for record in found["metrics"] if record["event"] != "norms"]
        assert found == outcome(tmp_path / "without")
    assert not (tmp_path / "without" / "samples.jsonl").exists()
