"""Tokenizers by name or file: their tokens stand for exactly the bytes of a text, and files of others are checked."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, processors

from widthwise.config_io import UserError, require
from widthwise.data.corpus import named_corpus
from widthwise.data.json_tokenizer import JsonTokenizer, check_spec, open_tokenizer, restore_tokenizer, train_bpe
from widthwise.data.tokenizer import ByteTokenizer, TiktokenTokenizer

CL100K_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # the sha1 of its address, by which tiktoken caches it
has_cl100k = Path(os.environ.get("TIKTOKEN_CACHE_DIR", "/nonexistent"), CL100K_FILE).is_file()


def training_texts():
    return (document.text for document in named_corpus("synthetic"))


BPE = train_bpe(training_texts(), 353)
any_text = st.text(max_size=60) | st.sampled_from(["<|endoftext|>", "a<|endoftext|>b", " \t\n\r\n", "naïve ☃ 🙂"])


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=lambda tokenizer: tokenizer.spec)
@settings(max_examples=40)
@given(text=any_text)
def test_tokens_stand_for_exactly_the_bytes_of_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.token_byte_lengths()[ids].sum() == len(text.encode())
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == text
    assert tokenizer.eos_id not in ids
    assert all(0 <= index < tokenizer.vocab_size for index in ids)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=lambda tokenizer: tokenizer.spec)
def test_each_token_has_the_length_of_what_it_decodes_to(tokenizer):
    lengths = tokenizer.token_byte_lengths()
    assert (lengths.dtype, lengths.shape, lengths[tokenizer.eos_id]) == (np.int64, (tokenizer.vocab_size,), 0)
    ascii_tokens = [index for index in range(tokenizer.vocab_size) if tokenizer.decode([index]).isascii()]
    assert len(ascii_tokens) > 100
    assert all(lengths[index] == len(tokenizer.decode([index])) for index in ascii_tokens)


def test_bpe_has_the_asked_size_and_its_end_of_text_token_and_is_the_same_when_trained_again():
    assert (BPE.vocab_size, BPE.spec) == (353, "bpe-353")
    assert json.loads(BPE.definition())["model"]["vocab"]["<|endoftext|>"] == BPE.eos_id
    assert train_bpe(training_texts(), 353).id == BPE.id != train_bpe(training_texts(), 352).id
    with pytest.raises(UserError, match=r"bpe-400: the text yields only \d+ tokens; use bpe-\d+ or smaller"):
        train_bpe(iter(["aaa bbb"]), 400)


def test_a_saved_tokenizer_is_restored_with_the_same_id_and_under_its_spec_alone(tmp_path):
    path = ByteTokenizer().save(tmp_path)
    assert restore_tokenizer("bytes", path).id == ByteTokenizer().id
    with pytest.raises(UserError, match="differs from the tokenizer 'bpe-300'"):
        restore_tokenizer("bpe-300", path)


def test_malformed_specs_are_refused_and_a_missing_extra_is_named():
    for spec in ("bpe", "bpe-", "bpe-12", "bpe-x", "tiktoken:", "tokenizer.txt", ""):
        with pytest.raises(UserError, match="tokenizer"):
            check_spec(spec)
    with pytest.raises(UserError, match=r"pip install 'widthwise\[prep\]'"):
        require("no_such_module_anywhere", "prep")


def byte_fallback_tokenizer() -> tokenizers.Tokenizer:
    """The make of a Llama-2 tokenizer: spaces as U+2581, unknown characters as bytes."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "é", "▁a"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    return tokenizer


@settings(max_examples=30)
@given(text=st.text(alphabet="abé z☃", max_size=30))
def test_byte_fallback_tokens_stand_for_exactly_the_bytes(text):
    tokenizer = JsonTokenizer("x.json", byte_fallback_tokenizer().to_str(), "x.json")
    assert tokenizer.token_byte_lengths()[tokenizer.encode(text)].sum() == len(text.encode())
    assert tokenizer.eos_id == 1


