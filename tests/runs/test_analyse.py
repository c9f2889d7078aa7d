"""What trained models do inside, from run directories and Hugging Face folders."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from tiny_runs import Listener, tiny_recipe

from widthwise.analysis.profile import Profile
from widthwise.config_io import differences
from widthwise.data.config import DataConfig, open_data
from widthwise.data.corpus import Corpus, Document
from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.loader import HeldOut
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import ByteTokenizer, Tokenizer
from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.reports.analysis_tables import findings
from widthwise.runs.analyse import SPARE_TOKENS, analyse, cut_text, held_out_text, tokens_of_text
from widthwise.runs.export import export_run
from widthwise.runs.open import open_model

BPE = ("data.tokenizer=bpe-280", "model.vocab_size=280", "train.checkpoint_every=9")
TOKENS_PER_STEP = 4 * 17
N_TOKENS = 90
"""Five windows of 17."""


@pytest.fixture(scope="module")
def runs(trained) -> Path:
    """uniform and x, of one tokenizer; small, of another and of two layers."""
    trained("model.shape={kind: explicit, widths: [16, 16, 16]}", *BPE, name="uniform")
    trained(*BPE, name="x")
    return trained("model.n_layers=2", "model.shape={kind: explicit, widths: [16, 16]}", name="small").parent


@pytest.fixture(scope="module")
def both(runs: Path) -> Analysis:
    return analyse([runs / "uniform", runs / "x"], n_tokens=N_TOKENS)


def numbers(model: AnalysedModel) -> dict[str, Any]:
    told = ("name", "source", "kind", "step", "tokens", "run", "exit_flops", "block_exit_flops")
    return {key: value for key, value in model.to_data().items() if key not in told}


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether plain data agree, numbers up to a tolerance."""
    return all(math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance) for _, x, y in differences(a, b))


def test_models_read_the_held_out_windows_of_the_first_run(runs: Path, both: Analysis) -> None:
    held_out = HeldOut(open_data(tiny_recipe(*BPE).data), 17, 3, N_TOKENS, "fp32")
    for model in both["models"]:
        trained = open_model(runs / model["name"]).model
        profile = Profile(trained)
        for windows in held_out.batches():
            profile.add(windows)
        expected = numbers(profile.summary(**{key: model[key] for key in ("name", "source", "kind", "step")}))
        expected |= {"token_widths": None, "virtual_width": None}
        assert model.exit_flops == trained.config.exit_flops(17)
        assert expected["n_tokens"] == 5 * 17
        # Batches are of another size, so sums are in another order.
        assert same(numbers(model), expected, 1e-4)
    told: list[tuple[int, int | None]] = []

    class Counting(Listener):
        def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
            told.append((n_done, n_total))

    single = analyse([runs / "uniform"], n_tokens=N_TOKENS, batch_size=2, observer=Counting())
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert same(numbers(single["models"][0]), numbers(both["models"][0]), 1e-4)
    assert both["text"].to_data() == {"source": "held-out documents of synthetic", "seq_len": 17, "n_tokens": 5 * 17}
    told = [(model["name"], model["kind"], model["step"], model["widths"]) for model in both["models"]]
    assert told == [("uniform", "widthwise", 9, [16, 16, 16]), ("x", "widthwise", 9, [24, 8, 24])]


def test_an_exported_model_gives_the_numbers_of_its_run_and_needs_a_text_and_a_tokenizer(runs, tmp_path: Path) -> None:
    export_run(runs / "uniform", tmp_path / "hf")
    pair = [runs / "uniform", tmp_path / "hf"]
    own, exported = analyse(pair, n_tokens=N_TOKENS)["models"]
    assert (exported["name"], exported["kind"], exported["step"]) == ("hf", "hf", None)
    assert same(numbers(exported), numbers(own), 1e-3)
    assert "hf: a Hugging Face folder has no held-out text; name a text with --text" in refusal(analyse, pair[1:])
    path = tmp_path / "hf/tokenizer.json"
    definition = json.loads(path.read_text())
    further = {"id": 280, "content": "<further>", "special": False}
    definition["added_tokens"].append(definition["added_tokens"][0] | further)
    path.write_text(json.dumps(definition))
    assert "tokenizer.json: has 281 tokens; the model has 280" in refusal(analyse, pair)
    path.unlink()
    assert "hf: has no tokenizer.json" in refusal(analyse, pair)


