"""Existing Megatron-LM shards -> a prepared folder."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.assemble import assemble, record_files, write_manifest
from widthwise.data.documents import ProgressCallback, ignore_progress
from widthwise.data.manifest import CorpusRecord, SplitRecord, Splits
from widthwise.data.prepared import PreparedData, checked_parts
from widthwise.data.shards import TokenFile, bin_path, idx_path
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import open_tokenizer
from widthwise.files import FileRecord

COPIED_BYTES_AT_ONCE = 2**24


def adopt(
    train: Path | str,
    held_out: Path | str,
    out: Path | str,
    *,
    tokenizer: str,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Checks two token files, each `PREFIX.bin` and `PREFIX.idx`, and links them into `out`, which appears whole.

    `tokenizer` is the spec of the tokenizer that made them. Hard links take no space and survive the
    deletion of the originals; where they are impossible, as across file systems, the files are copied. The originals
    are not changed.
    Raises UserError for a file that is damaged, empty or holds a token outside the vocabulary, the same file twice,
    `bpe-N`, which names a tokenizer yet to be trained, and an `out` that is occupied or cannot be written.
    """
    adoption = _Adoption(TokenFile(Path(train)), TokenFile(Path(held_out)), _known_tokenizer(tokenizer), progress)
    return assemble(out, adoption.write)


def _known_tokenizer(spec: str) -> Tokenizer:
    def refuse_training() -> Iterator[str]:
        raise UserError(f"tokenizer {spec!r}: would be trained anew; name the tokenizer.json that made the tokens")

    return open_tokenizer(spec, refuse_training)


class _Adoption:
    """One run of `adopt`."""

    def __init__(self, train: TokenFile, held_out: TokenFile, tokenizer: Tokenizer, progress: ProgressCallback):
        if bin_path(train.prefix).samefile(bin_path(held_out.prefix)):
            raise UserError(f"{held_out.prefix}: is given as train and as held-out; a loss on seen text says nothing")
        self._train, self._held_out = train, held_out
        self._tokenizer = tokenizer
        self._byte_lengths = tokenizer.token_byte_lengths()
        self._progress = progress

    def write(self, folder: Path) -> None:
        """Fills the folder, the manifest last; everything is checked before anything is linked."""
        splits = Splits(train=self._checked(self._train), held_out=self._checked(self._held_out))
        for name, tokens in (("train", self._train), ("held_out", self._held_out)):
            for path_of in (bin_path, idx_path):
                self._bring(path_of(tokens.prefix), path_of(folder / name))
        self._tokenizer.save(folder)
        files = record_files(folder, self._progress)
        write_manifest(
            folder,
            tokenizer=self._tokenizer,
            corpus=self._corpus(splits, files),
            splits=splits,
            files=files,
        )

    def _checked(self, tokens: TokenFile) -> SplitRecord:
        """The counts of a token file, after reading all of it."""
        if tokens.n_tokens == 0:
            raise UserError(f"{bin_path(tokens.prefix)}: holds no tokens")
        n_bytes = n_done = 0
        for part in checked_parts(tokens, self._tokenizer.vocab_size):
            n_bytes += int(self._byte_lengths[part].sum())
            n_done += part.nbytes
            self._progress(f"checking {tokens.prefix}", n_done, tokens.n_tokens * tokens.dtype.itemsize)
        return SplitRecord(
            n_documents=tokens.n_documents, n_tokens=tokens.n_tokens, n_bytes=n_bytes, n_token_bytes=n_bytes
        )

    def _bring(self, source: Path, target: Path) -> None:
        try:
            os.link(source.resolve(), target)  # the file itself: a link to a relative symbolic link would dangle
        except OSError:
            self._progress(f"copying {source}", 0, None)
            _copy(source, target)

    def _corpus(self, splits: Splits, files: dict[str, FileRecord]) -> CorpusRecord:
        checksums = "".join(f"{name} {record.sha256}\n" for name, record in files.items())
        return CorpusRecord(
            name=f"{self._train.prefix} + {self._held_out.prefix}",
            fingerprint=hashlib.sha256(checksums.encode()).hexdigest(),
            n_documents=splits.train.n_documents + splits.held_out.n_documents,
            n_bytes=splits.train.n_bytes + splits.held_out.n_bytes,
        )


def _copy(source: Path, target: Path) -> None:
    try:
        with open(source, "rb") as original, open(target, "xb") as copy:
            shutil.copyfileobj(original, copy, COPIED_BYTES_AT_ONCE)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        raise UserError(f"{target}: cannot be copied from {source} ({error.strerror})") from None
