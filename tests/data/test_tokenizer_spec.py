import pytest

from widthwise.config_io import UserError
from widthwise.data.corpus import named_corpus
from widthwise.data.tokenizer import ByteTokenizer
from widthwise.data.tokenizer_spec import check_spec, open_tokenizer, restore_tokenizer


def training_texts():
    return (document.text for document in named_corpus("synthetic"))


@pytest.mark.parametrize("spec", ["bytes", "bpe-300"])
def test_saved_tokenizer_is_restored_with_the_same_id(tmp_path, spec):
    tokenizer = open_tokenizer(spec, training_texts)
    restored = restore_tokenizer(spec, tokenizer.save(tmp_path))
    assert restored.id == tokenizer.id
    assert restored.encode("the cat") == tokenizer.encode("the cat")


def test_restoring_under_another_spec_is_refused(tmp_path):
    path = ByteTokenizer().save(tmp_path)
    with pytest.raises(UserError, match="does not describe the tokenizer 'bpe-300'"):
        restore_tokenizer("bpe-300", path)


@pytest.mark.parametrize("spec", ["bpe", "bpe-", "bpe-12", "bpe-x", "tiktoken:", "tokenizer.txt", ""])
def test_malformed_specs_are_refused(spec):
    with pytest.raises(UserError, match="tokenizer"):
        check_spec(spec)
