import math

import pytest
import tokenizers
import torch
from tiny_runs import tiny_recipe
from tokenizers import decoders, models, normalizers

from widthwise.data.config import open_data
from widthwise.data.corpus import Corpus, Document
from widthwise.data.loader import HeldOut
from widthwise.data.mixture import MixedData
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.evaluation import perplexity
from widthwise.evaluation.perplexity import score_documents, score_stream
from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError
from widthwise.model.decoder import build
from widthwise.training.validation import ValidationSets, validate


@pytest.fixture(scope="module")
def data():
    return open_data(tiny_recipe().data)


def test_loss_perplexity_and_bits_per_byte_are_those_of_the_logits(data):
    model, seq_len, n_windows = build(tiny_recipe().explicit_model, seed=1), 17, 5
    tokens = torch.from_numpy(data.held_out.tokens(0, seq_len * n_windows + 1).astype("int64"))
    losses = []
    for window in range(n_windows):
        part = tokens[window * seq_len : (window + 1) * seq_len + 1]
        losses.append(torch.nn.functional.cross_entropy(model(part[None, :-1])[0].double(), part[1:]).item())
    found = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows + 3, precision="fp32"))
    expected = sum(losses) / n_windows
    n_bytes = int((tokens[1:] != 256).sum())
    assert found.window_losses == pytest.approx(losses, rel=1e-5)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-4)
    assert found.bits_per_byte == pytest.approx(expected * seq_len * n_windows / math.log(2) / n_bytes, rel=1e-5)
    with torch.no_grad():
        model.head.weight *= 1e6
    far = validate(model, HeldOut(data, seq_len, 2, max_tokens=seq_len * n_windows, precision="fp32"))
    assert far.loss > 710  # whose exponential is no double
    assert far.perplexity == math.inf


def test_all_held_out_windows_are_used_where_no_number_is_given(data):
    model = build(tiny_recipe().explicit_model, seed=1)
    found = validate(model, HeldOut(data, 501, batch_size=3, max_tokens=None, precision="fp32"))
    assert len(found.window_losses) == (data.held_out.n_tokens - 1) // 501


def test_validation_that_could_not_work_is_refused_beforehand(data):
    with pytest.raises(UserError, match="validation_tokens: got 16; must be at least seq_len = 17"):
        HeldOut(data, 17, 2, 16, "fp32").check()
    with pytest.raises(UserError, match="seq_len"):
        HeldOut(data, data.held_out.n_tokens, 2, None, "fp32").check()


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
