"""A prepared corpus on disk: how its folder appears, whole or not at all, how it is opened and checked, and
how existing Megatron-LM shards become one.

The folder holds token files, their tokenizer, and the manifest that vouches for both (manifest.py).
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np

from widthwise.config_io import UserError, refusing, to_data
from widthwise.data.documents import Counter, ProgressCallback, Split, ignore_progress
from widthwise.data.identity import CorpusIdentity, FolderIdentity, TokenizerIdentity
from widthwise.data.json_tokenizer import open_tokenizer, restore_tokenizer
from widthwise.data.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    CorpusRecord,
    HeldOutRecord,
    Manifest,
    SplitRecord,
    Splits,
    TokenizerRecord,
    parse_manifest,
)
from widthwise.data.remote import fetched, is_url
from widthwise.data.shards import (
    ENDING,
    ShardWriter,
    TokenFile,
    bin_path,
    idx_path,
    names_path,
    read_names,
    token_dtype,
)
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import FileRecord, file_sha256, fsync_file, fsync_folder, is_at, read_json, reading, writing
from widthwise.records.record import SealedFile

CHECKED_TOKENS_AT_ONCE = 2**24


class PreparedData:
    """A prepared folder, opened. `train` and `held_out` are token files."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest
        for name, record in manifest.files.items():
            with reading(path / name):
                n_bytes = (path / name).stat().st_size
            if n_bytes != record.n_bytes:
                promised = f"its manifest promises {record.n_bytes}"
                raise UserError(f"{path / name}: has {n_bytes} bytes; {promised}; prepare it again")
        self.train = self._open_split("train", manifest.splits.train)
        self.held_out = self._open_split("held_out", manifest.splits.held_out)

    @classmethod
    def open(cls, path: Path | str, progress: ProgressCallback = ignore_progress) -> "PreparedData":
        """Opens a folder of `prepare` or `adopt`; one at a URL is fetched into the cache, see `remote.fetched`.

        Raises UserError if it is missing, unfinished, damaged or too new, or cannot be fetched.
        """
        if path == "":
            raise UserError("data: got ''; expected a prepared folder; `.` is the working folder")
        path = fetched(path, progress) if isinstance(path, str) and is_url(path) else Path(path)
        if not path.is_dir():
            looked_at = "" if path.is_absolute() else f"; looked at {path.absolute()}"
            raise UserError(f"{path}: no such folder{looked_at}")
        if not is_prepared(path):
            raise UserError(
                f"{path}: has no {MANIFEST}; it is not a prepared corpus, or its preparation never finished"
            )
        return cls(path, parse_manifest(read_json(path / MANIFEST), str(path / MANIFEST)))

    def _open_split(self, name: str, record: SplitRecord) -> TokenFile:
        tokens = TokenFile(self.path / name)
        if tokens.n_tokens == 0:
            raise UserError(f"{bin_path(tokens.prefix)}: holds no tokens; prepare the text again")
        found, promised = (tokens.n_documents, tokens.n_tokens), (record.n_documents, record.n_tokens)
        if found != promised:
            raise UserError(f"{self.path / name}: holds (documents, tokens) {found}; its manifest promises {promised}")
        return tokens

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError if the tokenizer available now is not the one that made the data."""
        record = self.manifest.tokenizer
        tokenizer = restore_tokenizer(record.spec, self.path / record.file)
        if tokenizer.id != record.id:
            raise UserError(f"{self.path / record.file}: is not the tokenizer the data was made with ({record.spec})")
        return tokenizer

    @property
    def identity(self) -> FolderIdentity:
        """Return the identity of the data, as the manifest has it, without the names of documents."""
        tokenizer = self.manifest.tokenizer
        corpus = self.manifest.corpus
        files = sorted(self.manifest.files.items())
        return FolderIdentity(
            tokenizer=TokenizerIdentity(spec=tokenizer.spec, id=tokenizer.id),
            corpus=CorpusIdentity(name=corpus.name, fingerprint=corpus.fingerprint),
            files={name: record.sha256 for name, record in files if not name.endswith(ENDING)},
        )

    @property
    def folders(self) -> "list[PreparedData]":
        """Return all prepared folders of the data: this one."""
        return [self]

    @property
    def bytes_per_token_byte(self) -> float:
        """Bytes of held-out text for each byte of its decoded tokens."""
        return self.manifest.splits.held_out.bytes_per_token_byte

    def check_tokenizer(self, own: Tokenizer) -> None:
        """Raises UserError if the tokenizer of a run is not the one that made the data."""
        if self.tokenizer.id != own.id:
            other = self.tokenizer.spec
            raise UserError(f"{self.path}: was tokenised by {other}, not by the tokenizer of the run ({own.spec})")

    def documents(self, split: Split) -> Iterator[tuple[str, int]]:
        """The name of each document of a split and its tokens, in order, the end-of-text token included.

        Raises UserError for a folder without names, or with another number of names than documents.
        """
        if names_path(self.path / split).name not in self.manifest.files:
            raise UserError(
                f"{self.path}: has no names of documents; it was adopted, or prepared by a version that kept none"
            )
        starts = getattr(self, split).document_starts
        try:
            yield from zip(read_names(self.path / split), np.diff(starts).tolist(), strict=True)
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{names_path(self.path / split)}: names another number of documents than there are"
            ) from None

    def verify(self, progress: ProgressCallback = ignore_progress) -> None:
        """Checks all checksums, the tokenizer, and every token against its size. Raises UserError naming the file."""
        done = Counter(progress, "checking the data", sum(record.n_bytes for record in self.manifest.files.values()))
        for name, record in self.manifest.files.items():
            if file_sha256(self.path / name, done.add) != record.sha256:
                raise UserError(
                    f"{self.path / name}: its checksum differs from the manifest's; it is damaged: "
                    "delete the folder and prepare it again"
                )
        splits = (self.train, self.held_out)
        done = Counter(progress, "checking the tokens", sum(split.n_bytes for split in splits))
        for split in splits:
            for part in checked_parts(split, self.tokenizer.vocab_size):
                done.add(part.nbytes)


def is_prepared(path: Path) -> bool:
    """Return True for a folder with a finished preparation."""
    return (path / MANIFEST).is_file()


def checked_parts(tokens: TokenFile, vocab_size: int) -> Iterator[np.ndarray]:
    """All tokens of a file in parts, in order. Raises UserError for a token outside 0..vocab_size - 1, naming it."""
    for start in range(0, tokens.n_tokens, CHECKED_TOKENS_AT_ONCE):
        part = tokens.tokens(start, min(start + CHECKED_TOKENS_AT_ONCE, tokens.n_tokens))
        if part.min() < 0 or part.max() >= vocab_size:
            first = int(np.argmax((part < 0) | (part >= vocab_size)))
            raise UserError(
                f"{bin_path(tokens.prefix)}: token {start + first} is {part[first]}, outside its vocabulary: "
                f"0 to {vocab_size - 1}"
            )
        yield part


def assemble(out: Path | str, fill: Callable[[Path], None], reuse: bool = False) -> PreparedData:
    """Have `fill` write all files, the manifest last, into a temporary folder, rename it to `out` and open that.

    Processes that assemble the same folder wait for each other. With `reuse`, a finished `out` is opened as it is;
    without, a non-empty `out` is refused. Raises UserError if nothing can be written.
    """
    out = Path(out).resolve()
    if not (reuse and is_prepared(out)):
        with _own_folder(out.parent / f".{out.name}.partial") as partial:
            if not (reuse and is_prepared(out)):
                if is_prepared(out):
                    raise UserError(f"{out}: already holds a prepared corpus; choose another folder or delete it")
                if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
                    raise UserError(f"{out}: is in use by other files; choose an empty or new folder")
                fill(partial)
                with writing(out):
                    os.replace(partial, out)
                    fsync_folder(out.parent)
    return PreparedData.open(out)


def record_files(folder: Path, progress: ProgressCallback = ignore_progress) -> dict[str, FileRecord]:
    """Size and checksum of every file in a folder, by name."""
    paths = sorted(folder.iterdir())
    done = Counter(progress, "computing checksums", sum(path.stat().st_size for path in paths))
    return {path.name: FileRecord.of(path, done.add) for path in paths}


def write_manifest(
    folder: Path,
    *,
    tokenizer: Tokenizer,
    corpus: CorpusRecord,
    splits: Splits,
    files: dict[str, FileRecord],
    held_out_fraction: float | None = None,
    held_out_from: HeldOutRecord | None = None,
) -> None:
    """Writes the manifest that vouches for the folder's files: the last thing a `fill` does."""
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        tokenizer=TokenizerRecord(
            spec=tokenizer.spec,
            id=tokenizer.id,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            file=tokenizer.file_name,
        ),
        corpus=corpus,
        held_out_fraction=held_out_fraction,
        held_out_from=held_out_from,
        splits=splits,
        files=files,
    )
    SealedFile(folder / MANIFEST).write(to_data(manifest))


