"""The names of tokenizers in recipes.

bytes                          the 256 bytes and an end-of-text token
bpe-4096                       byte-level BPE of that size, trained on the corpus
path/to/tokenizer.json[#EOS]   a file of the `tokenizers` library; EOS names its end-of-text token
tiktoken:cl100k_base           an encoding of the tiktoken library (extra `tiktoken`)
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.json_tokenizer import END_OF_TEXT, JsonTokenizer, train_bpe
from widthwise.data.tokenizer import N_BYTES, ByteTokenizer, TiktokenTokenizer, Tokenizer
from widthwise.files import read_text


def check_spec(spec: str) -> str:
    """The spec itself if it is well formed; nothing is loaded. Raises UserError otherwise."""
    size = _bpe_size(spec)
    if size is not None and size <= N_BYTES:
        raise UserError(f"tokenizer {spec!r}: a byte-level BPE has at least {N_BYTES + 1} tokens")
    if spec == "bytes" or size or re.fullmatch(r"tiktoken:.+|.+\.json(#.+)?", spec):
        return spec
    raise UserError(f"tokenizer {spec!r}: allowed: bytes, bpe-N, path/to/tokenizer.json, tiktoken:NAME")


def open_tokenizer(spec: str, training_texts: Callable[[], Iterator[str]] | None = None) -> Tokenizer:
    """The tokenizer that a spec names. `training_texts` gives the texts to train `bpe-N` on; others do not call it."""
    size = _bpe_size(check_spec(spec))
    if size is not None:
        if training_texts is None:
            raise UserError(
                f"tokenizer {spec!r}: is trained on a corpus; name bytes, tiktoken:NAME or a tokenizer.json"
            )
        return train_bpe(training_texts(), size)
    path, _, eos = spec.partition("#")
    return _built_in(spec) or JsonTokenizer(spec, read_text(Path(path)), path, eos or None)


def restore_tokenizer(spec: str, path: Path) -> Tokenizer:
    """The tokenizer that `save` wrote at `path`, under its spec. Raises UserError if file and spec disagree."""
    if path.name == JsonTokenizer.file_name:
        eos = END_OF_TEXT if _bpe_size(spec) else spec.partition("#")[2]
        return JsonTokenizer(spec, read_text(path), str(path), eos or None)
    tokenizer = _built_in(spec)
    if tokenizer is None or tokenizer.definition() != read_text(path):
        raise UserError(f"{path}: does not describe the tokenizer {spec!r} as it is on this machine")
    return tokenizer


def _bpe_size(spec: str) -> int | None:
    """The vocabulary size in `bpe-N`, or None for another spec."""
    match = re.fullmatch(r"bpe-(\d+)", spec)
    return int(match[1]) if match else None


def _built_in(spec: str) -> Tokenizer | None:
    """A tokenizer that needs only its name."""
    if spec.startswith("tiktoken:"):
        return TiktokenTokenizer(spec.removeprefix("tiktoken:"))
    return ByteTokenizer() if spec == ByteTokenizer.spec else None
