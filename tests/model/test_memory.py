import pytest
import torch

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.model import memory
from widthwise.model.decoder import build
from widthwise.model.memory import allocating
from widthwise.shape.template import ModelTemplate


@pytest.mark.parametrize("size", [(2**50,), (2**40, 2**40)])
def test_a_tensor_larger_than_memory_or_address_space_is_a_user_error(size):
    with pytest.raises(UserError, match="too large: shrink it"), allocating("too large: shrink it"):
        torch.empty(size)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_failed_allocation_of_python_or_a_gpu_is_a_user_error(error):
    with pytest.raises(UserError, match="too large"), allocating("too large"):
        raise error


def test_other_errors_propagate():
    with pytest.raises(RuntimeError, match="shapes"), allocating("too large"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_model_larger_than_the_machine_is_refused_before_it_is_filled(monkeypatch):
    config = parse(ModelTemplate, {"vocab_size": 17, "d_model": 64, "n_layers": 1}, "model").resolve(seq_len=5)
    build(config, seed=0)
    monkeypatch.setattr(memory, "_meminfo", lambda key, default=None: 1000)
    with pytest.raises(UserError, match=r"model: [\d,]+ parameters do not fit into memory"):
        build(config, seed=0)


def test_free_memory_is_plausible():
    assert 2**20 < memory.free_memory() < 2**50