@contextmanager
def _own_folder(folder: Path) -> Iterator[Path]:
    """An empty folder for one process at a time, removed at the end unless renamed.

    Other processes wait; a killed process releases it.
    """
    while True:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:
                continue  # another process finished and renamed it between the two calls
            fcntl.flock(handle, fcntl.LOCK_EX)
        if is_at(handle, folder):
            break
        os.close(handle)  # the folder we waited for was renamed or removed
    try:
        for left_behind in folder.iterdir():
            left_behind.unlink()
        yield folder
    finally:
        if is_at(handle, folder):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def adopt(
    train: Path | str,
    held_out: Path | str,
    out: Path | str,
    *,
    tokenizer: str,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Check token files, each `PREFIX.bin` and `PREFIX.idx`, and link them into `out`, which appears whole.

    train, held_out: a PREFIX, or a folder whose token files are joined in the order of their names. `tokenizer` is the
    spec of the tokenizer that made them. Hard links survive the deletion of the originals; where they are impossible,
    as across file systems, the files are copied. Raises UserError for a file that is damaged, empty or holds a token
    outside the vocabulary, the same file twice, `bpe-N`, and an `out` that is occupied.
    """
    paths = {"train": Path(train), "held_out": Path(held_out)}
    files = {name: _token_files(path) for name, path in paths.items()}
    known = open_tokenizer(tokenizer)
    if _inodes(files["train"]) & _inodes(files["held_out"]):
        raise UserError(
            f"{held_out}: is both train and held-out; a loss on training text says nothing about held-out text"
        )

    def fill(folder: Path) -> None:
        splits = Splits(**{name: counted(parts, known, progress) for name, parts in files.items()})
        for name, parts in files.items():
            if len(parts) == 1:
                for path_of in (bin_path, idx_path):
                    _bring(path_of(parts[0].prefix), path_of(folder / name), progress)
            else:
                _join(parts, folder / name, known.vocab_size)
        known.save(folder)
        records = record_files(folder, progress)
        checksums = "".join(f"{name} {record.sha256}\n" for name, record in records.items())
        corpus = CorpusRecord(
            name=" + ".join(map(str, paths.values())),
            fingerprint=hashlib.sha256(checksums.encode()).hexdigest(),
            n_documents=splits.n_documents,
            n_bytes=splits.n_bytes,
        )
        write_manifest(folder, tokenizer=known, corpus=corpus, splits=splits, files=records)

    return assemble(out, fill)


def _token_files(path: Path) -> list[TokenFile]:
    """Open the token file with a prefix, or all in a folder. Raises UserError for a folder without any."""
    if idx_path(path).exists() or not path.is_dir():
        return [TokenFile(path)]
    files = [TokenFile(index.with_suffix("")) for index in sorted(path.glob("*.idx"))]
    if not files:
        raise UserError(f"{path}: holds no shards; expected files NAME.bin and NAME.idx")
    return files


def _inodes(files: list[TokenFile]) -> set[tuple[int, int]]:
    stats = [bin_path(file.prefix).stat() for file in files]
    return {(stat.st_dev, stat.st_ino) for stat in stats}


def _join(files: list[TokenFile], prefix: Path, vocab_size: int) -> None:
    """Write the documents of token files, which were checked, into one."""
    dtype = token_dtype(vocab_size)
    with ShardWriter(prefix, dtype) as writer:
        for file in files:
            for tokens, lengths in file.parts(CHECKED_TOKENS_AT_ONCE):
                writer.add(tokens.astype(dtype), lengths)


def counted(files: list[TokenFile], tokenizer: Tokenizer, progress: ProgressCallback) -> SplitRecord:
    """Return the counts of token files, after reading all of them."""
    byte_lengths = tokenizer.token_byte_lengths()
    n_bytes = 0
    for tokens in files:
        if tokens.n_tokens == 0:
            raise UserError(f"{bin_path(tokens.prefix)}: holds no tokens")
        done = Counter(progress, f"checking {tokens.prefix}", tokens.n_bytes)
        for part in checked_parts(tokens, tokenizer.vocab_size):
            n_bytes += int(byte_lengths[part].sum())
            done.add(part.nbytes)
    return SplitRecord(
        n_documents=sum(tokens.n_documents for tokens in files),
        n_tokens=sum(tokens.n_tokens for tokens in files),
        n_bytes=n_bytes,
        n_token_bytes=n_bytes,
    )


def _bring(source: Path, target: Path, progress: ProgressCallback) -> None:
    try:
        os.link(source.resolve(), target)  # the file itself: a link to a relative symbolic link would dangle
    except OSError:
        progress(f"copying {source}", 0, None)
        with refusing(f"{target}: cannot be copied from {source}", OSError):
            shutil.copyfile(source, target)
            fsync_file(target)
