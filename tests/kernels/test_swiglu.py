"""The product of a gate and its units against the reference, with no more kept than the two."""

import pytest
import torch
from comparing import assert_forms_agree
from thinned import every_pair

from widthwise.kernels.swiglu import reference_swiglu, swiglu


def pair(shape, dtype, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return [(scale * torch.randn(shape, generator=generator)).to(dtype).requires_grad_() for _ in range(2)]


@every_pair(
    ("shape", [(1,), (63,), (3, 97), (2, 5, 33), (0, 4)]),
    ("scale", [1.0, 30.0]),
    (("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]),
)
def test_fused_equals_reference(shape, scale, dtype, tolerance):
    arguments = pair(shape, dtype, scale)
    out = assert_forms_agree(swiglu, reference_swiglu, *arguments, rtol=tolerance, atol=tolerance * scale)
    assert out.dtype == dtype


def test_double_backward_fails_loudly():
    gate, up = pair((3, 7), torch.float64)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(swiglu(gate, up).sum(), gate, create_graph=True)
