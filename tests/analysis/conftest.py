import pytest
from tiny_runs import tiny_recipe

from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut


@pytest.fixture(scope="session")
def held_out() -> HeldOut:
    """Five windows of the tiny recipe's held-out text."""
    return HeldOut(open_data(tiny_recipe().data), seq_len=17, batch_size=2, max_tokens=90, precision="fp32")
