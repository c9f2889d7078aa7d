"""Named tensors on disk, in one safetensors file or in several of which each holds some rows of every tensor.

model.safetensors                       of one process, or of several that each hold the whole model
model-00001-of-00002.safetensors, ...   the rows of the first shard (see `shards.rows_of_shard`), of the second, ...
Tensors without axes are in every file.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.files import as_readable_as_others, fsync_file
from widthwise.model.shards import rows_of_shard

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of tensors, as safetensors calls them."""


def file_name(stem: str, shard: int = 0, n_shards: int = 1) -> str:
    """The file of a shard, counted from 0."""
    return f"{stem}.safetensors" if n_shards == 1 else f"{stem}-{shard + 1:05d}-of-{n_shards:05d}.safetensors"


def file_names(stem: str, n_shards: int) -> list[str]:
    """The files of all shards."""
    return [file_name(stem, shard, n_shards) for shard in range(n_shards)]


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a file that survives a power cut once this returns. Raises OSError, on a full disk too."""
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
            if odd := self.names ^ set(file.keys()):
                raise UserError(f"{path}: holds other tensors than {self.path.name}, such as {min(odd)}")

    @classmethod
    @contextmanager
    def opened(cls, folder: Path, stem: str, n_shards: int) -> Iterator["SavedTensors"]:
        """The tensors of all shards, for the length of the block. Raises UserError where a file cannot be read."""
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
        """The shape of a whole tensor. Raises UserError where it is no float, or its parts do not make one."""
        parts = [file.get_slice(name) for file in self._files]
        shapes, types = [part.get_shape() for part in parts], [part.get_dtype() for part in parts]
        if odd := [each for each in types if each not in FLOATS or each != types[0]]:
            raise UserError(f"{self.path}: {name} is of type {odd[0]}; must be a float, the same in every shard")
        n_rows = sum(shape[0] for shape in shapes if shape)
        for shard, shape in enumerate(shapes):
            rows = rows_of_shard(n_rows, shard, len(shapes))
            if shape != [rows.stop - rows.start, *shapes[0][1:]][: len(shapes[0])]:
                raise UserError(f"{self.path}: {name} has shape {tuple(shape)} in shard {shard + 1} of {len(shapes)}")
        return torch.Size([n_rows, *shapes[0][1:]][: len(shapes[0])])

    def check(self, wanted: Mapping[str, torch.Size]) -> None:
        """Raises UserError where other tensors are there, or tensors of other shapes."""
        for name in sorted(wanted.keys() | self.names):
            found = tuple(self.shape(name)) if name in self.names else None
            shape = tuple(wanted[name]) if name in wanted else None
            if found != shape:
                raise UserError(f"{self.path}: {name} has shape {found}; must be {shape}")

    def whole(self, name: str) -> Tensor:
        """Return a copy of a whole tensor."""
        n_rows = self.shape(name)[:1]
        return self.rows(name, slice(0, *n_rows)) if n_rows else self._files[0].get_tensor(name)

    def rows(self, name: str, rows: slice) -> Tensor:
        """Rows of a tensor, read from the files that hold them."""
        n_rows, n_shards = self.shape(name)[0], len(self._files)
        parts = []
        for shard, file in enumerate(self._files):
            own = rows_of_shard(n_rows, shard, n_shards)
            start, stop = max(rows.start, own.start), min(rows.stop, own.stop)
            if start < stop:
                parts.append(file.get_slice(name)[start - own.start : stop - own.start])
        return torch.cat(parts) if parts else self._files[0].get_slice(name)[0:0]
