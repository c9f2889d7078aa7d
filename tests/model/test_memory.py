import pytest
import torch

from widthwise.config_io import UserError
from widthwise.model.memory import allocating


@pytest.mark.parametrize("size", [(2**50,), (2**40, 2**40)])
def test_a_tensor_beyond_memory_or_address_space_is_a_mistake_of_the_users(size):
    with pytest.raises(UserError, match="too large: shrink it"), allocating("too large: shrink it"):
        torch.empty(size)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_so_is_a_failure_of_python_or_of_a_gpu(error):
    with pytest.raises(UserError, match="too large"), allocating("too large"):
        raise error


def test_any_other_failure_passes():
    with pytest.raises(RuntimeError, match="shapes"), allocating("too large"):
        torch.ones(2, 3) @ torch.ones(2, 3)
