"""Existing Megatron-LM shards -> a prepared folder."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.documents import Counter, ProgressCallback, ignore_progress
from widthwise.data.json_tokenizer import open_tokenizer
from widthwise.data.manifest import CorpusRecord, SplitRecord, Splits
from widthwise.data.prepared import PreparedData, assemble, checked_parts, record_files, write_manifest
from widthwise.data.shards import TokenFile, bin_path, idx_path
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import fsync_file


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
    files = {"train": TokenFile(Path(train)), "held_out": TokenFile(Path(held_out))}
    known = open_tokenizer(tokenizer, lambda: _refuse_training(tokenizer))
    if bin_path(files["train"].prefix).samefile(bin_path(files["held_out"].prefix)):
        given = "is given as train and as held-out; a loss on seen text says nothing"
        raise UserError(f"{files['held_out'].prefix}: {given}")

    def fill(folder: Path) -> None:
        splits = Splits(**{name: _checked(tokens, known, progress) for name, tokens in files.items()})
        for name, tokens in files.items():
            for path_of in (bin_path, idx_path):
                _bring(path_of(tokens.prefix), path_of(folder / name), progress)
        known.save(folder)
        records = record_files(folder, progress)
        checksums = "".join(f"{name} {record.sha256}\n" for name, record in records.items())
        corpus = CorpusRecord(
            name=" + ".join(str(tokens.prefix) for tokens in files.values()),
            fingerprint=hashlib.sha256(checksums.encode()).hexdigest(),
            n_documents=splits.train.n_documents + splits.held_out.n_documents,
            n_bytes=splits.train.n_bytes + splits.held_out.n_bytes,
        )
        write_manifest(folder, tokenizer=known, corpus=corpus, splits=splits, files=records)

    return assemble(out, fill)


def _refuse_training(spec: str) -> Iterator[str]:
    raise UserError(f"tokenizer {spec!r}: would be trained anew; name the tokenizer.json that made the tokens")


def _checked(tokens: TokenFile, tokenizer: Tokenizer, progress: ProgressCallback) -> SplitRecord:
    """The counts of a token file, after reading all of it."""
    if tokens.n_tokens == 0:
        raise UserError(f"{bin_path(tokens.prefix)}: holds no tokens")
    byte_lengths, n_bytes = tokenizer.token_byte_lengths(), 0
    done = Counter(progress, f"checking {tokens.prefix}", tokens.n_bytes)
    for part in checked_parts(tokens, tokenizer.vocab_size):
        n_bytes += int(byte_lengths[part].sum())
        done.add(part.nbytes)
    return SplitRecord(n_documents=tokens.n_documents, n_tokens=tokens.n_tokens, n_bytes=n_bytes, n_token_bytes=n_bytes)


def _bring(source: Path, target: Path, progress: ProgressCallback) -> None:
    try:
        os.link(source.resolve(), target)  # the file itself: a link to a relative symbolic link would dangle
    except OSError:
        progress(f"copying {source}", 0, None)
        try:
            shutil.copyfile(source, target)
            fsync_file(target)
        except OSError as error:
            raise UserError(f"{target}: cannot be copied from {source} ({error.strerror})") from None
