"""Runs evaluated and analysed at other checkpoints than the newest."""

from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from widthwise.analysis.model_subjects import DecoderSubject
from widthwise.analysis.profile import Profile
from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut
from widthwise.reports.analysis_tables import findings
from widthwise.run_dir import RunDir
from widthwise.runs.analyse import analyse
from widthwise.runs.evaluate import evaluate_run
from widthwise.runs.trained import HELD_OUT, load_trained

GROWS = (
    "train.validate_every=3",
    "train.checkpoint_every=3",
    "growth=[{at_step: 5, model: {shape: {kind: explicit, widths: [24, 16, 24]}}}]",
)
TOKENS_PER_STEP = 4 * 17


@pytest.fixture(scope="module")
def run(trained) -> Path:
    """Checkpoints and validations of steps 3, 6 and 9; wider after step 5."""
    return trained(*GROWS)


def test_the_held_out_text_gives_the_loss_of_the_validation_of_that_step(run: Path) -> None:
    losses = {record["step"]: record["loss"] for record in RunDir(run).metrics() if record["event"] == "validation"}
    for step in (3, 6, 9):
        found = evaluate_run(run, step=step)
        loss = found.texts[HELD_OUT].metrics["nats_per_token"].value
        assert loss == pytest.approx(losses[step], rel=1e-6)
        assert (found.step, found.tokens) == (step, step * TOKENS_PER_STEP)


def test_an_analysis_looks_into_the_model_of_that_step(run: Path) -> None:
    (model,) = analyse([run], n_tokens=34, step=3)["models"]
    profile = Profile(DecoderSubject(load_trained(run, step=3).model))
    for windows in HeldOut(open_data(tiny_recipe().data), 17, 2, 34, "fp32").batches():
        profile.add(windows)
    assert (model["step"], model["tokens"]) == (3, 3 * TOKENS_PER_STEP)
    assert model["widths"] == [24, 8, 24]
    entropies = [each.entropy for each in profile.summary(name="model", source="", kind="hf", step=None).stream]
    assert [each["entropy"] for each in model["stream"]] == pytest.approx(entropies, rel=1e-4)
    assert analyse([run], n_tokens=34)["models"][0]["widths"] == [24, 16, 24]


def test_every_checkpoint_is_a_model_of_an_analysis(run: Path) -> None:
    found = analyse([run], n_tokens=34, every_checkpoint=True)
    one_by_one = [analyse([run], n_tokens=34, step=step)["models"][0] for step in (3, 6, 9)]
    of_all, of_each = (
        [{**model.to_data(), "name": "", "run": ""} for model in models] for models in (found["models"], one_by_one)
    )
    assert of_all == of_each
    assert [(model["name"], model["run"], model["tokens"]) for model in found["models"]] == [
        (f"run, step {step}", "run", step * TOKENS_PER_STEP) for step in (3, 6, 9)
    ]
    assert found["title"] == "run"
    assert all("run, step 9 than in run, step 3" in sentence for sentence in findings(found))
