"""Tokenizers by name or file: byte lengths of tokens add up to the text, and untrusted files are checked."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, processors

from widthwise.data.corpus import Corpus, Document, named_corpus
from widthwise.data.json_tokenizer import JsonTokenizer, check_spec, open_tokenizer, restore_tokenizer, train_bpe
from widthwise.data.prepare import prepare
from widthwise.data.tokenizer import ByteTokenizer
from widthwise.mistakes import UserError


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


def test_malformed_specs_are_refused():
    specs = ("bpe", "bpe-", "bpe-x", "tiktoken:gpt2", "tokenizer.txt", "", "bpe-\uff15\uff11\uff12")
    for spec in (*specs, *(f"bpe-{size}" for size in (12, 256, 2**24 + 1, 10**20 - 1, "9" * 5000))):
        with pytest.raises(UserError, match=r"^tokenizer .{2,62}: allowed: bytes, bpe-N \(N from 257 to 16777216\), "):
            check_spec(spec)
    assert check_spec(f"bpe-{2**24}") == f"bpe-{2**24}"


def byte_fallback_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer like Llama-2's: spaces as U+2581, unknown characters as bytes."""
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


A = {"Sequence": {"id": "A", "type_id": 0}}
B = {"Sequence": {"id": "B", "type_id": 0}}
END = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}


def with_template(single: list, is_nested: bool = False, bos_id: int = 0) -> str:
    """Return BPE with a post-processor whose template has these parts."""
    special = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [bos_id], "tokens": ["<|endoftext|>"]}}
    template = {"type": "TemplateProcessing", "single": single, "pair": [A, B], "special_tokens": special}
    part = {"type": "Sequence", "processors": [template]} if is_nested else template
    return json.dumps({**json.loads(BPE.definition()), "post_processor": part})


@pytest.mark.parametrize("is_nested", [False, True])
def test_the_beginning_is_the_one_token_that_a_template_puts_before_the_text(is_nested):
    singles = [([END, A], 0), ([A], None), ([A, END], None), ([END, END, A], None), ([END, A, END], 0)]
    for single, bos_id in (*singles, ([END, A, A], 0), ([END], 0), ([B], None)):  # whatever it does to the text
        tokenizer = JsonTokenizer("x", with_template(single, is_nested), "x")
        assert tokenizer.bos_id is None  # of a model that was trained from scratch
        tokenizer = tokenizer.as_pretrained({})
        assert (tokenizer.bos_id, tokenizer.encode("the cat")) == (bos_id, BPE.encode("the cat"))
    with pytest.raises(UserError, match="adds token 353; must be one of the vocabulary"):
        JsonTokenizer("x", with_template([END, A], is_nested, bos_id=353), "x")


def not_special(definition: str) -> str:
    """Return the file without special flags of tokens."""
    data = json.loads(definition)
    return json.dumps({**data, "added_tokens": [{**token, "special": False} for token in data["added_tokens"]]})


@pytest.mark.parametrize("definition", [BPE.definition(), not_special(BPE.definition())], ids=["flagged", "unflagged"])
def test_text_that_spells_a_special_token_is_encoded_as_text(definition):
    tokenizer = JsonTokenizer("x", definition, "x")
    for text in ("a</s>a", "</s>", "a<|endoftext|>a", "a</s></s>"):
        ids = tokenizer.encode(text)
        assert tokenizer.eos_id not in ids
        assert tokenizer.decode(ids) == text
        assert tokenizer.token_byte_lengths()[ids].sum() == len(text)
    assert tokenizer.decode([tokenizer.eos_id]) == ""


def test_a_document_that_spells_an_end_of_text_that_is_a_plain_piece_is_refused_by_name(tmp_path):
    (tmp_path / "t.json").write_text(BPE.definition())
    documents = [Document("first.txt", "cd" * 9), Document("second.txt", "cde"), Document("third.txt", "zebra")]
    with pytest.raises(UserError, match=r"^third\.txt: .*cannot encode a text that spells the end-of-text token 'z'$"):
        prepare(Corpus("c", lambda: iter(documents)), tmp_path / "out", tokenizer=f"{tmp_path / 't.json'}#z")


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


def changed(change) -> JsonTokenizer:
    data = json.loads(BPE.definition())
    change(data)
    return JsonTokenizer("changed.json", json.dumps(data, indent=3), "changed.json")


UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["</s>", 0.0]], "byte_fallback": False}
ONE_LETTER = {"type": "BPE", "vocab": {"a": 0}, "merges": []}


def test_unusable_files_are_refused():
    for change, message in (
        (lambda data: data.clear(), "^changed.json: is not a tokenizer of the tokenizers library"),
        (lambda data: data.update(decoder={"type": "Fuse"}), "does not tell the bytes of a token"),
        (lambda data: data.update(model=UNIGRAM, added_tokens=[]), r"json: model: got Unigram; must be BPE"),
        (lambda data: data["model"].update(dropout=0.25), r"model\.dropout: got 0\.25, .*at random; allowed: null"),
        (lambda data: data["model"]["vocab"].update(a=2 * 10**9), "has a token of id 2000000000; allowed: below"),
        (lambda data: data.update(added_tokens=[], model=ONE_LETTER), "has none of .*; name its end-of-text token"),
    ):
        with pytest.raises(UserError, match=message):
            changed(change)
    for path, message in (("missing.json", r"^missing\.json: cannot be read"), ("missing.txt", "allowed: bytes")):
        with pytest.raises(UserError, match=message):
            open_tokenizer(path)


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
