"""A model of one's own loop as a run, what the verbs do with it, and a run as a model to use."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from boxes import refusal
from tiny_runs import tiny_recipe, unfinished_copy

from widthwise.data.config import open_data
from widthwise.model.decoder import Decoder
from widthwise.recipe.models import build
from widthwise.run_dir import RunDir
from widthwise.runs.analyse import analyse
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.runs.export import export_run
from widthwise.runs.grow import grow_run
from widthwise.runs.listing import listed_run
from widthwise.runs.open import open_model
from widthwise.runs.save import import_plan, import_run, save_run
from widthwise.runs.train import resume

TEXT = "A river is wider where it is slow.\n" * 40
TOKENS = torch.arange(3, 14)[None]


@pytest.fixture
def model() -> Decoder:
    """Weights that no recipe begins with, in bf16 and in training mode."""
    recipe = tiny_recipe("model.shape={kind: uniform}", "model.d_model=24")
    return build(recipe, seed=7, dtype=torch.bfloat16).train()


@pytest.mark.parametrize("wrap", [lambda model: model, torch.compile], ids=["plain", "compiled"])
def test_the_weights_come_back_and_the_model_stays_as_it_was(model: Decoder, wrap: Callable, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    run = save_run(wrap(model), "bytes", tmp_path / "run")
    assert listed_run(run).state == "ready"
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    found = open_model(str(run), device="cpu")
    assert (found.step, found.tokenizer.spec, found.recipe.seq_len) == (0, "bytes", 1024)
    for name, weight in model.named_parameters():
        assert torch.equal(found.model.get_parameter(name), weight.float()), name


def test_every_verb_works_on_it(model: Decoder, tmp_path: Path) -> None:
    (text := tmp_path / "text.txt").write_text(TEXT)
    recipe = tiny_recipe()
    run = save_run(model, open_data(recipe.data).tokenizer, str(tmp_path / "run"), recipe=recipe)
    answers = evaluate_run(run, EvaluationConfig(texts=(text,))).texts[str(text)]
    assert answers.n_bytes == len(TEXT)
    assert analyse(run, text=text, n_tokens=170).models[0].name == "run"
    assert export_run(run, tmp_path / "hf")["model_type"] == "llama"

    grow_run(run, tmp_path / "grown", overrides=["model.layers.0.ffn.d_ff=131"])
    before, after = (open_model(path, "cpu").model(TOKENS) for path in (run, tmp_path / "grown"))
    torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-5)

    assert resume(run).steps == recipe.train.steps
    assert import_run(tmp_path / "hf", tmp_path / "back")["params"] == sum(p.numel() for p in model.parameters())


def test_an_exported_model_is_imported_with_all_its_parameters(tmp_path: Path) -> None:
    model = build(tiny_recipe("model.mtp={n_depths: 1}"))
    export_run(save_run(model, "bytes", tmp_path / "run"), tmp_path / "hf")
    plan = import_plan(tmp_path / "hf")
    n_params = import_run(tmp_path / "hf", tmp_path / "back")["params"]
    assert n_params == plan["cost"]["params"]["total"] == sum(p.numel() for p in model.parameters())
    assert plan["not_imported"] == {}


def test_with_its_data_the_held_out_part_is_read_unasked(model: Decoder, tmp_path: Path) -> None:
    recipe = tiny_recipe()
    data = open_data(recipe.data)
    run = save_run(model, data.tokenizer, tmp_path / "run", recipe, data=data)
    n_tokens = evaluate_run(run, EvaluationConfig()).texts["held-out"].n_tokens
    assert n_tokens == recipe.held_out(data).n_windows * recipe.seq_len
    assert resume(run).val_loss > 0
    other = open_data(tiny_recipe("data.held_out=0.3").data)
    for recipe, tokenizer in ((tiny_recipe(), "bytes"), (tiny_recipe("data.held_out=0.3"), None)):
        message = refusal(save_run, model, tokenizer, tmp_path / "other", recipe, data=other)
        assert re.search(r"data: (got|was tokenised)", message)


def test_mistakes_are_named_before_anything_is_written(tmp_path: Path, model: Decoder) -> None:
    small, run = build(tiny_recipe("model.vocab_size=199")), tmp_path / "run"
    for trained, tokenizer, recipe, message in (
        (small, "bytes", None, "bytes: has 257 tokens; the model has 199"),
        (model, "bpe-300", None, "is trained on a corpus"),
        (model, tmp_path / "no.json", None, "cannot be read"),
        (model, "bytes", tmp_path / "no.yaml", "cannot be read"),
    ):
        assert message in refusal(save_run, trained, tokenizer, run, recipe)
    assert not run.exists()
    save_run(model, "bytes", run)
    assert "run" in refusal(save_run, model, "bytes", run)


def test_model_and_tokenizer_come_from_the_run_alone(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDTHWISE_CACHE", "/nonexistent")
    trained = open_model(finished)
    assert trained.step == 9
    assert trained.tokenizer.decode(trained.tokenizer.encode("naïve\n")) == "naïve\n"
    assert trained.tokenizer.id == RunDir(finished).environment()["data"]["tokenizer"]["id"]


def test_a_step_of_which_nothing_is_kept_is_refused_and_a_damaged_one_not_replaced(finished: Path, tmp_path) -> None:
    run = unfinished_copy(finished, tmp_path / "run", 3)
    assert refusal(open_model, run, step=6).endswith("checkpoints: step: got 6; there are checkpoints of: 1, 2, 3")
    (run / "checkpoints/step_00000003/model.safetensors").write_bytes(b"torn")
    message = "checkpoint step_00000003 is damaged (model.safetensors has 4 bytes"
    assert message in refusal(open_model, run, step=3)
