"""The safetensors of a model folder: one file, or several with an index. Nothing pickled is ever read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.files import read_json_mapping

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class TensorFolder:
    """Tensors by name, read one by one."""

    def __init__(self, folder: Path):
        """Raises UserError where there are no safetensors, or the index names a file that is not there."""
        self.folder = folder
        self._file_of = self._index() if (folder / INDEX).is_file() else self._of_one_file()

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def read(self, name: str) -> Tensor:
        """Raises UserError for a damaged file, and for numbers that are no plain floats."""
        path = self._file_of[name]
        with self._opened(path) as file:
            tensor = file.get_tensor(name)
        if tensor.dtype not in TYPES:
            raise UserError(f"{path}: {name} is of type {tensor.dtype}; allowed: fp32, bf16, fp16 and fp64")
        return tensor

    def _of_one_file(self) -> dict[str, Path]:
        path = self.folder / ONE_FILE
        if not path.is_file():
            pickled = sorted(found.name for pattern in PICKLED for found in self.folder.glob(pattern))
            if pickled:
                raise UserError(
                    f"{self.folder}: holds only pickled weights ({pickled[0]}), which can run code when they are read; "
                    f"allowed: {ONE_FILE}"
                )
            raise UserError(f"{self.folder}: holds no weights; allowed: {ONE_FILE}, or several with {INDEX}")
        with self._opened(path) as file:
            return dict.fromkeys(file.keys(), path)

    def _index(self) -> dict[str, Path]:
        path = self.folder / INDEX
        names = read_json_mapping(path).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{path}: weight_map: must map the names of tensors to names of files")
        return {name: self._shard(path, file_name) for name, file_name in names.items()}

    def _shard(self, index: Path, file_name: str) -> Path:
        path = self.folder / file_name
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            raise UserError(f"{index}: weight_map: got {file_name!r}; allowed: a .safetensors file of the same folder")
        if not path.is_file():
            raise UserError(f"{path}: is missing; {INDEX} names it")
        return path

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None
