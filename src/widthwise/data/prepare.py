"""A corpus -> a prepared folder."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.documents import Corpus, Document, ProgressCallback, Scan, Scanner, scan, train_texts
from widthwise.data.encode import Batch, EncodedPart, encode_batches
from widthwise.data.prepared import (
    FORMAT_VERSION,
    MANIFEST,
    CorpusRecord,
    Manifest,
    PreparedData,
    SplitRecord,
    Splits,
    TokenizerRecord,
    is_prepared,
    record_file,
)
from widthwise.data.shards import ShardWriter, token_dtype
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import check_spec, open_tokenizer
from widthwise.run_dir import fsync_folder, write_atomic

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
    progress: ProgressCallback | None = None,
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
    out = Path(out).resolve()
    if not (reuse and is_prepared(out)):
        with _own_folder(out.parent / f".{out.name}.partial") as partial:
            if not (reuse and is_prepared(out)):
                _refuse_occupied(out)
                _Preparation(corpus, held_out, n_processes, progress).write(partial, tokenizer)
                _move(partial, out)
    return PreparedData.open(out)


def _move(partial: Path, out: Path) -> None:
    try:
        os.replace(partial, out)
        fsync_folder(out.parent)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None


def _refuse_occupied(out: Path) -> None:
    if is_prepared(out):
        raise UserError(f"{out}: already holds a prepared corpus; choose another folder or delete it")
    if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
        raise UserError(f"{out}: is in use by other files; choose an empty or new folder")


@contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    """An empty folder for one process at a time, removed at the end unless renamed.

    Other processes wait; a killed one holds nothing.
    """
    handle = _lock_folder(folder)
    try:
        for left_behind in folder.iterdir():
            left_behind.unlink()
        yield folder
    finally:
        if _is_at(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _lock_folder(folder: Path) -> int:
    """An open handle on the folder that holds its lock."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue  # another process finished and renamed it between the two calls
        except OSError as error:
            raise UserError(f"{folder}: cannot be made and locked ({error.strerror})") from None
        if _is_at(handle, folder):
            return handle
        os.close(handle)  # the folder we waited for was renamed or removed


def _is_at(handle: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


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

    def __init__(self, corpus: Corpus, held_out: float, n_processes: int, progress: ProgressCallback | None):
        self._corpus = corpus
        self._held_out = held_out
        self._n_processes = n_processes
        self._progress: ProgressCallback = progress or (lambda stage, n_bytes, n_bytes_total: None)

    def write(self, folder: Path, spec: str) -> None:
        """Fills the folder, the manifest last."""
        found = scan(self._corpus, self._held_out, self._progress)
        _refuse_empty_split(found, self._corpus.name, self._held_out)
        tokenizer = open_tokenizer(spec, self._training_texts)
        tokenizer_path = tokenizer.save(folder)
        train, held_out = self._write_shards(folder, tokenizer, tokenizer_path, found)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            tokenizer=TokenizerRecord(
                spec=spec,
                id=tokenizer.id,
                vocab_size=tokenizer.vocab_size,
                eos_id=tokenizer.eos_id,
                file=tokenizer_path.name,
            ),
            corpus=CorpusRecord(
                name=self._corpus.name,
                fingerprint=found.fingerprint,
                n_documents=found.n_documents,
                n_bytes=found.n_bytes,
            ),
            held_out_fraction=self._held_out,
            splits=Splits(train=train, held_out=held_out),
            files={path.name: record_file(path) for path in sorted(folder.iterdir())},
        )
        write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")

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