def test_json_tokenizer_ignores_templates_truncation_and_padding(tmp_path):
    tokenizer = tokenizers.Tokenizer.from_str(BPE.definition())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.post_processor = processors.TemplateProcessing("<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    assert open_tokenizer(str(path), training_texts).encode("the cat sees") == BPE.encode("the cat sees")


def test_end_of_text_token_can_be_named_and_must_exist(tmp_path):
    tokenizer = byte_fallback_tokenizer()
    tokenizer.add_tokens(["THE-END"])
    path = tmp_path / "t.json"
    tokenizer.save(str(path))
    named = open_tokenizer(f"{path}#THE-END", training_texts)
    assert named.decode([named.eos_id]) == ""
    assert named.token_byte_lengths()[named.eos_id] == 0
    assert named.id != open_tokenizer(str(path), training_texts).id
    with pytest.raises(UserError, match="has no token '<missing>'"):
        open_tokenizer(f"{path}#<missing>", training_texts)


def test_unusable_files_are_refused(tmp_path):
    without_end = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    without_end.decoder = decoders.ByteLevel()
    wordpiece = tokenizers.Tokenizer(models.WordPiece({"</s>": 0}))
    wordpiece.decoder = decoders.WordPiece()
    far = json.loads(BPE.definition())  # refused before memory is asked for
    far["added_tokens"].append({**far["added_tokens"][0], "id": 2 * 10**9, "content": "<far>"})
    far["model"]["vocab"]["<far>"] = 2 * 10**9
    for name, content, message in (
        ("garbage", "{", "is not a tokenizer of the tokenizers library"),
        ("no_end", without_end.to_str(), "name its end-of-text token"),
        ("wordpiece", wordpiece.to_str(), "does not tell the bytes of a token"),
        ("far", json.dumps(far), r"far\.json: has a token of id 2000000000; allowed: below 16777216"),
        ("missing", None, r"missing\.json: cannot be read"),
    ):
        path = tmp_path / f"{name}.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(UserError, match=message):
            open_tokenizer(str(path), training_texts)


def changed(change) -> JsonTokenizer:
    data = json.loads(BPE.definition())
    change(data)
    return JsonTokenizer("changed.json", json.dumps(data, indent=3), "changed.json")


def old_form_of_merges(data) -> None:
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]


def swap_tokens(data) -> None:
    vocab = data["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def test_a_vocabulary_is_its_tokens_merges_and_end_of_text_however_the_file_says_them():
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    for change in (
        lambda data: data.update(truncation=truncation),
        lambda data: data["model"].update(vocab=dict(reversed(data["model"]["vocab"].items()))),
        lambda data: data["decoder"].update(trim_offsets=False),
        old_form_of_merges,
    ):
        other = changed(change)
        assert other.id != BPE.id
        assert other.vocabulary_id == BPE.vocabulary_id
    others = [swap_tokens, lambda data: data["model"]["merges"].reverse(), lambda data: data["model"]["merges"].pop()]
    assert all(changed(change).vocabulary_id != BPE.vocabulary_id for change in others)
    assert JsonTokenizer("x.json#a", BPE.definition(), "x.json", "a").vocabulary_id != BPE.vocabulary_id


def test_tiktoken_encodings_that_are_unknown_or_not_on_this_machine_are_refused(monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    with pytest.raises(UserError, match=r"known: .*cl100k_base"):
        TiktokenTokenizer("nothing")
    monkeypatch.setattr(tiktoken, "get_encoding", Mock(side_effect=ConnectionError("no network")))
    with pytest.raises(UserError, match="set TIKTOKEN_CACHE_DIR"):
        TiktokenTokenizer("cl100k_base")


@pytest.mark.skipif(not has_cl100k, reason="TIKTOKEN_CACHE_DIR holds no cl100k_base")
def test_cl100k_tokens_stand_for_exactly_the_bytes(tmp_path):
    tokenizer = TiktokenTokenizer("cl100k_base")
    text = "naïve <|endoftext|> ☃ 🙂\r\n"
    ids = tokenizer.encode(text)
    assert tokenizer.token_byte_lengths()[ids].sum() == len(text.encode())
    # A model may know more ids than the tokenizer: the paper's has 100263.
    assert tokenizer.decode([*ids, tokenizer.eos_id, tokenizer.vocab_size, 100262]) == text
    assert (tokenizer.eos_id, tokenizer.vocab_size) == (100257, 100258)
    assert restore_tokenizer(tokenizer.spec, tokenizer.save(tmp_path)).id == tokenizer.id
