"""Products of many tiny matrices are those of each pair, whichever way they are formed."""

import pytest
import torch

from widthwise.kernels.hyper_connections_chunks import MIN_MULTIPLICATIONS, add_product, product

SHAPES = [(5, 2, 3, 65), (5, 2, 3, 67), (7, 1, 1, 3), (4, 1, 4, 128), (3, 8, 64, 9), (0, 2, 3, 5)]
"""(N, r, k, w), on both sides of `MIN_MULTIPLICATIONS`."""


def matrices(n, r, k, w):
    generator = torch.Generator().manual_seed(0)
    a, b, total = (torch.randn(shape, generator=generator).double() for shape in ((k, n, r), (n, k, w), (n, r, w)))
    return a.permute(1, 2, 0), b, total  # as slices of a table (k, C, n) are


@pytest.mark.parametrize("shape", SHAPES)
def test_are_those_of_each_pair(shape):
    a, b, total = matrices(*shape)
    expected = torch.einsum("nrk,nkw->nrw", a, b)
    out = torch.full_like(total, torch.nan)
    assert product(a, b, out) is out
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(add_product(total.clone(), a, b, -0.3), total - 0.3 * expected, rtol=1e-12, atol=1e-12)


def test_small_ones_are_left_to_no_batched_product(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a batched product")

    monkeypatch.setattr(torch, "bmm", refuse)
    a, b, total = matrices(5, 2, 3, 66)
    assert MIN_MULTIPLICATIONS > 2 * 3 * 66
    product(a, b, total)
    with pytest.raises(AssertionError, match="batched"):
        product(*matrices(5, 2, 3, 67))
