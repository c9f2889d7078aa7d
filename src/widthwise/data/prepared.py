"""A prepared corpus on disk: atomic writing, opening and checking of its folder, and adoption of Megatron-LM shards.

The folder holds token files, their tokenizer, and a manifest with checksums of both (identity.py).
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from widthwise.config_io import refusing, to_data
from widthwise.data.corpus import ByteCounter, ProgressCallback, Split, ignore_progress
from widthwise.data.identity import (
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
from widthwise.data.json_tokenizer import open_tokenizer, restore_tokenizer
from widthwise.data.remote import fetched, is_url
from widthwise.data.shards import (
    ShardWriter,
    TokenFile,
    bin_path,
    idx_path,
    names_path,
    read_names,
    token_dtype,
)
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import FileRecord, fsync, new_folder, read_json, reading, writing
from widthwise.mistakes import UserError
from widthwise.records.record import SealedFile

TOKENS_AT_ONCE = 2**24  # checked or copied


class PreparedData:
    """A prepared folder, opened. `train` and `held_out` are token files."""

    def __init__(self, path: Path, manifest: Manifest):
        """Raises UserError if sizes of files or numbers of documents or tokens differ from the manifest."""
        self.path = path
        self.manifest = manifest
        for name, record in manifest.files.items():
            with reading(path / name):
                n_bytes = (path / name).stat().st_size
            if n_bytes != record.n_bytes:
                raise UserError(
                    f"{path / name}: has {n_bytes} bytes; its manifest promises {record.n_bytes}; prepare it again"
                )
        self.train = self._open_split("train", manifest.splits.train)
        self.held_out = self._open_split("held_out", manifest.splits.held_out)
        self.identity = manifest.identity

    @classmethod
    def open(cls, path: Path | str, progress: ProgressCallback = ignore_progress) -> "PreparedData":
        """Open a folder of `prepare` or `adopt`; a URL is fetched into the cache, see `remote.fetched`.

        Raises UserError if the folder is missing, unfinished, damaged or too new, or cannot be fetched.
        """
        if path == "":
            raise UserError("data: got ''; expected a prepared folder; `.` is the working folder")
        path = fetched(path, progress) if isinstance(path, str) and is_url(path) else Path(path)
        if not path.is_dir():
            absolute = "" if path.is_absolute() else f"; looked at {path.absolute()}"
            raise UserError(f"{path}: no such folder{absolute}")
        if not is_prepared(path):
            raise UserError(
                f"{path}: has no {MANIFEST}; it is not a prepared corpus, or its preparation never finished"
            )
        return cls(path, parse_manifest(read_json(path / MANIFEST), str(path / MANIFEST)))

    def _open_split(self, name: str, record: SplitRecord) -> TokenFile:
        tokens = TokenFile(self.path / name)
        if tokens.n_tokens == 0:
            raise UserError(f"{bin_path(tokens.prefix)}: holds no tokens; prepare the text again")
        counts = (tokens.n_documents, tokens.n_tokens)
        expected = (record.n_documents, record.n_tokens)
        if counts != expected:
            raise UserError(f"{self.path / name}: holds (documents, tokens) {counts}; its manifest promises {expected}")
        return tokens

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the data. Raises UserError if its file has changed since the data was prepared."""
        record = self.manifest.tokenizer
        tokenizer = restore_tokenizer(record.spec, self.path / record.file)
        if tokenizer.id != record.id:
            raise UserError(f"{self.path / record.file}: is not the tokenizer the data was made with ({record.spec})")
        return tokenizer

    @property
    def folders(self) -> "list[PreparedData]":
        """All prepared folders of the data: this one."""
        return [self]

    @property
    def bytes_per_token_byte(self) -> float:
        """Bytes of held-out text for each byte of its decoded tokens."""
        held_out = self.manifest.splits.held_out
        return held_out.n_bytes / max(1, held_out.n_token_bytes)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise UserError if the tokenizer of a run differs from the data's."""
        if self.tokenizer.id != tokenizer.id:
            raise UserError(
                f"{self.path}: was tokenised by {self.tokenizer.spec}, not by the tokenizer of the run "
                f"({tokenizer.spec})"
            )

    def documents(self, split: Split) -> Iterator[tuple[str, int]]:
        """Yield the name and the number of tokens of each document of a split, including the end-of-text token.

        Raises UserError for a folder without names, or with a different number of names than documents.
        """
        if names_path(self.path / split).name not in self.manifest.files:
            raise UserError(f"{self.path}: has no names of documents; it was adopted")
        lengths = np.diff(getattr(self, split).document_starts).tolist()
        with refusing(f"{names_path(self.path / split)}: differs from its index", ValueError):
            yield from zip(read_names(self.path / split), lengths, strict=True)

    def verify(self, progress: ProgressCallback = ignore_progress) -> None:
        """Check all checksums, the tokenizer, and the range of every token. Raises UserError with the file."""
        n_bytes = sum(record.n_bytes for record in self.manifest.files.values())
        counter = ByteCounter(progress, "checking the data", n_bytes)
        for name, record in self.manifest.files.items():
            if FileRecord.of(self.path / name, counter.add).sha256 != record.sha256:
                raise UserError(
                    f"{self.path / name}: its checksum differs from the manifest's; it is damaged: "
                    "delete the folder and prepare it again"
                )
        counter = ByteCounter(progress, "checking the tokens", self.train.n_bytes + self.held_out.n_bytes)
        for tokens in (self.train, self.held_out):
            for part in checked_parts(tokens, self.tokenizer.vocab_size):
                counter.add(part.nbytes)


