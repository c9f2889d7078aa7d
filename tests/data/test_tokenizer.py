import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.data.corpus import named_corpus
from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.tokenizer import ByteTokenizer

BPE = train_bpe((document.text for document in named_corpus("synthetic")), 353)
TOKENIZERS = [ByteTokenizer(), BPE]
any_text = st.text(max_size=60) | st.sampled_from(["<|endoftext|>", "a<|endoftext|>b", " \t\n\r\n", "naïve ☃ 🙂"])


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.spec)
@given(text=any_text)
def test_tokens_stand_for_exactly_the_bytes_of_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.token_byte_lengths()[ids].sum() == len(text.encode())
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == text
    assert tokenizer.eos_id not in ids
    assert all(0 <= index < tokenizer.vocab_size for index in ids)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.spec)
def test_each_token_has_the_length_of_what_it_decodes_to(tokenizer):
    lengths = tokenizer.token_byte_lengths()
    assert lengths.dtype == np.int64
    assert lengths.shape == (tokenizer.vocab_size,)
    assert lengths[tokenizer.eos_id] == 0
    ascii_tokens = [index for index in range(tokenizer.vocab_size) if tokenizer.decode([index]).isascii()]
    assert len(ascii_tokens) > 100
    assert all(lengths[index] == len(tokenizer.decode([index])) for index in ascii_tokens)
