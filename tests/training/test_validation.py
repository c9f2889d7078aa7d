"""Validation: losses per token and per byte, and samples."""

import math
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
from boxes import refusal
from tiny_runs import SAMPLES, resumed_alike, tiny_recipe, unfinished_copy
from tokenizers import decoders, models, normalizers
from torch.nn.functional import cross_entropy

from widthwise.data.config import open_data
from widthwise.data.corpus import Corpus, Document
from widthwise.data.loader import HeldOut
from widthwise.data.mixture import MixedData
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.evaluation import perplexity
from widthwise.evaluation.perplexity import score_documents, score_stream
from widthwise.evaluation.scorer import Scorer
from widthwise.model.decoder import build
from widthwise.model.generate import SamplingConfig, generate
from widthwise.reports.writing import write_report
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.train import resume, train
from widthwise.training.validation import ValidationSets, validate


@pytest.fixture(scope="module")
def data():
    return open_data(tiny_recipe().data)


def test_loss_perplexity_and_bits_per_byte_are_those_of_the_logits_and_those_of_heads_of_their_losses(data):
    model, seq_len, n_windows = build(tiny_recipe("model.mtp={n_depths: 2}").explicit_model, seed=1), 17, 5
    tokens = torch.from_numpy(data.held_out.tokens(0, seq_len * n_windows + 1).astype("int64"))
    inputs, targets = tokens[:-1].view(n_windows, seq_len), tokens[1:].view(n_windows, seq_len)
    losses = cross_entropy(model(inputs).double().mT, targets, reduction="none").mean(dim=1).tolist()
    found = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows + 3, precision="fp32"))
    expected = sum(losses) / n_windows
    n_bytes = int((targets != 256).sum())
    assert found.window_losses == pytest.approx(losses, rel=1e-5)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(expected * seq_len * n_windows / math.log(2) / n_bytes, rel=1e-5)
    for k, of_head in enumerate(model.loss(inputs, targets).mtp_losses):
        assert found.mtp_window_losses[k] == pytest.approx(of_head.mean(dim=1).tolist(), rel=1e-5)
        assert found.mtp_losses[k] == pytest.approx(of_head.mean().item(), rel=1e-5)
    with torch.no_grad():
        model.head.weight *= 1e6
    far = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows, precision="fp32"))
    assert far.loss > 710  # whose exponential is no double
    assert far.perplexity == math.inf


def test_validation_that_could_not_work_is_refused_beforehand(data):
    too_few = "validation_tokens: got 16; must be at least seq_len = 17"
    assert too_few in refusal(HeldOut(data, 17, 2, 16, "fp32").check)
    assert "seq_len" in refusal(HeldOut(data, data.held_out.n_tokens, 2, None, "fp32").check)


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
N_UNITS = 7
CHANGING = {
    "unknown to the vocabulary": ("aé", 2, [], None),
    "dropped by the normalizer": ("aé", 1, [], normalizers.Replace("é", "")),
    "shortened by the normalizer": ("e\u0301", 2, BYTES, normalizers.NFC()),
    "lengthened by byte fallback": ("a ", 4, BYTES, normalizers.Replace(" ", "▁")),
}
"""For each way to change text: a text, its tokens, further pieces of the vocabulary, the normalizer."""


@pytest.fixture(params=CHANGING)
def changed(request, tmp_path) -> tuple[PreparedData, str, int]:
    """Held-out text whose tokens have other bytes, the unit that it repeats, and the tokens of a unit."""
    unit, n_tokens, pieces, normalizer = CHANGING[request.param]
    vocabulary = {piece: index for index, piece in enumerate(["<unk>", "</s>", "a", *pieces])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=bool(pieces)))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(unit * N_UNITS)
    train = Corpus("train", lambda: iter([Document("train", "aaa")]))
    spec = str(tmp_path / "tokenizer.json")
    return prepare(train, tmp_path / "out", tokenizer=spec, held_out=[str(tmp_path / "text.txt")]), unit, n_tokens


