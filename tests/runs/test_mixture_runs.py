"""Runs on a mixture of two prepared corpora."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ranks import command_in, launched
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError, to_data
from widthwise.data.config import open_data
from widthwise.data.documents import Corpus, Document
from widthwise.data.prepare import prepare
from widthwise.experiments.compare import run_plan
from widthwise.experiments.plan import read_plan
from widthwise.model.decoder import build
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.analysed_text import held_out_text
from widthwise.runs.conversion import carry_out
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.runs.grow import GrowOptions, growth_intended, wanted_recipe
from widthwise.runs.source import Source
from widthwise.runs.train import resume, train
from widthwise.training.stopping import Interrupted
from widthwise.training.validation import validate
from widthwise.yaml_io import dump_yaml, to_yaml


def corpus(name: str, n_documents: int) -> Corpus:
    return Corpus(name, lambda: (Document(str(index), f"{name} {index} " * 12) for index in range(n_documents)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Prepared folders web and code."""
    path = tmp_path_factory.mktemp("mixture")
    prepare(corpus("web", 120), path / "web", tokenizer="bytes", held_out=0.2)
    prepare(corpus("code", 12), path / "code", tokenizer="bytes", held_out=0.3)
    return path


def mixed_recipe(folder: Path, *overrides: str, weight: float = 0.3) -> Recipe:
    sources = {
        "web": {"path": str(folder / "web"), "weight": 0.7},
        "code": {"path": str(folder / "code"), "weight": weight},
    }
    return tiny_recipe(f"data={json.dumps({'mixture': sources})}", *overrides)


@pytest.fixture(scope="module")
def finished(folder) -> Path:
    train(mixed_recipe(folder), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("step", [0, 1, 4, 8])
def test_resuming_from_any_step_is_bitwise_the_uninterrupted_run(finished, tmp_path, step):
    run = unfinished_copy(finished, tmp_path / "run", step)
    resume(run)
    assert outcome(run) == outcome(finished)


def test_stopping_again_and_again_is_bitwise_the_uninterrupted_run(finished, folder, tmp_path):
    go, path = (lambda it: train(mixed_recipe(folder), path, it)), tmp_path / "run"
    for stop in (2, 5, 7):
        with pytest.raises(Interrupted):
            go(Listener(lambda step, stop=stop: step == stop and signal.raise_signal(signal.SIGTERM)))
        go = lambda it: resume(path, it)  # noqa: E731
    resume(path)
    assert outcome(path) == outcome(finished)


def test_losses_of_the_sources_are_those_of_their_windows(folder):
    recipe = mixed_recipe(folder, "train.validation_tokens=200")
    data, seq_len = open_data(recipe.data), recipe.seq_len
    model = build(recipe.explicit_model, seed=1)
    found = validate(model, recipe.held_out(data))
    n_windows = {"code": 3, "web": 8}  # 11 windows: round(0.3 * 11) are of code, the rarer
    for name, n in n_windows.items():
        tokens = torch.from_numpy(data.sources[name].held_out.tokens(0, n * seq_len + 1).astype("int64"))
        logits = [model(tokens[None, i * seq_len : (i + 1) * seq_len])[0].double() for i in range(n)]
        expected = torch.nn.functional.cross_entropy(torch.cat(logits), tokens[1:]).item()
        assert found.losses_by_source[name] == pytest.approx(expected, rel=1e-5)
    weighted = sum(n * found.losses_by_source[name] for name, n in n_windows.items()) / 11
    assert found.loss == pytest.approx(weighted)


def test_records_and_result_have_the_loss_of_every_source(finished):
    run = RunDir(finished)
    validations = [record for record in run.metrics() if record["event"] == "validation"]
    assert [list(record["val_losses"]) for record in validations] == [["code", "web"]] * 2
    assert run.result()["val_losses"] == validations[-1]["val_losses"]


def test_a_run_on_one_source_has_no_losses_of_sources(tmp_path):
    assert "val_losses" not in train(tiny_recipe(), tmp_path / "run")
    assert "val_losses" not in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_it_says_how_often_each_source_is_read(folder, tmp_path):
    listener, recipe = (
        Listener(),
        mixed_recipe(folder, "train.steps=3", "train.batch_size=100", "train.checkpoint_every=3"),
    )
    train(recipe, tmp_path / "run", listener)
    n_windows = {name: (source.train.n_tokens - 1) // 17 for name, source in open_data(recipe.data).sources.items()}
    assert listener.messages == [
        f"data: code 30.0% of the windows, each read {90 / n_windows['code']:.3g} times; 2 held out"
        f" | web 70.0% of the windows, each read {210 / n_windows['web']:.3g} times; 3 held out"
    ]


def moved_copy(finished: Path, folder: Path, target: Path) -> Path:
    """The run as it was after step 6, with its sources in a folder where they can be changed."""
    for name in ("web", "code"):
        shutil.copytree(folder / name, target / name)
    run = unfinished_copy(finished, target / "run", 6)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(folder), str(target)))
    return run


