"""Preparation of a corpus: tokenize it into a folder that is written atomically."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from widthwise.data.documents import (
    Corpus,
    Division,
    HeldOutFraction,
    HeldOutSources,
    ProgressCallback,
    Scan,
    ignore_progress,
    scan,
    train_texts,
)
from widthwise.data.encode import SplitShards, encode, encode_with_workers
from widthwise.data.json_tokenizer import check_spec, open_tokenizer
from widthwise.data.manifest import CorpusRecord
from widthwise.data.prepared import PreparedData, assemble, record_files, write_manifest
from widthwise.data.readers import open_source
from widthwise.mistakes import UserError


def prepare(
    corpus: Corpus | Path | str,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float | Sequence[Corpus | Path | str] = 0.05,
    max_tokens: int | None = None,
    n_workers: int | None = None,
    reuse: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Tokenize a corpus into `out` atomically, and open it.

    corpus: a Corpus, a file, a folder, or a name, see `open_source`. held_out: the fraction of documents to hold out by
    a hash of their content, or sources that are held out completely; then all of `corpus` is trained on, except for
    documents equal to a held-out one, which are left out and counted in the manifest. `bpe-N` is trained on the
    training split alone. n_workers: number of processes that encode, with the same result; default: threads of this
    process. max_tokens: stop before the first training document that would exceed this number, without reading the
    rest of the corpus; `bpe-N` is still trained on the whole corpus. reuse: open a finished `out`; otherwise anything
    in `out` is refused.

    Raises UserError if a split is empty, the corpus changes while it is read, a worker dies, or the disk is full.
    """
    check_spec(tokenizer)
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens: got {max_tokens}; expected at least 1")
    if n_workers is not None and n_workers < 1:
        raise UserError(f"workers: got {n_workers}; expected at least 1")
    opened = _opened(corpus)
    if isinstance(held_out, float | int):
        division = HeldOutFraction(held_out)
    else:
        sources = [held_out] if isinstance(held_out, str) else held_out
        division = HeldOutSources([_opened(source) for source in sources])

    def training_texts() -> Iterator[str]:
        progress("training the tokenizer", 0, None)
        return train_texts(division.entries(opened))

    def fill(folder: Path) -> None:
        expected = None
        if max_tokens is None:
            expected = scan(division.entries(opened), progress)
            division.refuse_empty_split(expected, opened.name)
        trained = open_tokenizer(tokenizer, training_texts)
        file = trained.save(folder)
        entries = division.entries(opened)
        if n_workers is None:
            batches = encode(entries, trained)
        else:
            batches = encode_with_workers(entries, trained.spec, file, n_workers)
        with SplitShards(folder, trained, max_tokens) as shards, closing(batches):
            shards.fill(batches, lambda: progress("tokenizing", shards.n_bytes, _n_bytes_in_all(shards, expected)))
            if expected not in (None, shards.found()):
                raise UserError(f"{opened.name}: changed while it was being read; prepare it again")
        _finish(folder, opened.name, division, shards, progress)

    return assemble(out, fill, reuse)


def _opened(source: Corpus | Path | str) -> Corpus:
    return source if isinstance(source, Corpus) else open_source(str(source))


def _n_bytes_in_all(shards: SplitShards, expected: Scan | None) -> int | None:
    """Return the bytes of text to tokenize; with `max_tokens` an estimate from the tokens so far."""
    if expected is not None:
        return expected.n_bytes
    assert shards.max_tokens is not None
    if shards.is_full:
        return shards.n_bytes
    return round(shards.n_bytes * shards.max_tokens / shards.n_train_tokens) if shards.n_train_tokens else None


def _finish(folder: Path, name: str, division: Division, shards: SplitShards, progress: ProgressCallback) -> None:
    """Write the manifest of a folder with shards and tokenizer. Raises UserError for an empty split.

    name: of the corpus.
    """
    totals = shards.found()
    if shards.max_tokens is not None and totals.n_held_out in (0, totals.n_documents):
        raise UserError(
            f"max_tokens: got {shards.max_tokens}, which leaves {totals.n_documents - totals.n_held_out} documents for "
            f"training and {totals.n_held_out} held out; raise it, or cut the text into more documents (document_bytes)"
        )
    division.refuse_empty_split(totals, name)
    write_manifest(
        folder,
        tokenizer=shards.tokenizer,
        corpus=CorpusRecord(
            name=name, fingerprint=totals.fingerprint, n_documents=totals.n_documents, n_bytes=totals.n_bytes
        ),
        splits=shards.splits(),
        files=record_files(folder, progress),
        held_out_fraction=division.fraction,
        held_out_from=division.record(totals),
    )
