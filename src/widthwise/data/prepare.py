"""A corpus -> a prepared folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.documents import (
    Apart,
    ByFraction,
    Corpus,
    Division,
    ProgressCallback,
    Scan,
    ignore_progress,
    scan,
    train_texts,
)
from widthwise.data.encode import SplitShards, encode
from widthwise.data.manifest import CorpusRecord
from widthwise.data.prepared import PreparedData, assemble, record_files, write_manifest
from widthwise.data.readers import open_source
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import check_spec, open_tokenizer


def prepare(
    corpus: Corpus | Path | str,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float | Sequence[Corpus | Path | str] = 0.05,
    max_tokens: int | None = None,
    n_processes: int = 1,
    reuse: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Tokenizes a corpus into `out`, which appears whole at the end or not at all.

    The corpus may be given as `open_source` takes it: a file, a folder, or the name of a corpus.
    `held_out` is the fraction of documents to hold out, which the hash of their content decides, so that neither order
    nor other documents matter; or it is corpora of which every document is held out, while all of `corpus` is trained
    on: but for documents equal to a held-out one, which are left out and counted in the manifest.
    `bpe-N` is trained on the training split alone. The result does not depend on `n_processes`: one encodes with the
    tokenizer's own threads; more need a script to be guarded with `if __name__ == "__main__":`.
    With `max_tokens`, the result is that of the documents before the first whose training tokens would exceed this
    number, and the corpus is not read to its end; only `bpe-N` is trained on training documents of the whole corpus.
    With `reuse`, a finished `out` is opened as it is; without, anything in `out` is refused.
    Raises UserError where a split would be empty, the corpus changes while it is read, or the disk is full.
    """
    check_spec(tokenizer)
    if n_processes < 1:
        raise UserError(f"processes: got {n_processes}; expected at least 1")
    check_max_tokens(max_tokens)
    division, opened = division_of(held_out), _opened(corpus)

    def fill(folder: Path) -> None:
        expected = None
        if max_tokens is None:
            expected = scan(division.entries(opened), progress)
            division.refuse_empty_split(expected, opened.name)
        trained, tokenizer_path = write_tokenizer(folder, tokenizer, opened, division, progress)
        with SplitShards(folder, trained, max_tokens) as shards:
            batches = encode(division.entries(opened), trained, tokenizer_path, n_processes)
            shards.fill(batches, lambda: progress("tokenizing", shards.n_bytes, _n_bytes_in_all(shards, expected)))
            if expected not in (None, shards.found()):
                raise UserError(f"{opened.name}: changed while it was being read; prepare it again")
        finish(folder, opened.name, division, shards, progress)

    return assemble(out, fill, reuse)


def check_max_tokens(max_tokens: int | None) -> None:
    """Raises UserError for a number that is not positive."""
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens: got {max_tokens}; expected at least 1")


def division_of(held_out: float | Sequence[Corpus | Path | str]) -> Division:
    """The division that `held_out` of `prepare` asks for; reads sources once. Raises UserError as `prepare`."""
    if isinstance(held_out, float | int):
        return ByFraction(held_out)
    return Apart.of([_opened(each) for each in ([held_out] if isinstance(held_out, str) else held_out)])


def _opened(source: Corpus | Path | str) -> Corpus:
    return source if isinstance(source, Corpus) else open_source(str(source))


def write_tokenizer(
    folder: Path, spec: str, corpus: Corpus, division: Division, progress: ProgressCallback
) -> tuple[Tokenizer, Path]:
    """The tokenizer of a spec, trained on the training split where it is to be, and its file, written into a folder."""

    def training_texts() -> Iterator[str]:
        progress("training the tokenizer", 0, None)
        return train_texts(division.entries(corpus))

    tokenizer = open_tokenizer(spec, training_texts)
    return tokenizer, tokenizer.save(folder)


def _n_bytes_in_all(shards: SplitShards, expected: Scan | None) -> int | None:
    """The bytes of text to tokenize; with `max_tokens` an estimate from the tokens so far."""
    if expected is not None:
        return expected.n_bytes
    assert shards.max_tokens is not None
    if shards.is_full:
        return shards.n_bytes
    return round(shards.n_bytes * shards.max_tokens / shards.n_train_tokens) if shards.n_train_tokens else None


def finish(folder: Path, name: str, division: Division, shards: SplitShards, progress: ProgressCallback) -> None:
    """Writes the manifest of a folder that holds shards and tokenizer. Raises UserError where a split is empty.

    name: of the corpus.
    """
    found = shards.found()
    if shards.max_tokens is not None and found.n_held_out in (0, found.n_documents):
        raise UserError(
            f"max_tokens: got {shards.max_tokens}, which leaves {found.n_documents - found.n_held_out} documents for "
            f"training and {found.n_held_out} held out; raise it, or cut the text into more documents (document_bytes)"
        )
    division.refuse_empty_split(found, name)
    write_manifest(
        folder,
        tokenizer=shards.tokenizer,
        corpus=CorpusRecord(
            name=name, fingerprint=found.fingerprint, n_documents=found.n_documents, n_bytes=found.n_bytes
        ),
        splits=shards.splits(),
        files=record_files(folder, progress),
        held_out_fraction=division.fraction,
        held_out_from=division.record(found),
    )