def is_prepared(path: Path) -> bool:
    """Return True for a folder with a finished preparation."""
    return (path / MANIFEST).is_file()


def checked_parts(tokens: TokenFile, vocab_size: int) -> Iterator[np.ndarray]:
    """Yield all tokens of a file in parts. Raises UserError for a token outside 0..vocab_size - 1."""
    for start in range(0, tokens.n_tokens, TOKENS_AT_ONCE):
        part = tokens.tokens(start, min(start + TOKENS_AT_ONCE, tokens.n_tokens))
        if part.min() < 0 or part.max() >= vocab_size:
            first = int(np.argmax((part < 0) | (part >= vocab_size)))
            raise UserError(
                f"{bin_path(tokens.prefix)}: token {start + first} is {part[first]}, outside its vocabulary: "
                f"0 to {vocab_size - 1}"
            )
        yield part


def assemble(out: Path | str, fill: Callable[[Path], None], reuse: bool = False) -> PreparedData:
    """Call `fill` on a temporary folder, rename the folder to `out` and open it.

    fill: writes all files, the manifest last. Processes that assemble the same folder wait for each other. reuse: open
    a finished `out`; otherwise a non-empty `out` is refused. Raises UserError if the folder cannot be written.
    """
    out = Path(out).resolve()
    if not (reuse and is_prepared(out)):
        from filelock import FileLock  # slow to import, and not needed for a finished folder

        lock = out.parent / f".{out.name}.lock"
        with writing(out), FileLock(lock):
            try:
                if not is_prepared(out):
                    with new_folder(out) as partial:
                        fill(partial)
                elif not reuse:
                    raise UserError(f"{out}: already holds a prepared corpus; choose another folder or delete it")
            finally:
                lock.unlink(missing_ok=True)  # a waiting process notices this and creates a new lock file
    return PreparedData.open(out)


def record_files(folder: Path, progress: ProgressCallback = ignore_progress) -> dict[str, FileRecord]:
    """Return the size and checksum of every file in a folder, by name."""
    paths = sorted(folder.iterdir())
    counter = ByteCounter(progress, "computing checksums", sum(path.stat().st_size for path in paths))
    return {path.name: FileRecord.of(path, counter.add) for path in paths}


def write_manifest(
    folder: Path,
    *,
    name: str,
    fingerprint: str,
    tokenizer: Tokenizer,
    splits: Splits,
    files: dict[str, FileRecord],
    held_out_fraction: float | None = None,
    held_out_from: HeldOutRecord | None = None,
) -> None:
    """Write the manifest of a folder, as the last step of a `fill`. name, fingerprint: of the corpus."""
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        tokenizer=TokenizerRecord(
            spec=tokenizer.spec,
            id=tokenizer.id,
            vocab_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            file=tokenizer.file_name,
        ),
        corpus=CorpusRecord(name=name, fingerprint=fingerprint, n_documents=splits.n_documents, n_bytes=splits.n_bytes),
        held_out_fraction=held_out_fraction,
        held_out_from=held_out_from,
        splits=splits,
        files=files,
    )
    SealedFile(folder / MANIFEST).write(to_data(manifest))


