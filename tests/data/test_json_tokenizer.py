import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, processors

from widthwise.config_io import UserError
from widthwise.data.corpus import named_corpus
from widthwise.data.json_tokenizer import JsonTokenizer, train_bpe
from widthwise.data.tokenizer_spec import open_tokenizer


def training_texts():
    return (document.text for document in named_corpus("synthetic"))


BPE = train_bpe(training_texts(), 353)


def test_bpe_has_the_asked_size_and_its_end_of_text_token():
    assert BPE.vocab_size == 353
    assert BPE.spec == "bpe-353"
    assert json.loads(BPE.definition())["model"]["vocab"]["<|endoftext|>"] == BPE.eos_id


def test_training_twice_gives_the_same_tokenizer():
    assert train_bpe(training_texts(), 353).id == BPE.id
    assert train_bpe(training_texts(), 352).id != BPE.id


def test_bpe_refuses_a_text_too_small_for_its_size():
    with pytest.raises(UserError, match=r"bpe-400: the text yields only \d+ tokens; use bpe-\d+ or smaller"):
        train_bpe(iter(["aaa bbb"]), 400)


def byte_fallback_tokenizer() -> tokenizers.Tokenizer:
    """The make of a Llama-2 tokenizer: spaces as U+2581, unknown characters as bytes."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "é", "▁a"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>", "<unk>"])
    return tokenizer


@settings(max_examples=50)
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
    contents = {
        "garbage.json": ("{", "is not a tokenizer of the tokenizers library"),
        "no_end.json": (without_end.to_str(), "name its end-of-text token"),
        "wordpiece.json": (wordpiece.to_str(), "does not tell the bytes of a token"),
    }
    for name, (content, message) in contents.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            open_tokenizer(str(tmp_path / name), training_texts)
    with pytest.raises(UserError, match=r"missing\.json: cannot be read"):
        open_tokenizer(str(tmp_path / "missing.json"), training_texts)


def test_a_far_id_is_refused_before_memory_is_asked_for():
    definition = json.loads(BPE.definition())
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 2 * 10**9, "content": "<far>"})
    definition["model"]["vocab"]["<far>"] = 2 * 10**9
    with pytest.raises(UserError, match=r"x\.json: has a token of id 2000000000; allowed: below 16777216"):
        JsonTokenizer("x.json", json.dumps(definition), "x.json")


def changed(tokenizer: JsonTokenizer, change) -> JsonTokenizer:
    data = json.loads(tokenizer.definition())
    change(data)
    return JsonTokenizer("changed.json", json.dumps(data, indent=3), "changed.json")


def old_form_of_merges(data) -> None:
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(
            truncation={"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
        ),
        lambda data: data["model"].update(vocab=dict(reversed(data["model"]["vocab"].items()))),
        lambda data: data["decoder"].update(trim_offsets=False),
        old_form_of_merges,
    ],
)
def test_another_file_of_the_same_tokens_and_merges_is_the_same_vocabulary(change):
    other = changed(BPE, change)
    assert other.id != BPE.id
    assert other.vocabulary_id == BPE.vocabulary_id


def swap_tokens(data) -> None:
    vocab = data["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


@pytest.mark.parametrize(
    "change", [swap_tokens, lambda data: data["model"]["merges"].reverse(), lambda data: data["model"]["merges"].pop()]
)
def test_other_ids_or_merges_are_another_vocabulary(change):
    assert changed(BPE, change).vocabulary_id != BPE.vocabulary_id


def test_another_end_of_text_is_another_vocabulary():
    other = JsonTokenizer("x.json#a", BPE.definition(), "x.json", "a")
    assert other.vocabulary_id != BPE.vocabulary_id
