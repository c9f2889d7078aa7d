"""Hugging Face folders evaluated: the numbers of the run that they came from, and what is refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness_cases import QUESTIONS, keep_harness_in, write_lines
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError, parse
from widthwise.data.config import open_data
from widthwise.evaluation.hf_model import HFModel
from widthwise.evaluation.lm_eval_model import ScorerLM
from widthwise.evaluation.scorer import Scorer
from widthwise.interop.architectures import WIDTHWISE
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run, save_evaluation
from widthwise.runs.export import export_run
from widthwise.runs.harness import run_lm_eval
from widthwise.runs.import_ import import_run
from widthwise.runs.scored import load_scored
from widthwise.runs.train import train

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")

BPE = ("data.tokenizer=bpe-280", "model.vocab_size=280", "train.checkpoint_every=9")
SHAPES = {
    "llama": "model.shape={kind: explicit, widths: [16, 16, 16]}",
    "widthwise": "model.shape={kind: explicit, widths: [24, 8, 24]}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and its export of each model_type."""
    folder = tmp_path_factory.mktemp("folders")
    for name, shape in SHAPES.items():
        train(tiny_recipe(shape, *BPE), folder / f"{name}-run")
        assert export_run(folder / f"{name}-run", folder / name)["model_type"] == name
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "questions.jsonl", QUESTIONS)


def _values(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for part in ("texts", "tasks"):
        for name, found in record[part].items():
            yield from ((f"{name} {metric}", each["value"]) for metric, each in found["metrics"].items())


def _equal(one: Path, other: Path, questions: Path, **options: Any) -> None:
    asked = {"texts": [__file__], "max_tokens": 400, "task_files": [str(questions)], "max_length": 17, **options}
    records = [evaluate_run(path, parse(EvaluationConfig, asked)) for path in (one, other)]
    expected, found = (dict(_values(record)) for record in records)
    assert {f"{__file__} token_perplexity", "questions acc"} <= expected.keys()
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_an_exported_folder_has_the_numbers_of_its_run(folder: Path, questions: Path, name: str) -> None:
    data = open_data(saved_recipe(RunDir(folder / f"{name}-run")).data)
    _equal(folder / f"{name}-run", folder / name, questions, data=[str(data.path)])


def _tokenizer_of_others(folder: Path) -> None:
    """As a folder of other people has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def _plain(kind: str, folder: Path, **options: Any) -> Path:
    sizes = {"vocab_size": 300, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64}
    config = transformers.AutoConfig.for_model(kind, **sizes, **heads, eos_token_id=0, **options)
    transformers.set_seed(5)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    _tokenizer_of_others(folder)
    return folder


def test_a_plain_llama_has_the_numbers_of_the_run_imported_from_it(tmp_path: Path, questions: Path) -> None:
    path = _plain("llama", tmp_path / "hf")
    import_run(path, tmp_path / "run")
    _equal(tmp_path / "run", path, questions, precision="fp32")


def test_logits_that_are_not_the_heads_alone_count_as_they_are(tmp_path: Path) -> None:
    """A model that caps its logits, with the loss that transformers finds."""
    path = _plain("gemma2", tmp_path / "hf", final_logit_softcapping=0.05)
    scored = load_scored(path)
    ids = list(range(7, 40))
    (nats,) = Scorer(scored.model, scored.tokenizer, 64).rolling([ids])
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tokens = torch.tensor([[0, *ids]])
    expected = model(tokens, labels=tokens).loss.item()
    assert nats.mean() == pytest.approx(expected, rel=1e-5)
    assert isinstance(scored.model, HFModel)


def test_the_harness_takes_folders_too(
    folder: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")
    from widthwise.runs.run_lm import RunLM

    keep_harness_in(tmp_path, monkeypatch)

    def found(name: str) -> dict[str, Any]:
        model = RunLM.create_from_arg_string(f"run={folder / name},max_length=17")
        metrics = run_lm_eval(model.scorer, [str(questions)]).metrics["questions"]
        return {metric: each["value"] for metric, each in metrics.items()}

    assert found("widthwise") == found("widthwise-run")
    assert found("llama") == pytest.approx(found("llama-run"), rel=1e-5)


def test_what_transformers_runs_does_not_write_texts(folder: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")
    from lm_eval.api.instance import Instance

    def asked(name: str) -> list[str]:
        scored = load_scored(folder / name)
        request = Instance("generate_until", {}, ("one", {"until": ["\n"], "max_gen_toks": 3}), 0)
        return ScorerLM(Scorer(scored.model, scored.tokenizer, 17)).generate_until([request], disable_tqdm=True)

    assert asked("widthwise") == asked("widthwise-run")
    with pytest.raises(UserError, match=r"^a llama of transformers does not write texts here, only scores them; "):
        asked("llama")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {}, r"llama: a Hugging Face folder brings no held-out text; name a text with --text or --data$"),
        ({}, {"max_length": 65}, r"max_length: got 65; the model reads no more than 17 tokens$"),
        ({"num_attention_heads": 0}, {"texts": [__file__]}, "transformers cannot load it"),
        ({"text_config": {"_attn_implementation": "a/b"}}, {"texts": [__file__]}, "_attn_implementation: is not read"),
        ({"model_type": WIDTHWISE.model_type}, {"texts": [__file__]}, "config.json"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(
    folder: Path, tmp_path: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "llama"
    path.mkdir()
    for file in (folder / "llama").iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    said = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**said, **change}))
    with pytest.raises(UserError, match=message) as error:
        evaluate_run(path, parse(EvaluationConfig, options))
    assert "\n" not in str(error.value)


def test_a_folder_keeps_no_evaluations(folder: Path, questions: Path) -> None:
    record = evaluate_run(folder / "llama", parse(EvaluationConfig, {"task_files": [str(questions)]}))
    assert (record["step"], record["precision"]) == (None, "fp32")
    with pytest.raises(UserError, match="llama: is no run directory, which keeps evaluations"):
        save_evaluation(record)
