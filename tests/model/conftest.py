import pytest
import torch

torch.set_num_threads(1)  # the models here are too small to share


@pytest.fixture
def float64():
    """Everything in fp64, the rotary tables too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
