import os
from pathlib import Path

import pytest

from widthwise.config_io import UserError
from widthwise.data.tiktoken_tokenizer import TiktokenTokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer

tiktoken = pytest.importorskip("tiktoken")
CL100K_FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # the sha1 of its address, by which tiktoken caches it
has_cl100k = Path(os.environ.get("TIKTOKEN_CACHE_DIR", "/nonexistent"), CL100K_FILE).is_file()


def test_unknown_tiktoken_encoding_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"known: .*cl100k_base"):
        TiktokenTokenizer("nothing")


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


def test_tiktoken_without_its_file_says_what_to_do(monkeypatch):
    def unreachable(name: str):
        raise ConnectionError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", unreachable)
    with pytest.raises(UserError, match="set TIKTOKEN_CACHE_DIR"):
        TiktokenTokenizer("cl100k_base")
