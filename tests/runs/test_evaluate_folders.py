"""Hugging Face folders evaluated: the numbers of the run that they came from, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from harness_cases import QUESTIONS, write_lines

from widthwise.config_io import parse
from widthwise.data.config import open_data
from widthwise.evaluation.lm_eval_model import ScorerLM
from widthwise.interop.hf_import import WIDTHWISE, import_hf
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.runs.export import export_run
from widthwise.runs.open import open_model
from widthwise.runs.scoring import ScoringOptions

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")

BPE = ("data.tokenizer=bpe-280", "model.vocab_size=280", "train.checkpoint_every=9")
SHAPES = {
    "llama": "model.shape={kind: explicit, widths: [16, 16, 16]}",
    "widthwise": "model.shape={kind: explicit, widths: [24, 8, 24]}",
}


@pytest.fixture(scope="module")
def folder(trained) -> Path:
    """A run and its export of each model_type."""
    for name, shape in SHAPES.items():
        folder = trained(shape, *BPE, name=f"{name}-run").parent
        assert export_run(folder / f"{name}-run", folder / name)["model_type"] == name
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "questions.jsonl", QUESTIONS)


def test_an_exported_folder_has_the_numbers_of_its_run(folder: Path, questions: Path) -> None:
    for name in SHAPES:
        data = str(open_data(saved_recipe(RunDir(folder / f"{name}-run")).data).path)
        asked = {"texts": [__file__], "data": [data], "max_tokens": 400, "task_files": [str(questions)]}
        config = parse(EvaluationConfig, {**asked, "max_length": 17})
        evaluations = (evaluate_run(folder / each, config) for each in (f"{name}-run", name))
        expected, found = (
            {(on, metric): score.value for on, scores in each.scores.items() for metric, score in scores.items()}
            for each in evaluations
        )
        assert {(__file__, "token_perplexity"), ("questions", "acc")} <= expected.keys()
        assert found == pytest.approx(expected, rel=1e-5)


def test_what_transformers_runs_does_not_write_texts(folder: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")
    from lm_eval.api.instance import Instance

    def asked(name: str) -> list[str]:
        scorer = open_model(folder / name).scorer(ScoringOptions(max_length=17))
        request = Instance("generate_until", {}, ("one", {"until": ["\n"], "max_gen_toks": 3}), 0)
        return ScorerLM(scorer).generate_until([request], disable_tqdm=True)

    assert asked("widthwise") == asked("widthwise-run")
    assert refusal(asked, "llama").startswith("a llama of transformers does not write texts here, only scores them; ")


def test_what_cannot_be_evaluated_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "llama", tmp_path / "llama")
    said = json.loads((path / "config.json").read_text())
    for change, options, message in (
        ({}, {}, "llama: a Hugging Face folder has no held-out text; name a text with --text or --data"),
        ({}, {"max_length": 65}, "max_length: got 65; the model reads no more than 17 tokens"),
        ({"num_attention_heads": 0}, {"texts": [__file__]}, "transformers cannot load it"),
        ({"text_config": {"_attn_implementation": "a/b"}}, {"texts": [__file__]}, "_attn_implementation: is not read"),
        ({"model_type": WIDTHWISE.model_type}, {"texts": [__file__]}, "config.json"),
    ):
        (path / "config.json").write_text(json.dumps({**said, **change}))
        assert message in refusal(evaluate_run, path, parse(EvaluationConfig, options))


HUGE = 10**9
FILES = {
    "model.safetensors.index.json": [
        ({"weight_map": {"a": "/other/place/x.safetensors"}}, "a .safetensors file of the same folder"),
        ({"weight_map": {"a": "../x.safetensors"}}, "a .safetensors file of the same folder"),
        ({"weight_map": {"a": "model.safetensors"}}, "holds weights in model.safetensors and in the files of"),
    ],
    "adapter_config.json": [({"base_model_name_or_path": "/other/place"}, "holds an adapter (adapter_config.json)")],
    "config.json": [
        ({"num_labels": HUGE}, "num_labels: got 1000000000; allowed"),
        ({"text_config": {"num_local_experts": HUGE}}, "num_local_experts: got 1000000000; allowed"),
    ],
}
BY_TRANSFORMERS = [
    ({"transformers_weights": "other.safetensors"}, "transformers_weights: is not read"),
    ({"configuration_files": ["config.4.0.0.json"]}, "configuration_files: is not read"),
    ({"vocab_size": 2 * 10**7}, "weights; the files hold only"),
    ({"max_position_embeddings": 2**25}, "max_position_embeddings: got 33554432"),
]
"""Changes of config.json that only concern transformers, as `import` reads none of this or compares every shape."""


@pytest.mark.parametrize("reader", [import_hf, open_model])
def test_no_file_leads_elsewhere_or_takes_all_memory(folder: Path, tmp_path: Path, reader: Any) -> None:
    """Whoever reads the folder; nothing is left to transformers."""
    path = shutil.copytree(folder / "llama", tmp_path / "llama")
    config = json.loads((path / "config.json").read_text())
    cases = FILES | ({} if reader is import_hf else {"config.json": FILES["config.json"] + BY_TRANSFORMERS})
    for name, changes in cases.items():
        for change, message in changes:
            (path / name).write_text(json.dumps({**config, **change} if name == "config.json" else change))
            assert message in refusal(reader, path)
        (path / name).unlink()
    (path / "config.json").write_text(json.dumps(config))
    for name in ("generation_config.json", "model-2.safetensors"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to("/dev/zero")
        assert f"{name}: is not a plain file" in refusal(reader, path)
        (path / name).unlink()
