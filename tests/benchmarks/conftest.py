import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # its files import their neighbours

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT
