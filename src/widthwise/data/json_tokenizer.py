"""Tokenizers of the `tokenizers` library, and the specs of all kinds of tokenizers in recipes.

bytes                          the 256 bytes and an end-of-text token
bpe-4096                       byte-level BPE of that size, trained on the corpus
path/to/tokenizer.json[#EOS]   a file of the `tokenizers` library whose tokens have known bytes; EOS: end-of-text token
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from widthwise.data.tokenizer import N_BYTES, ByteTokenizer, Tokenizer, refusing_panics
from widthwise.files import read_text
from widthwise.mistakes import UserError, shortened

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_NAMES = (END_OF_TEXT, "</s>", "<eos>", "<|end_of_text|>", "<|eos|>", "[EOS]")
MAX_VOCAB_SIZE = 2**24
"""A generous limit: every id up to the largest takes memory, even if unused."""
MAX_GROWTH = 1000
"""Largest factor by which an untrusted tokenizer may lengthen a text; Llama's, GPT-2's and Qwen's stay below 200."""
GROWTH = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 1.5, "BertNormalizer": 8, "ByteLevel": 4}
"""Type of a part of tokenizer.json -> largest number of bytes that replace one. Unicode forms: from standard annex 15;
ByteLevel writes a byte as up to two, with a space before it."""
MAX_TRAINING_BYTES = 64 * 2**20
"""Largest text for training a BPE tokenizer, approximately: more changes little and takes minutes."""


class JsonTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, given as the text of its tokenizer.json."""

    file_name = "tokenizer.json"

    def __init__(self, spec: str, definition: str, where: str, eos: str | None = None):
        """where: the file, for errors. eos: the end-of-text token; None: the first of END_OF_TEXT_NAMES in the file.

        Raises UserError as `read_definition`, for a missing end-of-text token, and for a decoder without known bytes.
        """
        self._where = where
        self._tokenizer, data = read_definition(definition, where)
        self._definition = definition
        self.spec = spec
        self._vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        if self.vocab_size > MAX_VOCAB_SIZE:
            raise UserError(f"{where}: has a token of id {self.vocab_size - 1}; allowed: below {MAX_VOCAB_SIZE}")
        eos_names = [name for name in ((eos,) if eos else END_OF_TEXT_NAMES) if name in self._vocab]
        if not eos_names:
            hint = f"has no token {eos!r}" if eos else f"has none of {' '.join(END_OF_TEXT_NAMES)}"
            raise UserError(f"{where}: {hint}; name its end-of-text token as in tokenizer.json#<token>")
        self.eos_id = self._vocab[eos_names[0]]
        self._tokenizer.add_special_tokens([eos_names[0]])  # even if it is a plain token in the file
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # text that spells a special token is plain text
        # Its template could repeat or drop the text.
        self._tokenizer.post_processor = None  # pyright: ignore[reportAttributeAccessIssue]
        with refusing_panics(f"{where}: post_processor"):
            self._first_id = _first_id(data.get("post_processor"))
        if self._first_id is not None and self._tokenizer.id_to_token(self._first_id) is None:
            raise UserError(f"{where}: post_processor: adds token {self._first_id}; must be one of the vocabulary")
        count_bytes = _byte_counter(data.get("decoder"), where)
        self._byte_lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for piece, index in self._vocab.items():
            self._byte_lengths[index] = count_bytes(piece)
        for index, token in self._tokenizer.get_added_tokens_decoder().items():
            self._byte_lengths[index] = 0 if token.special else len(token.content.encode())
        self._byte_lengths[self.eos_id] = 0

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        with refusing_panics(f"{self._where}: cannot encode a text"):
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            encoded = [encoding.ids for encoding in encodings]
        if any(self.eos_id in ids for ids in encoded):  # possible if merges produce it as a plain piece
            raise UserError(f"{self._where}: cannot encode a text that spells the end-of-text token {self.eos!r}")
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        with refusing_panics(f"{self._where}: cannot decode its tokens"):
            return self._tokenizer.decode([index for index in ids if index != self.eos_id], skip_special_tokens=True)

    def token_byte_lengths(self) -> np.ndarray:
        return self._byte_lengths.copy()

    def definition(self) -> str:
        return self._definition

    def plain_definition(self) -> str:
        """Return the definition without a post-processor that adds tokens, for a model trained without them."""
        data = json.loads(self._definition)
        if any("special_tokens" in part or "cls" in part for part in _mappings(data.get("post_processor"))):
            return json.dumps({**data, "post_processor": None}, ensure_ascii=False)
        return self._definition

    def name_of(self, index: int) -> str:
        return self._tokenizer.id_to_token(index) or super().name_of(index)

    @property
    def n_used(self) -> int:
        added = self._tokenizer.get_added_tokens_decoder().items()
        plain = [index for index, token in added if not token.special]
        ids = self._tokenizer.get_vocab(with_added_tokens=False).values()
        return max(*ids, *plain, self.eos_id, self._first_id or 0) + 1

    def as_pretrained(self, token_ids: Mapping[str, int | list[int]]) -> Self:
        self.bos_id = self._first_id
        return super().as_pretrained(token_ids)

    @property
    def vocabulary_id(self) -> str:
        merges = json.loads(self._tokenizer.to_str())["model"]["merges"]  # as the library writes them
        content = json.dumps([sorted(self._vocab.items()), merges, self.eos_id])
        return hashlib.sha256(content.encode()).hexdigest()


def read_definition(definition: str, where: str) -> "tuple[LibraryTokenizer, dict[str, Any]]":
    """Parse an untrusted tokenizer.json; return the tokenizer and its content.

    where: the file, for errors. Raises UserError for a damaged file, for a tokenizer that may make a text more than
    MAX_GROWTH times as long, so that encoding may never end, for one that randomly splits text, and for any but BPE.
    """
    from tokenizers import Tokenizer as LibraryTokenizer  # takes 45 ms, and a recipe only names its tokenizer
    from tokenizers.models import BPE

    with refusing_panics(f"{where}: is not a tokenizer of the tokenizers library"):
        data = json.loads(definition)
        if any("precompiled_charsmap" in part for part in _mappings(data.get("normalizer"))):
            # A binary table, which the library reads without checking bounds.
            raise UserError(f"{where}: normalizer: SentencePiece's precompiled_charsmap is not supported")
        for parts in (("normalizer", "pre_tokenizer"), ("decoder",)):
            growth = math.prod((_growth(part) for name in parts for part in _mappings(data.get(name))), start=1.0)
            if growth > MAX_GROWTH:
                mistake = f"{' and '.join(parts)} may make a text {growth:,.0f} times as long"
                raise UserError(f"{where}: {mistake}; allowed: up to {MAX_GROWTH:,} times")
        tokenizer = LibraryTokenizer.from_str(definition)
        if not isinstance(tokenizer.model, BPE):
            raise UserError(f"{where}: model: got {type(tokenizer.model).__name__}; must be BPE")
        if dropout := tokenizer.model.dropout:
            raise UserError(f"{where}: model.dropout: got {dropout:g}, which splits a text at random; allowed: null")
        return tokenizer, data


def _first_id(post_processor: Any) -> int | None:
    """Return the id of the token that a post-processor puts before a text; None unless it is exactly one."""
    for part in _mappings(post_processor):
        ids: list[int] = []
        for piece in part.get("single", ()):
            if "SpecialToken" not in piece:  # the text
                break
            ids += part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
        if len(ids) == 1:
            return ids[0]
    return None


def _mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all mappings of plain data, including nested ones."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _mappings(item)


def _growth(part: dict[str, Any]) -> float:
    """Return the largest number of bytes with which a part of tokenizer.json replaces one byte of text.

    Recognises a part by its keys, because it may have no type.
    """
    match part:
        case {"pattern": {"String": str(pattern)}, "content": content} if pattern:
            return max(1, len(content.encode()) / len(pattern.encode()))
        case {"pattern": _, "content": text} | {"prepend": text} | {"replacement": text}:
            return 1 + len(text.encode())
    return GROWTH.get(part.get("type", ""), 1)


def _byte_counter(decoder: dict[str, Any] | None, where: str) -> Callable[[str], int]:
    """Return a function from a vocabulary piece to its number of text bytes. Raises UserError for other decoders."""
    parts = [decoder, *decoder.get("decoders", [])] if decoder else []
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return len  # a piece has one character for each byte
    if kinds & {"ByteFallback", "Metaspace"}:
        return lambda piece: 1 if re.fullmatch(r"<0x[0-9A-F]{2}>", piece) else len(piece.replace("▁", " ").encode())
    raise UserError(
        f"{where}: decoder {sorted(kinds) or 'none'} does not tell the bytes of a token; use a byte-level tokenizer"
    )


def train_bpe(texts: Iterator[str], vocab_size: int) -> JsonTokenizer:
    """Train byte-level BPE of `vocab_size` tokens, including `<|endoftext|>`. Deterministic.

    Uses about the first 64 MiB of text. Raises UserError for too little text.
    """
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = LibraryTokenizer(models.BPE())
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
    """Yield texts until they have about n_bytes."""
    for text in texts:
        yield text[:n_bytes]
        n_bytes -= len(text.encode())
        if n_bytes <= 0:
            return


def check_spec(spec: str) -> str:
    """Validate a spec without loading anything, and return it. Raises UserError."""
    if spec == ByteTokenizer.spec or _bpe_size(spec) or re.fullmatch(r".+\.json(#.+)?", spec):
        return spec
    sizes = f"bpe-N (N from {N_BYTES + 1} to {MAX_VOCAB_SIZE})"
    raise UserError(f"tokenizer {shortened(spec)}: allowed: bytes, {sizes}, path/to/tokenizer.json")


def open_tokenizer(spec: str, training_texts: Callable[[], Iterator[str]] | None = None) -> Tokenizer:
    """Return the tokenizer of a spec. training_texts: returns the texts to train `bpe-N` on; not called for others."""
    size = _bpe_size(check_spec(spec))
    if size is not None:
        if training_texts is None:
            raise UserError(f"tokenizer {spec!r}: is trained on a corpus; name bytes or a tokenizer.json")
        return train_bpe(training_texts(), size)
    if spec == ByteTokenizer.spec:
        return ByteTokenizer()
    path, _, eos = spec.partition("#")
    return JsonTokenizer(spec, read_text(Path(path)), path, eos or None)


def restore_tokenizer(spec: str, path: Path) -> Tokenizer:
    """Read a tokenizer that `save` wrote. Raises UserError if file and spec disagree."""
    if path.name == JsonTokenizer.file_name:
        eos = END_OF_TEXT if _bpe_size(spec) else spec.partition("#")[2]
        return JsonTokenizer(spec, read_text(path), str(path), eos or None)
    if spec != ByteTokenizer.spec or ByteTokenizer().definition() != read_text(path):
        raise UserError(f"{path}: differs from the tokenizer {spec!r}")
    return ByteTokenizer()


def _bpe_size(spec: str) -> int | None:
    """Return the vocabulary size of `bpe-N`; None for another spec, or a size that is not allowed."""
    match = re.fullmatch(r"bpe-([0-9]{1,9})", spec)
    return int(match[1]) if match and N_BYTES < int(match[1]) <= MAX_VOCAB_SIZE else None


def token_named(definition: str, index: int | list[int] | None, where: str) -> str | None:
    """Return the text of a token in a tokenizer.json; None without an index, or for one that is not in the vocabulary.

    index: one id, or a list, whose first id is used. Raises UserError for an invalid file or index.
    """
    first = index[0] if isinstance(index, list) and index else index
    if first is None or first == []:
        return None
    if type(first) is not int or not 0 <= first < 2**31:
        raise UserError(f"{where}: end of text: the model names {first!r}; allowed: the number of a token")
    return read_definition(definition, where)[0].id_to_token(first)