def test_data_may_move_and_a_changed_source_is_named(finished, folder, tmp_path):
    run = moved_copy(finished, folder, tmp_path)
    shutil.rmtree(tmp_path / "code")
    prepare(corpus("code", 13), tmp_path / "code", tokenizer="bytes", held_out=0.3)
    with pytest.raises(UserError, match=r"begun with other data \(source code: code \w+ of weight 3\) than is there"):
        resume(run)
    shutil.rmtree(tmp_path / "code")
    shutil.copytree(folder / "code", tmp_path / "code")
    resume(run)
    assert outcome(run) == outcome(finished)


@pytest.mark.parametrize(
    ("step", "before", "after"), [(6, "weight: 0.7", "weight: 0.6"), (0, "weight: 0.3", "weight: 0.35")]
)
def test_changed_weights_are_refused_by_source(finished, folder, tmp_path, step, before, after):
    run = unfinished_copy(finished, tmp_path / "run", step)
    config = run / "config.yaml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    with pytest.raises(UserError, match=r"was begun with other data \(source code: code \w+ of weight 3\)"):
        resume(run)


def test_one_source_of_a_mixture_does_not_stand_for_it(finished, folder, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 6)
    config = run / "config.yaml"
    saved = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({**saved, "data": {"path": str(folder / "web")}}, sort_keys=False))
    with pytest.raises(
        UserError, match=r"was begun with other data \(code: code .*; web: web .*\) than is there now \(web "
    ):
        resume(run)


def test_evaluation_reads_the_windows_of_the_validation_source_by_source(finished):
    texts = evaluate_run(finished, EvaluationConfig())["texts"]
    losses = RunDir(finished).result()["val_losses"]
    assert list(texts) == ["held-out/code", "held-out/web"]
    for name, loss in losses.items():
        assert texts[f"held-out/{name}"]["metrics"]["nats_per_token"]["value"] == pytest.approx(loss, rel=1e-5)


def test_held_out_documents_come_in_the_proportions_of_the_mixture(folder):
    data = open_data(mixed_recipe(folder, weight=0.05).data)
    documents = [document.text for document in held_out_text(data)]
    n_tokens = {name: sum(len(text) + 1 for text in documents if text.startswith(name)) for name in ("web", "code")}
    longest = max(map(len, documents)) + 1
    assert n_tokens["web"] > 5 * longest
    assert abs(n_tokens["code"] / 0.05 - n_tokens["web"] / 0.7) <= longest / 0.05
    for name in n_tokens:
        source, own = data.sources[name], [text for text in documents if text.startswith(name)]
        expected = [source.tokenizer.decode(source.held_out.document(index)[:-1].tolist()) for index in range(len(own))]
        assert own == expected


def test_compared_runs_read_the_same_mixture_and_are_paired_over_its_windows(folder, tmp_path):
    recipe = {**to_data(mixed_recipe(folder)), "compare": {"seeds": [1], "match": "none"}}
    recipe["compare"]["variants"] = {"slow": {}, "fast": {"optimizer": {"lr": 0.02}}}
    (tmp_path / "recipe.yaml").write_text(dump_yaml(recipe))
    plan = read_plan([tmp_path / "recipe.yaml"])
    comparison = run_plan(plan, tmp_path, "widthwise compare recipe.yaml")
    slow, fast = (RunDir(tmp_path / "runs" / f"{name}-seed1").result() for name in ("slow", "fast"))
    (difference,) = [variant.difference.mean for variant in comparison.variants if variant.difference]
    assert difference == pytest.approx(fast["val_loss"] - slow["val_loss"])


@pytest.mark.parametrize(
    ("weight", "step", "note"),
    [
        (0.3, 5, None),
        (0.4, 0, "data begin anew: other code.weight than before"),
    ],
)
def test_a_grown_run_goes_on_with_its_mixture_and_begins_another_anew(finished, tmp_path, weight, step, note):
    source = Source.of(unfinished_copy(finished, tmp_path / "source", 5))
    wanted = wanted_recipe(source, None, ("model.layers.1.ffn.d_ff=40", f"data.mixture.code.weight={weight}"))
    found = carry_out(source, growth_intended(source, wanted, GrowOptions()), tmp_path / "grown")
    (state,) = (tmp_path / "grown" / "checkpoints").glob("*/state.json")
    assert json.loads(state.read_text())["loader"]["step"] == step
    assert [each for each in found["notes"] if "anew" in each] == ([] if note is None else [note])
    assert resume(tmp_path / "grown")["steps"] == 9


@pytest.mark.slow
def test_two_processes_train_on_the_rows_of_one_and_one_goes_on_for_them(finished, folder, tmp_path):
    """A step is one pass of each process where one process makes two of the same rows, so losses are bitwise equal."""
    (tmp_path / "recipe.yaml").write_text(to_yaml(mixed_recipe(folder)))
    launch = launched(2, command_in, tmp_path, "train", "recipe.yaml", "--out", "two", errors=tmp_path / "errors")
    assert launch.codes() == [0, 0], launch.everything()
    gone_on = unfinished_copy(tmp_path / "two", tmp_path / "one", 5)
    resume(gone_on)
    for path in (tmp_path / "two", gone_on):
        assert losses(path) == losses(finished)


def losses(path: Path) -> list[dict[str, Any]]:
    kept = ("step", "event", "loss", "val_losses")
    return [{key: record.get(key) for key in kept} for record in RunDir(path).metrics()]
