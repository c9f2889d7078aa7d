"""Encodings of the tiktoken library (extra `tiktoken`)."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.extras import require
from widthwise.data.tokenizer import Tokenizer


class TiktokenTokenizer(Tokenizer):
    """An encoding of the tiktoken library. Its vocabulary here ends at the last id that can occur in data."""

    file_name = "tokenizer_spec.json"

    def __init__(self, name: str):
        """Raises UserError if the extra is missing, the name is unknown, or the encoding's file cannot be loaded."""
        self.spec = f"tiktoken:{name}"
        self._encoding = _tiktoken_encoding(name)
        pieces = self._ordinary_pieces()
        self.eos_id = self._encoding.eot_token
        self.vocab_size = max(*pieces, self.eos_id) + 1
        self._byte_lengths = np.zeros(self.vocab_size, dtype=np.int64)
        self._byte_lengths[list(pieces)] = [len(piece) for piece in pieces.values()]
        self._ordinary = frozenset(pieces)
        listing = b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces.values())
        self._pieces_sha256 = hashlib.sha256(listing).hexdigest()

    def _ordinary_pieces(self) -> dict[int, bytes]:
        special = {self._encoding.encode_single_token(token) for token in self._encoding.special_tokens_set}
        pieces: dict[int, bytes] = {}
        for index in range(self._encoding.n_vocab):
            try:
                pieces[index] = self._encoding.decode_single_token_bytes(index)
            except KeyError:
                continue  # an id without a token
        return {index: piece for index, piece in pieces.items() if index not in special}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encoding.encode_ordinary_batch(list(texts))

    def decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode([index for index in ids if index in self._ordinary])

    def token_byte_lengths(self) -> np.ndarray:
        return self._byte_lengths.copy()

    def definition(self) -> str:
        return json.dumps({"spec": self.spec, "pieces_sha256": self._pieces_sha256}) + "\n"


def _tiktoken_encoding(name: str) -> Any:
    tiktoken = require("tiktoken", "tiktoken")
    try:
        return tiktoken.get_encoding(name)
    except OSError:
        hint = "set TIKTOKEN_CACHE_DIR to a folder that holds it, or connect to the network"
        raise UserError(f"tokenizer tiktoken:{name}: its file cannot be loaded; {hint}") from None
    except ValueError:
        known = ", ".join(tiktoken.list_encoding_names())
        raise UserError(
            f"tokenizer tiktoken:{name}: no such encoding, or its file is damaged; known: {known}"
        ) from None