def test_every_checkpoint_is_a_model_of_an_analysis(trained) -> None:
    """Of steps 3, 6 and 9; wider after step 5."""
    wider = "growth=[{at_step: 5, model: {shape: {kind: explicit, widths: [24, 16, 24]}}}]"
    growing = trained("train.checkpoint_every=3", wider, name="growing")
    found = analyse([growing], n_tokens=34, every_checkpoint=True)
    one_by_one = [analyse([growing], n_tokens=34, step=step)["models"][0] for step in (3, 6, 9)]
    of_all, of_each = (
        [{**model.to_data(), "name": "", "run": ""} for model in models] for models in (found["models"], one_by_one)
    )
    assert of_all == of_each
    assert [(model["name"], model["run"], model["tokens"]) for model in found["models"]] == [
        (f"growing, step {step}", "growing", step * TOKENS_PER_STEP) for step in (3, 6, 9)
    ]
    assert found["title"] == "growing"
    assert all("growing, step 9 than in growing, step 3" in sentence for _, sentence in findings(found))


def test_mistakes_are_named(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    for names, options, message in (
        ([], {}, "expected at least one"),
        (["x", "x"], {}, "x was named twice"),
        (["x", "nothing"], {}, r"nothing: is neither a run directory \(config.yaml\) nor a Hugging Face folder"),
        (["x"], {"n_tokens": 16}, "tokens: got 16; must be at least one window, seq_len = 17"),
        (["x"], {"text": "absent.txt"}, "absent.txt: no such file"),
        (["x"], {"text": "short.txt"}, r"short.txt: holds \d+ tokens of x; must be at least seq_len \+ 1 = 18"),
    ):
        assert re.search(message, refusal(analyse, [runs / name for name in names], **options))


TEXTS = ("naïve façade " * 7, "", "eight wide layers, one narrow\n" * 9, "never reached")


def corpus(*texts: str) -> Corpus:
    return Corpus("mine", lambda: (Document(str(i), text) for i, text in enumerate(texts)))


def documents(tokens: TokenFile, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(tokens.document(i).tolist()) for i in range(tokens.n_documents)]


@pytest.mark.parametrize("n_tokens", [1, 97, 98, 10_000])
def test_two_tokenizers_read_the_same_front_of_the_text(tmp_path: Path, n_tokens: int) -> None:
    coarse, fine = train_bpe(iter(TEXTS), 270), ByteTokenizer()
    path = tmp_path / "text.jsonl"
    cut_text(corpus(*TEXTS), coarse, n_tokens, path)
    own, other = tokens_of_text(path, coarse, tmp_path / "own"), tokens_of_text(path, fine, tmp_path / "other")
    shown = documents(other, fine)
    assert documents(own, coarse) == shown
    assert "".join(TEXTS).startswith("".join(shown))
    n_all = sum(len(coarse.encode(text)) + 1 for text in TEXTS)
    assert min(n_tokens, n_all) <= own.n_tokens <= min(n_tokens + SPARE_TOKENS, n_all)
    # Every document but the one that is cut ends with the end of text, which stands nowhere else.
    *ended, last = [other.document(i).tolist() for i in range(other.n_documents)]
    assert all(ids.index(fine.eos_id) == len(ids) - 1 for ids in ended)
    assert (fine.eos_id in last) == (shown[-1] == TEXTS[len(ended)])
    assert own.n_tokens < n_all or shown == list(TEXTS)


def test_held_out_documents_become_the_tokens_they_were(tmp_path: Path) -> None:
    data = open_data(DataConfig(corpus="synthetic", tokenizer="bpe-280"))
    n_tokens = int(data.held_out.document_starts[3]) - SPARE_TOKENS
    cut_text(held_out_text(data), data.tokenizer, n_tokens, tmp_path / "text.jsonl")
    tokens = tokens_of_text(tmp_path / "text.jsonl", data.tokenizer, tmp_path / "own")
    assert tokens.n_tokens >= n_tokens
    assert tokens.tokens(0, n_tokens).tolist() == data.held_out.tokens(0, n_tokens).tolist()
