"""Texts that the model writes at validations."""

import shutil
from pathlib import Path

import pytest
from tiny_runs import SAMPLES, resumed_alike, tiny_recipe, unfinished_copy

from widthwise.mistakes import UserError
from widthwise.model.generate import SamplingConfig, generate
from widthwise.reports.writing import write_report
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.train import resume, train


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sampled"
    train(tiny_recipe(SAMPLES), path)
    return path


def texts(run: Path) -> list[dict]:
    return RunDir(run).samples_file.records()


def test_every_validation_continues_every_prompt_as_generate_does_and_the_page_runs_no_markup(sampled, tmp_path):
    asked = [(step, prompt) for step in (5, 9) for prompt in ("<b>x", "")]
    assert [(record["step"], record["prompt"]) for record in texts(sampled)] == asked
    page = write_report(sampled, tmp_path)[0].read_text()
    assert "<p>“&lt;b&gt;x”</p>" in page[page.index('id="samples"') :]
    assert page.index("<summary>step 9</summary>") < page.index("<summary>step 5</summary>")
    for step in (5, 9):
        trained = open_model(sampled, step=step)
        prompts = [trained.tokenizer.encode("<b>x"), [trained.tokenizer.eos_id]]
        expected = generate(trained.model, prompts, 7, SamplingConfig(temperature=0.8), 5, trained.tokenizer.eos_id)
        found = [record["text"] for record in texts(sampled) if record["step"] == step]
        assert found == [trained.tokenizer.decode(each) for each in expected]


def test_a_text_ends_with_its_document(tmp_path):
    run, prompts = tmp_path / "run", ["a", "b", "c", "d", "e"]
    sample = f"train.sample={{prompts: {prompts}, n_tokens: 300, temperature: 3}}"
    train(tiny_recipe("train.validate_every=null", sample), run)
    trained = open_model(run)
    encoded, eos_id = [trained.tokenizer.encode(prompt) for prompt in prompts], trained.tokenizer.eos_id
    expected = generate(trained.model, encoded, 300, SamplingConfig(temperature=3), 0, eos_id)
    assert min(map(len, expected)) < 300
    assert [record["text"] for record in texts(run)] == [trained.tokenizer.decode(each) for each in expected]


def test_a_killed_run_has_each_text_once(sampled, tmp_path):
    resumed_alike(sampled, tmp_path, 3)
    assert texts(tmp_path / "from_3") == texts(sampled)
    torn = unfinished_copy(sampled, tmp_path / "torn", 5)
    records = RunDir(torn).metrics()
    kept = [record for record in records if record["step"] < 5]  # killed after the texts, before their validation
    (torn / "metrics.jsonl").unlink()
    shutil.rmtree(torn / "checkpoints" / "step_00000005")
    RunDir(torn).metrics_file.append(kept)
    resume(torn)
    assert texts(torn) == texts(sampled)


def test_a_prompt_that_does_not_fit_is_refused_before_training(tmp_path):
    positions = "model.positions={n_positions: 17}"
    with pytest.raises(UserError, match=r"train\.sample: .*at most 17 tokens"):
        train(tiny_recipe(positions, "train.sample={prompts: [abc], n_tokens: 16}"), tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