def adopt(
    train: Path | str,
    held_out: Path | str,
    out: Path | str,
    *,
    tokenizer: str,
    progress: ProgressCallback = ignore_progress,
) -> PreparedData:
    """Check token files, each `PREFIX.bin` and `PREFIX.idx`, and link them into `out` atomically.

    train, held_out: a PREFIX, or a folder whose token files are joined in the order of their names. tokenizer: the spec
    of their tokenizer. Hard links survive the deletion of the originals; where they are impossible, as across file
    systems, the files are copied. Raises UserError for a file that is damaged, empty or has a token outside the
    vocabulary, the same file in both splits, `bpe-N`, and an existing `out`.
    """
    paths = {"train": Path(train), "held_out": Path(held_out)}
    files = {split: _token_files(path) for split, path in paths.items()}
    opened_tokenizer = open_tokenizer(tokenizer)
    stats = {split: [bin_path(shard.prefix).stat() for shard in shards] for split, shards in files.items()}
    inodes = {split: {(stat.st_dev, stat.st_ino) for stat in stats[split]} for split in stats}
    if inodes["train"] & inodes["held_out"]:
        raise UserError(f"{held_out}: is both train and held-out; held-out text must not be in the training text")

    def fill(folder: Path) -> None:
        splits = Splits(
            **{split: check_and_count(shards, opened_tokenizer, progress) for split, shards in files.items()}
        )
        for split, shards in files.items():
            if len(shards) == 1:
                for path_of in (bin_path, idx_path):
                    _link_or_copy(path_of(shards[0].prefix), path_of(folder / split), progress)
            else:
                with ShardWriter(folder / split, token_dtype(opened_tokenizer.vocab_size)) as writer:
                    for shard in shards:
                        for tokens, lengths in shard.parts(TOKENS_AT_ONCE):
                            writer.add(tokens.astype(writer.dtype), lengths)
        opened_tokenizer.save(folder)
        records = record_files(folder, progress)
        checksums = "".join(f"{name} {record.sha256}\n" for name, record in records.items())
        write_manifest(
            folder,
            name=" + ".join(map(str, paths.values())),
            fingerprint=hashlib.sha256(checksums.encode()).hexdigest(),
            tokenizer=opened_tokenizer,
            splits=splits,
            files=records,
        )

    return assemble(out, fill)


def _link_or_copy(source: Path, target: Path, progress: ProgressCallback) -> None:
    """Create a hard link, or a copy if that fails. Raises UserError if the file cannot be copied."""
    try:
        os.link(source.resolve(), target)  # resolved, because a link to a relative symbolic link would dangle
    except OSError:
        progress(f"copying {source}", 0, None)
        with refusing(f"{target}: cannot be copied from {source}", OSError):
            shutil.copyfile(source, target)
            fsync(target)


def _token_files(path: Path) -> list[TokenFile]:
    """Open the token file with a prefix, or all files in a folder. Raises UserError for a folder without any."""
    if idx_path(path).exists() or not path.is_dir():
        return [TokenFile(path)]
    files = [TokenFile(index.with_suffix("")) for index in sorted(path.glob("*.idx"))]
    if not files:
        raise UserError(f"{path}: holds no shards; expected files NAME.bin and NAME.idx")
    return files


def check_and_count(files: list[TokenFile], tokenizer: Tokenizer, progress: ProgressCallback) -> SplitRecord:
    """Check all tokens of a split and return its counts. Raises UserError for an empty file or an invalid token."""
    byte_lengths = tokenizer.token_byte_lengths()
    n_bytes = 0
    for tokens in files:
        if tokens.n_tokens == 0:
            raise UserError(f"{bin_path(tokens.prefix)}: holds no tokens")
        counter = ByteCounter(progress, f"checking {tokens.prefix}", tokens.n_bytes)
        for part in checked_parts(tokens, tokenizer.vocab_size):
            n_bytes += int(byte_lengths[part].sum())
            counter.add(part.nbytes)
    return SplitRecord(
        n_documents=sum(tokens.n_documents for tokens in files),
        n_tokens=sum(tokens.n_tokens for tokens in files),
        n_bytes=n_bytes,
        n_token_bytes=n_bytes,
    )
