"""A corpus -> a prepared folder."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.assemble import assemble, record_files, write_manifest
from widthwise.data.documents import (
    Corpus,
    ProgressCallback,
    Scan,
    Scanner,
    ignore_progress,
    scan,
    train_texts,
)
from widthwise.data.encode import encode
from widthwise.data.manifest import CorpusRecord, Splits
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import open_source
from widthwise.data.split_shards import SplitShards
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import check_spec, open_tokenizer


def prepare(
    corpus: Corpus | Path | str,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float = 0.05,
    max_tokens: int | None = None,
    n_processes: int = 1,
    reuse: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Tokenizes a corpus into `out`, which appears whole at the end or not at all.

    The corpus may be given as `open_source` takes it: a file, a folder, or the name of a corpus.
    A document is held out by the hash of its content, so that neither order nor other documents matter. `bpe-N` is
    trained on the training split alone. The result does not depend on `n_processes`: one encodes with the tokenizer's
    own threads; more need a script to be guarded with `if __name__ == "__main__":`.
    With `max_tokens`, the result is that of the documents before the first whose training tokens would exceed this
    number, and the corpus is not read to its end; only `bpe-N` is trained on training documents of the whole corpus.
    With `reuse`, a finished `out` is opened as it is; without, anything in `out` is refused.
    Raises UserError where a split would be empty, the corpus changes while it is read, or the disk is full.
    """
    check_spec(tokenizer)
    if n_processes < 1:
        raise UserError(f"processes: got {n_processes}; expected at least 1")
    check_max_tokens(max_tokens)
    source = corpus if isinstance(corpus, Corpus) else open_source(str(corpus))
    preparation = _Preparation(source, held_out, max_tokens, n_processes, progress)
    return assemble(out, lambda folder: preparation.write(folder, tokenizer), reuse)


def check_max_tokens(max_tokens: int | None) -> None:
    """Raises UserError for a number that is not positive."""
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens: got {max_tokens}; expected at least 1")


class _Preparation:
    """One run of `prepare`: what is read, and how far."""

    def __init__(
        self, corpus: Corpus, held_out: float, max_tokens: int | None, n_processes: int, progress: ProgressCallback
    ):
        self._corpus = corpus
        self._held_out = held_out
        self._max_tokens = max_tokens
        self._n_processes = n_processes
        self._progress = progress

    def write(self, folder: Path, spec: str) -> None:
        """Fills the folder, the manifest last."""
        expected = None
        if self._max_tokens is None:
            expected = scan(self._corpus, self._held_out, self._progress)
            refuse_empty_split(expected, self._corpus.name, self._held_out)
        tokenizer = open_tokenizer(spec, self._training_texts)
        tokenizer_path = tokenizer.save(folder)
        found, splits = self._write_shards(folder, tokenizer, tokenizer_path, expected)
        if self._max_tokens is not None:
            refuse_too_few_tokens(found, self._max_tokens)
        finish(
            folder,
            name=self._corpus.name,
            tokenizer=tokenizer,
            held_out=self._held_out,
            found=found,
            splits=splits,
            progress=self._progress,
        )

    def _training_texts(self) -> Iterator[str]:
        self._progress("training the tokenizer", 0, None)
        return train_texts(self._corpus, self._held_out)

    def _write_shards(
        self, folder: Path, tokenizer: Tokenizer, tokenizer_path: Path, expected: Scan | None
    ) -> tuple[Scan, Splits]:
        scanner = Scanner(self._held_out)
        with SplitShards(folder, tokenizer, scanner, self._max_tokens) as shards:
            with closing(encode(self._corpus, scanner, tokenizer, tokenizer_path, self._n_processes)) as batches:
                for batch in batches:
                    shards.add(batch)
                    self._progress("tokenizing", shards.n_bytes, self._n_bytes_in_all(shards, expected))
                    if shards.is_full:
                        break
            if expected not in (None, shards.found()):
                raise UserError(f"{self._corpus.name}: changed while it was being read; prepare it again")
        return shards.found(), shards.splits()

    def _n_bytes_in_all(self, shards: SplitShards, expected: Scan | None) -> int | None:
        """The bytes of text to tokenize; with `max_tokens` an estimate from the tokens so far."""
        if expected is not None:
            return expected.n_bytes
        assert self._max_tokens is not None
        if shards.is_full:
            return shards.n_bytes
        return round(shards.n_bytes * self._max_tokens / shards.n_train_tokens) if shards.n_train_tokens else None


def finish(
    folder: Path,
    *,
    name: str,
    tokenizer: Tokenizer,
    held_out: float,
    found: Scan,
    splits: Splits,
    progress: ProgressCallback,
) -> None:
    """Writes the manifest of a folder that holds shards and tokenizer. Raises UserError where a split is empty."""
    refuse_empty_split(found, name, held_out)
    write_manifest(
        folder,
        tokenizer=tokenizer,
        corpus=CorpusRecord(
            name=name, fingerprint=found.fingerprint, n_documents=found.n_documents, n_bytes=found.n_bytes
        ),
        held_out_fraction=held_out,
        splits=splits,
        files=record_files(folder, progress),
    )


def refuse_too_few_tokens(found: Scan, max_tokens: int) -> None:
    """Raises UserError where the documents that fit leave a split empty."""
    if found.n_held_out in (0, found.n_documents):
        raise UserError(
            f"max_tokens: got {max_tokens}, which leaves {found.n_documents - found.n_held_out} documents for training "
            f"and {found.n_held_out} held out; raise it, or cut the text into more documents (document_bytes)"
        )


def refuse_empty_split(found: Scan, name: str, held_out: float) -> None:
    n_train = found.n_documents - found.n_held_out
    if found.n_documents == 0:
        raise UserError(f"{name}: holds no documents")
    if n_train == 0 or found.n_held_out == 0:
        change = "lower" if n_train == 0 else "raise"
        raise UserError(
            f"{name}: held_out {held_out} puts {n_train} of {found.n_documents} documents in training and "
            f"{found.n_held_out} in held-out; {change} held_out, or cut the text into more documents (document_bytes)"
        )
