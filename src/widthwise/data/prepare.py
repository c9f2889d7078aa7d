"""A corpus -> a prepared folder."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.assemble import assemble, record_files, write_manifest
from widthwise.data.documents import (
    Corpus,
    Document,
    ProgressCallback,
    Scan,
    Scanner,
    ignore_progress,
    scan,
    train_texts,
)
from widthwise.data.encode import Batch, EncodedPart, encode_batches
from widthwise.data.prepared import CorpusRecord, PreparedData, SplitRecord, Splits
from widthwise.data.shards import ShardWriter, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import check_spec, open_tokenizer

BATCH_BYTES = 2**20
"""Documents are encoded in batches of about this much text."""


def prepare(
    corpus: Corpus,
    out: Path | str,
    *,
    tokenizer: str = "bpe-4096",
    held_out: float = 0.05,
    n_processes: int = 1,
    reuse: bool = False,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Tokenizes a corpus into `out`, which appears whole at the end or not at all.

    A document is held out by the hash of its content, so that neither order nor other documents matter. `bpe-N` is
    trained on the training split alone. The result does not depend on `n_processes`: one encodes with the tokenizer's
    own threads; more need a script to be guarded with `if __name__ == "__main__":`.
    With `reuse`, a finished `out` is opened as it is; without, anything in `out` is refused.
    Raises UserError where a split would be empty, the corpus changes while it is read, or the disk is full.
    """
    check_spec(tokenizer)
    if n_processes < 1:
        raise UserError(f"processes: got {n_processes}; expected at least 1")
    preparation = _Preparation(corpus, held_out, n_processes, progress)
    return assemble(out, lambda folder: preparation.write(folder, tokenizer), reuse)


@dataclass
class _SplitCount:
    """Running totals of one split."""

    n_documents: int = 0
    n_tokens: int = 0
    n_bytes: int = 0
    n_token_bytes: int = 0

    def add(self, part: EncodedPart) -> None:
        self.n_documents += len(part.lengths)
        self.n_tokens += len(part.tokens)
        self.n_bytes += part.n_bytes
        self.n_token_bytes += part.n_token_bytes

    def record(self) -> SplitRecord:
        return SplitRecord(**vars(self))


class _Preparation:
    """One run of `prepare`: what is read, and how far."""

    def __init__(self, corpus: Corpus, held_out: float, n_processes: int, progress: ProgressCallback):
        self._corpus = corpus
        self._held_out = held_out
        self._n_processes = n_processes
        self._progress = progress

    def write(self, folder: Path, spec: str) -> None:
        """Fills the folder, the manifest last."""
        found = scan(self._corpus, self._held_out, self._progress)
        _refuse_empty_split(found, self._corpus.name, self._held_out)
        tokenizer = open_tokenizer(spec, self._training_texts)
        tokenizer_path = tokenizer.save(folder)
        train, held_out = self._write_shards(folder, tokenizer, tokenizer_path, found)
        write_manifest(
            folder,
            tokenizer=tokenizer,
            corpus=CorpusRecord(
                name=self._corpus.name,
                fingerprint=found.fingerprint,
                n_documents=found.n_documents,
                n_bytes=found.n_bytes,
            ),
            held_out_fraction=self._held_out,
            splits=Splits(train=train, held_out=held_out),
            files=record_files(folder, self._progress),
        )

    def _training_texts(self) -> Iterator[str]:
        self._progress("training the tokenizer", 0, None)
        return train_texts(self._corpus, self._held_out)

    def _write_shards(
        self, folder: Path, tokenizer: Tokenizer, tokenizer_path: Path, found: Scan
    ) -> tuple[SplitRecord, SplitRecord]:
        counts = (_SplitCount(), _SplitCount())
        scanner = Scanner(self._held_out)
        with ExitStack() as stack:
            dtype = token_dtype(tokenizer.vocab_size)
            writers = [stack.enter_context(ShardWriter(folder / name, dtype)) for name in ("train", "held_out")]
            for parts in encode_batches(_batches(self._corpus, scanner), tokenizer, tokenizer_path, self._n_processes):
                for part, writer, count in zip(parts, writers, counts):
                    writer.add(part.tokens, part.lengths)
                    count.add(part)
                self._progress("tokenizing", sum(count.n_bytes for count in counts), found.n_bytes)
            if scanner.result() != found:
                raise UserError(f"{self._corpus.name}: changed while it was being read; prepare it again")
        return counts[0].record(), counts[1].record()


def _refuse_empty_split(found: Scan, name: str, held_out: float) -> None:
    n_train = found.n_documents - found.n_held_out
    if found.n_documents == 0:
        raise UserError(f"{name}: holds no documents")
    if n_train == 0 or found.n_held_out == 0:
        change = "lower" if n_train == 0 else "raise"
        raise UserError(
            f"{name}: held_out {held_out} puts {n_train} of {found.n_documents} documents in training and "
            f"{found.n_held_out} in held-out; {change} held_out, or cut the text into more documents (document_bytes)"
        )


def _batches(corpus: Iterable[Document], scanner: Scanner) -> Iterator[Batch]:
    batch, filled_at = Batch(), scanner.n_bytes + BATCH_BYTES
    for document in corpus:
        batch.texts[scanner.add(document)].append(document.text)
        if scanner.n_bytes >= filled_at:
            yield batch
            batch, filled_at = Batch(), scanner.n_bytes + BATCH_BYTES
    yield batch