def test_bits_per_byte_count_the_bytes_of_the_text_whatever_the_tokenizer_makes_of_it(changed, monkeypatch, tmp_path):
    data, unit, n_tokens = changed
    n_bytes, record = len(unit.encode()), data.manifest.splits.held_out
    assert (record.n_bytes, record.n_tokens) == (n_bytes * N_UNITS, n_tokens * N_UNITS + 1)
    assert record.n_bytes != record.n_token_bytes
    text = {"source": str(tmp_path / "text.txt")}
    recipe = tiny_recipe(f"validation.texts={{raw: {text}, prepared: {{source: '{data.path}'}}}}")
    model = build(recipe.explicit_model, seed=1)
    held_out = HeldOut(data, 3 * n_tokens, 2, max_tokens=None, precision="fp32")  # each window has the bytes of 3 units
    found = ValidationSets.opened(recipe, held_out, model).validate(model)
    for validation in (found, *found.texts.values()):
        assert validation.bits_per_byte == pytest.approx(found.loss * n_tokens / n_bytes / math.log(2))
    same = prepare(
        Corpus("train", lambda: iter([Document("train", "aaa")])),
        tmp_path / "same",
        tokenizer=str(tmp_path / "tokenizer.json"),
        held_out=[Corpus("a", lambda: iter([Document("a", "a" * 3 * n_tokens * N_UNITS)]))],
    )
    mixed = HeldOut(
        MixedData({"same": same, "changed": data}, {"same": 1, "changed": 1}), 3 * n_tokens, 2, None, "fp32"
    )
    assert mixed.sources.count("changed") == 2
    scale = record.n_bytes / record.n_token_bytes
    assert mixed.n_text_bytes([5] * mixed.n_windows) == pytest.approx(5 * (2 * scale + mixed.n_windows - 2))

    monkeypatch.setattr(perplexity, "BLOCK_BYTES", n_bytes)
    scorer = Scorer(model, data.tokenizer, 3 * n_tokens, 2)
    raw, cut = (score_documents(scorer, [unit * N_UNITS], max_tokens=n) for n in (None, 3 * n_tokens))
    assert (raw.n_bytes, cut.n_bytes) == (n_bytes * N_UNITS, n_bytes * 3)
    if record.n_token_bytes > N_UNITS:  # otherwise a unit begins with the token after its only one with bytes
        assert raw.blocks["n_tokens"] == [n_tokens] * N_UNITS
    stream = score_stream(
        scorer, data.held_out.tokens(0, record.n_tokens), bytes_per_token_byte=data.bytes_per_token_byte
    )
    assert stream.n_bytes == pytest.approx(raw.n_bytes, abs=n_bytes)  # without the first token


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sampled"
    train(tiny_recipe(SAMPLES), path)
    return path


def texts(run: Path) -> list[dict]:
    return RunDir(run).samples_file.records()


def generated(run: Path, step: int, prompts: list[str], n_tokens: int, temperature: float, seed: int) -> list[str]:
    """Return the continuations of the prompts by `generate`, with the model of a step."""
    trained = open_model(run, step=step)
    tokenizer = trained.tokenizer
    encoded = [tokenizer.encode(prompt) or [tokenizer.eos_id] for prompt in prompts]
    sampling = SamplingConfig(temperature=temperature)
    answers = generate(trained.model, encoded, n_tokens, sampling, seed, tokenizer.eos_id)
    return [tokenizer.decode(answer) for answer in answers]


def test_every_validation_continues_every_prompt_as_generate_does_and_the_page_runs_no_markup(sampled, tmp_path):
    asked = [(step, prompt) for step in (5, 9) for prompt in ("<b>x", "")]
    assert [(record["step"], record["prompt"]) for record in texts(sampled)] == asked
    page = write_report(sampled, tmp_path)[0].read_text()
    assert "<p>“&lt;b&gt;x”</p>" in page[page.index('id="samples"') :]
    assert page.index("<summary>step 9</summary>") < page.index("<summary>step 5</summary>")
    for step in (5, 9):
        found = [record["text"] for record in texts(sampled) if record["step"] == step]
        assert found == generated(sampled, step, ["<b>x", ""], 7, 0.8, seed=5)


def test_a_text_ends_with_its_document(tmp_path):
    run, prompts = tmp_path / "run", ["a", "b", "c", "d", "e"]
    sample = f"train.sample={{prompts: {prompts}, n_tokens: 300, temperature: 3}}"
    train(tiny_recipe("train.validate_every=null", sample), run)
    expected = generated(run, 9, prompts, 300, 3, seed=0)
    assert min(map(len, expected)) < 250  # at most 300 bytes
    assert [record["text"] for record in texts(run)] == expected


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
    recipe = tiny_recipe(positions, "train.sample={prompts: [abc], n_tokens: 16}")
    assert "at most 17 tokens" in refusal(train, recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_records_and_result_have_the_losses_of_the_heads(tmp_path):
    recipe = tiny_recipe("model.mtp={n_depths: 2}", "train.checkpoint_every=null")
    result, records = train(recipe, tmp_path / "run"), RunDir(tmp_path / "run").metrics()
    assert all(len(record["mtp_losses"]) == 2 for record in records)
    assert result["val_mtp_losses"] == records[-1]["mtp_losses"]
    assert [len(windows) for windows in result["val_mtp_window_losses"]] == [len(result["val_window_losses"])] * 2
