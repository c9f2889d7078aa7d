"""Models whose attention runs in small blocks, beside the same with torch's fused function."""

from contextlib import contextmanager

import pytest
import torch
from model_cases import decoder, random_tokens, variant
from thinned import in_turn

from widthwise.kernels import attention as choice
from widthwise.kernels import attention_in_blocks
from widthwise.model.recompute import Recompute

pytestmark = pytest.mark.usefixtures("float64")
NAMES = ["values_of_other_sizes", "unrotated", "further_heads", "slots"]


@pytest.fixture
def in_blocks(monkeypatch):
    """A context in which attention of more than one query runs in blocks; it fails if none did."""

    @contextmanager
    def entered():
        ran = []
        build = attention_in_blocks.Blocks
        with monkeypatch.context() as patch:
            patch.setattr(choice, "blocks_are_faster", lambda n_queries, *_, **__: n_queries > 1)
            patch.setattr(attention_in_blocks, "rows_at_once", lambda *_: 4)
            patch.setattr(attention_in_blocks, "Blocks", lambda *arguments: ran.append(1) or build(*arguments))
            yield
        assert ran

    return entered


def loss_and_gradients(model, **options):
    loss = model.loss(random_tokens(3, 11), random_tokens(3, 11, seed=1), **options)
    loss.objective.backward()
    found = [loss.losses, *(parameter.grad for parameter in model.parameters())]
    model.zero_grad()
    return found


@in_turn(
    ("name", NAMES),
    ("has_documents", [False, True]),
    ("every", [None, 2]),
)
def test_losses_and_gradients_are_the_same(in_blocks, name, has_documents, every):
    model = decoder(variant("zigzag", name))
    model.recompute = Recompute(every)
    options = {"documents": (torch.arange(11) // 4).expand(3, 11)} if has_documents else {}
    truth = loss_and_gradients(model, **options)
    with in_blocks():
        ours = loss_and_gradients(model, **options)
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-11)
