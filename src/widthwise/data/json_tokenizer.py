"""Tokenizers of the `tokenizers` library: a tokenizer.json whose tokens stand for known bytes, and BPE."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from widthwise.config_io import UserError
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import parse_json

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_NAMES = (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]")
MAX_VOCAB_SIZE = 2**24
"""A generous limit: every id up to the largest takes memory, whether it is a token or not."""
MAX_TRAINING_BYTES = 64 * 2**20
"""A BPE tokenizer is trained on about this much text at most: more changes little and takes minutes."""


class JsonTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, given as the text of its tokenizer.json."""

    file_name = "tokenizer.json"

    def __init__(self, spec: str, definition: str, where: str, eos: str | None = None):
        """`where` names the file in errors.

        Raises UserError for a broken file, a missing end-of-text token, or pieces whose bytes cannot be determined.
        """
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{where}: is not a tokenizer of the tokenizers library ({error})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # text that spells a special token is plain text
        self._definition = definition
        self.spec = spec
        self._vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        if self.vocab_size > MAX_VOCAB_SIZE:
            raise UserError(f"{where}: has a token of id {self.vocab_size - 1}; allowed: below {MAX_VOCAB_SIZE}")
        self.eos_id = self._find_eos(eos, where)
        self._byte_lengths = self._count_bytes(where)

    def _find_eos(self, eos: str | None, where: str) -> int:
        wanted = (eos,) if eos else END_OF_TEXT_NAMES
        found = next((name for name in wanted if name in self._vocab), None)
        if found is None:
            hint = f"has no token {eos!r}" if eos else f"has none of {' '.join(END_OF_TEXT_NAMES)}"
            raise UserError(f"{where}: {hint}; name its end-of-text token as in tokenizer.json#<token>")
        return self._vocab[found]

    def _count_bytes(self, where: str) -> np.ndarray:
        count = _piece_counter(parse_json(self._definition, where).get("decoder"), where)
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for piece, index in self._vocab.items():
            lengths[index] = count(piece)
        for index, token in self._tokenizer.get_added_tokens_decoder().items():
            lengths[index] = 0 if token.special else len(token.content.encode())
        lengths[self.eos_id] = 0
        return lengths

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([index for index in ids if index != self.eos_id], skip_special_tokens=True)

    def token_byte_lengths(self) -> np.ndarray:
        return self._byte_lengths.copy()

    def definition(self) -> str:
        return self._definition

    @property
    def eos(self) -> str:
        return self._tokenizer.id_to_token(self.eos_id) or super().eos

    @property
    def vocabulary_id(self) -> str:
        model = json.loads(self._tokenizer.to_str())["model"]  # in the library's own form, whatever that of the file
        pieces = sorted(self._vocab.items(), key=lambda item: item[1])
        scores = model["vocab"] if isinstance(model["vocab"], list) else None
        content = json.dumps([pieces, model.get("merges"), scores, self.eos_id])
        return hashlib.sha256(content.encode()).hexdigest()


def _piece_counter(decoder: dict[str, Any] | None, where: str) -> Callable[[str], int]:
    """The function from a vocabulary piece to its number of text bytes, from the decoder that joins pieces to text."""
    parts = [decoder, *decoder.get("decoders", [])] if decoder else []
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return len  # each byte is written as one character
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise UserError(
        f"{where}: decoder {sorted(kinds) or 'none'} does not tell the bytes of a token; use a byte-level tokenizer"
    )


def _sentencepiece_bytes(piece: str) -> int:
    return 1 if re.fullmatch(r"<0x[0-9A-F]{2}>", piece) else len(piece.replace("▁", " ").encode())


def train_bpe(texts: Iterator[str], vocab_size: int) -> JsonTokenizer:
    """Byte-level BPE with `vocab_size` tokens, `<|endoftext|>` among them; the same texts give the same tokenizer.

    About the first 64 MiB of text are used. Raises UserError if there is too little text for that many tokens.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_at_most(texts, MAX_TRAINING_BYTES), trainer)
    n_tokens = tokenizer.get_vocab_size()
    spec = f"bpe-{vocab_size}"
    if n_tokens < vocab_size:
        raise UserError(
            f"tokenizer {spec}: the text yields only {n_tokens} tokens; use bpe-{n_tokens} or smaller, or more text"
        )
    return JsonTokenizer(spec, tokenizer.to_str(), spec, END_OF_TEXT)


def _at_most(texts: Iterator[str], n_bytes: int) -> Iterator[str]:
    for text in texts:
        yield text[:n_bytes]
        n_bytes -= len(text.encode())
        if n_bytes <= 0:
            return
