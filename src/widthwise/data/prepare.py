"""A corpus -> a prepared folder."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.assemble import assemble, record_files, write_manifest
from widthwise.data.division import Apart, ByFraction, Division
from widthwise.data.documents import Corpus, ProgressCallback, Scan, Scanner, ignore_progress, scan, train_texts
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
    if isinstance(held_out, float | int):
        division = ByFraction(held_out)
    else:
        division = Apart.of([_opened(each) for each in ([held_out] if isinstance(held_out, str) else held_out)])
    preparation = _Preparation(_opened(corpus), division, max_tokens, n_processes, progress)
    return assemble(out, lambda folder: preparation.write(folder, tokenizer), reuse)


def _opened(source: Corpus | Path | str) -> Corpus:
    return source if isinstance(source, Corpus) else open_source(str(source))


def check_max_tokens(max_tokens: int | None) -> None:
    """Raises UserError for a number that is not positive."""
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens: got {max_tokens}; expected at least 1")


class _Preparation:
    """One run of `prepare`: what is read, and how far."""

    def __init__(
        self, corpus: Corpus, division: Division, max_tokens: int | None, n_processes: int, progress: ProgressCallback
    ):
        self._corpus = corpus
        self._division = division
        self._max_tokens = max_tokens
        self._n_processes = n_processes
        self._progress = progress

    def write(self, folder: Path, spec: str) -> None:
        """Fills the folder, the manifest last."""
        expected = None
        if self._max_tokens is None:
            expected = scan(self._division.entries(self._corpus), self._progress)
            self._division.refuse_empty_split(expected, self._corpus.name)
        tokenizer = open_tokenizer(spec, self._training_texts)
        tokenizer_path = tokenizer.save(folder)
        found, splits = self._write_shards(folder, tokenizer, tokenizer_path, expected)
        if self._max_tokens is not None:
            refuse_too_few_tokens(found, self._max_tokens)
        finish(
            folder,
            name=self._corpus.name,
            tokenizer=tokenizer,
            division=self._division,
            found=found,
            splits=splits,
            progress=self._progress,
        )

    def _training_texts(self) -> Iterator[str]:
        self._progress("training the tokenizer", 0, None)
        return train_texts(self._division.entries(self._corpus))

    def _write_shards(
        self, folder: Path, tokenizer: Tokenizer, tokenizer_path: Path, expected: Scan | None
    ) -> tuple[Scan, Splits]:
        entries = self._division.entries(self._corpus)
        with SplitShards(folder, tokenizer, Scanner(), self._max_tokens) as shards:
            with closing(encode(entries, tokenizer, tokenizer_path, self._n_processes)) as batches:
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
    division: Division,
    found: Scan,
    splits: Splits,
    progress: ProgressCallback,
) -> None:
    """Writes the manifest of a folder that holds shards and tokenizer. Raises UserError where a split is empty."""
    division.refuse_empty_split(found, name)
    write_manifest(
        folder,
        tokenizer=tokenizer,
        corpus=CorpusRecord(
            name=name, fingerprint=found.fingerprint, n_documents=found.n_documents, n_bytes=found.n_bytes
        ),
        splits=splits,
        files=record_files(folder, progress),
        held_out_fraction=division.fraction,
        held_out_from=division.record(found),
    )


def refuse_too_few_tokens(found: Scan, max_tokens: int) -> None:
    """Raises UserError where the documents that fit leave a split empty."""
    if found.n_held_out in (0, found.n_documents):
        raise UserError(
            f"max_tokens: got {max_tokens}, which leaves {found.n_documents - found.n_held_out} documents for training "
            f"and {found.n_held_out} held out; raise it, or cut the text into more documents (document_bytes)"
        )
