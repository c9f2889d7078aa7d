import pytest
import torch

from widthwise.kernels.rotary import fused, reference
from widthwise.model.rope import Rope, rope_table

POSITIONS = {"shared": torch.arange(5)[None], "own": torch.tensor([[0, 1, 2, 0, 1], [3, 4, 5, 6, 7]])}


def case(positions, head_dim, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, head_dim, generator=generator).to(dtype).requires_grad_()
    return x, *rope_table(POSITIONS[positions], Rope(head_dim, 100.0))


def result(op, x, cos, sin):
    out = op.rotate(x, cos, sin)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return out, *torch.autograd.grad(out, x, direction)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("head_dim", [2, 6, 34])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.bfloat16, 2**-7)]
)
def test_fused_equals_reference(positions, head_dim, dtype, tolerance):
    x, cos, sin = case(positions, head_dim, dtype)
    for ours, truth in zip(result(fused, x, cos, sin), result(reference, x, cos, sin), strict=True):
        assert ours.dtype == truth.dtype == dtype
        torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


def test_gradcheck():
    x, cos, sin = case("own", 6, torch.float64)
    assert torch.autograd.gradcheck(lambda x: fused.rotate(x, cos.double(), sin.double()), x)


def test_the_gradient_has_the_length_of_what_it_is_the_gradient_of():
    x, cos, sin = case("own", 34, torch.float64)
    direction = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (grad,) = torch.autograd.grad(fused.rotate(x, cos.double(), sin.double()), x, direction)
    torch.testing.assert_close(grad.norm(dim=-1), direction.norm(dim=-1), rtol=1e-7, atol=0)


def test_without_gradients_it_is_the_same_to_the_last_bit():
    x, cos, sin = case("shared", 34, torch.bfloat16)
    before = x.detach().clone()
    with torch.no_grad():
        found = fused.rotate(x, cos, sin)
    assert torch.equal(found, fused.rotate(x, cos, sin))
    assert torch.equal(x, before)


def test_double_backward_fails_loudly():
    x, cos, sin = case("shared", 6, torch.float64)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(fused.rotate(x, cos, sin).sum(), x, create_graph=True)
