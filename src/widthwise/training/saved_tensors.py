"""Named tensors on disk, in one safetensors file, or in one file per shard with some rows of every tensor.

model.safetensors                       the whole model
model-00001-of-00002.safetensors, ...   the rows of the first shard (see `shards.rows_of_shard`), of the second, ...
Scalars (0-d tensors) are in all files.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from widthwise.files import as_readable_as_others, fsync_file
from widthwise.mistakes import UserError
from widthwise.model.shards import rows_of_shard

FLOATS = ("F64", "F32", "F16", "BF16")
"""Allowed dtypes, by their safetensors names."""


def file_name(stem: str, shard: int = 0, n_shards: int = 1) -> str:
    """Return the file name of a shard, counted from 0."""
    return f"{stem}.safetensors" if n_shards == 1 else f"{stem}-{shard + 1:05d}-of-{n_shards:05d}.safetensors"


def file_names(stem: str, n_shards: int) -> list[str]:
    """Return the file names of all shards."""
    return [file_name(stem, shard, n_shards) for shard in range(n_shards)]


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file that survives a power cut once this returns. Raises OSError, also on a full disk."""
    with as_readable_as_others(path):
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        except SafetensorError as error:
            raise OSError(str(error)) from None
    fsync_file(path)


class SavedTensors:
    """Tensors read a few rows at a time. Opened with `opened`."""

    def __init__(self, paths: Iterable[Path], files: list[Any]):
        self.path, *_ = paths
        self._files = files
        self.names = set(files[0].keys())
        for path, file in zip(paths, files):
            unmatched = self.names ^ set(file.keys())
            if unmatched:
                raise UserError(f"{path}: holds other tensors than {self.path.name}, such as {min(unmatched)}")

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, stem: str, n_shards: int) -> Iterator["SavedTensors"]:
        """Open the tensors of all shards for a `with` block. Raises UserError if a file cannot be read."""
        paths = [folder / name for name in file_names(stem, n_shards)]
        path = paths[0]
        with ExitStack() as stack:
            try:
                files = []
                for path in paths:
                    files.append(stack.enter_context(safe_open(path, framework="pt")))
                yield cls(paths, files)
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path}: cannot be read ({error})") from None

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a whole tensor. Raises UserError if it is not a float, or if shards disagree."""
        parts = [file.get_slice(name) for file in self._files]
        shapes = [part.get_shape() for part in parts]
        types = [part.get_dtype() for part in parts]
        for dtype in types:
            if dtype not in FLOATS or dtype != types[0]:
                raise UserError(f"{self.path}: {name} is of type {dtype}; must be a float, the same in every shard")
        n_rows = sum(shape[0] for shape in shapes if shape)
        for shard, shape in enumerate(shapes):
            rows = rows_of_shard(n_rows, shard, len(shapes))
            if shape != [rows.stop - rows.start, *shapes[0][1:]][: len(shapes[0])]:
                raise UserError(f"{self.path}: {name} has shape {tuple(shape)} in shard {shard + 1} of {len(shapes)}")
        return torch.Size([n_rows, *shapes[0][1:]][: len(shapes[0])])

    def check(self, expected: Mapping[str, torch.Size]) -> None:
        """Raise UserError if names or shapes differ from the expected ones."""
        for name in sorted(expected.keys() | self.names):
            saved_shape = tuple(self.shape(name)) if name in self.names else None
            shape = tuple(expected[name]) if name in expected else None
            if saved_shape != shape:
                raise UserError(f"{self.path}: {name} has shape {saved_shape}; must be {shape}")

    def whole(self, name: str) -> Tensor:
        """Return a copy of a whole tensor."""
        n_rows = self.shape(name)[:1]
        return self.rows(name, slice(0, *n_rows)) if n_rows else self._files[0].get_tensor(name)

    def rows(self, name: str, rows: slice) -> Tensor:
        """Return rows of a tensor, read from the files that hold them."""
        n_rows = self.shape(name)[0]
        parts = []
        for shard, file in enumerate(self._files):
            shard_rows = rows_of_shard(n_rows, shard, len(self._files))
            start = max(rows.start, shard_rows.start)
            stop = min(rows.stop, shard_rows.stop)
            if start < stop:
                parts.append(file.get_slice(name)[start - shard_rows.start : stop - shard_rows.start])
        return torch.cat(parts) if parts else self._files[0].get_slice(name)[0:0]
