"""The tokenizer interface, and byte tokens."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from widthwise.files import write_atomic
from widthwise.mistakes import UserError

N_BYTES = 256


class Tokenizer(ABC):
    """Converts text to token ids and back.

    Encoding adds no special tokens. Text that spells a special token is encoded as plain text, or refused.
    """

    spec: str
    """Name of the tokenizer in a recipe."""
    vocab_size: int
    """All ids in data are below it."""
    eos_id: int
    """The token at the end of every document."""
    bos_id: int | None = None
    """The token at the beginning of each text that a pretrained model reads; `encode` does not add it."""
    other_ends: frozenset[int] = frozenset()
    """Tokens at which a pretrained model ends an answer; may contain `eos_id`."""
    file_name: str
    """Name of the file that `save` writes. `restore_tokenizer` chooses the class by it."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the ids, without special and unknown ids; an incomplete character becomes U+FFFD."""

    @abstractmethod
    def token_byte_lengths(self) -> np.ndarray:
        """Return int64 (vocab_size,), the number of text bytes of each token; 0 for special tokens and unused ids."""

    @abstractmethod
    def definition(self) -> str:
        """Return the content of the tokenizer's file, which determines the tokenization."""

    def name_of(self, index: int) -> str:
        """Return the token's text, or its id."""
        return str(index)

    @property
    def eos(self) -> str:
        return self.name_of(self.eos_id)

    @property
    def id(self) -> str:
        """sha256 (hex) of the definition and `eos_id`; tokenizers with the same id give the same tokens."""
        return hashlib.sha256(f"{self.definition()}\n{self.eos_id}".encode()).hexdigest()

    @property
    def vocabulary_id(self) -> str:
        """sha256 (hex) of tokens, merges and end of text, but not of the rest of the file.

        A model for one tokenizer fits all tokenizers with the same vocabulary_id.
        """
        return self.id

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    @property
    def n_used(self) -> int:
        """Smallest vocab_size of a model for texts with `bos_id` and `eos_id`."""
        return self.vocab_size

    def as_pretrained(self, token_ids: Mapping[str, int | list[int]]) -> Self:
        """Set `other_ends`, in place, to the tokens of a pretrained model. token_ids: see `ImportedModel.token_ids`."""
        ends = token_ids.get("eos_token_id", [])
        self.other_ends = frozenset(ends if isinstance(ends, list) else [ends])
        return self

    def encode_prompt(self, text: str) -> list[int]:
        """Return `bos_id`, if any, and the ids of a text to continue; `eos_id` if there are none."""
        beginning = [] if self.bos_id is None else [self.bos_id]
        return [*beginning, *self.encode(text)] or [self.eos_id]

    @property
    def bos_note(self) -> str | None:
        """Message for the user about `bos_id`; None without it."""
        if self.bos_id is None:
            return None
        return f"texts begin with {self.name_of(self.bos_id)}, as in the model's tokenizer; --no-bos omits it"

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self.other_ends | {self.eos_id}

    def decode_after(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of ids after a prompt. They are decoded together: some decoders drop a leading space."""
        return self.decode([*prompt, *ids])[len(self.decode(prompt)) :]

    def save(self, folder: Path) -> Path:
        """Write the file that `restore_tokenizer` reads, and return its path."""
        path = folder / self.file_name
        write_atomic(path, self.definition())
        return path


@contextmanager
def refusing_panics(message: str) -> Iterator[None]:
    """Turn any Exception of the block into a UserError, and the PanicException of a Rust library, a BaseException."""
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{message} ({error})") from None


class ByteTokenizer(Tokenizer):
    """One token per byte."""

    spec = "bytes"
    vocab_size = N_BYTES + 1
    eos_id = N_BYTES
    file_name = "tokenizer_spec.json"

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(index for index in ids if index < N_BYTES).decode(errors="replace")

    def token_byte_lengths(self) -> np.ndarray:
        return np.array([1] * N_BYTES + [0], dtype=np.int64)

    def definition(self) -> str:
        return json.dumps({"spec": self.spec}) + "\n"
