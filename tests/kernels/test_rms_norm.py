"""The norm and its gradients against the reference, for any gain, and in groups."""

import pytest
import torch
from comparing import assert_forms_agree, random
from thinned import in_turn

from widthwise.kernels.rms_norm import reference_rms_norm, rms_norm

SHAPES = [(1,), (63,), (3, 97), (2, 5, 1), (2, 7, 64), (0, 5)]


def tensors(shape, dtype=torch.float64, gain=None):
    x = random(*shape, dtype=dtype).requires_grad_()
    values = 1 + 0.4 * random(shape[-1], seed=2) if gain is None else torch.tensor(gain)
    return x, values.to(torch.promote_types(dtype, torch.float32)).requires_grad_()


def assert_same(x, gain, norm_dim=None, **tolerances):
    """The fused form and the reference."""
    return assert_forms_agree(rms_norm, reference_rms_norm, x, gain, 1e-5, norm_dim or x.shape[-1], **tolerances)


@in_turn(
    ("shape", SHAPES),
    (
        ("dtype", "tolerance", "norm_dim"),
        [(torch.float64, 1e-12, 200), (torch.float32, 2e-5, None), (torch.bfloat16, 3e-2, 200)],
    ),
)
def test_fused_equals_reference(shape, norm_dim, dtype, tolerance):
    x, gain = tensors(shape, dtype)
    assert_same(x, gain, norm_dim, rtol=tolerance, atol=tolerance * 4)


@in_turn(
    ("gain", [[0.0, 1.0, -2.0], [1e-4, 1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -0.5, 3.0], [1e-3, 1.0, 1.0]]),
    ("dtype", [torch.float64, torch.float32]),
)
def test_any_gain_has_the_right_gradient_also_of_a_zero_vector(gain, dtype):
    x, gain = tensors((4, 3), dtype, gain)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    for values in (x, torch.zeros_like(x, requires_grad=True)):
        assert_same(values, gain, rtol=tolerance)


@pytest.mark.parametrize(("form", "values"), [(rms_norm, [0.0, 1.0, -2.0]), (reference_rms_norm, [1.5, -0.5, 2.0])])
def test_groups_with_gains_of_their_own_are_norms_of_their_own(form, values):
    x, _ = tensors((2, 5, 4, 3))
    gain = (torch.tensor(values, dtype=torch.float64) * torch.arange(1, 5)[:, None]).requires_grad_()

    def alone(x, gain, eps, norm_dim):
        return torch.stack([reference_rms_norm(x[:, :, i], gain[i], eps, norm_dim) for i in range(4)], dim=2)

    assert_forms_agree(form, alone, x, gain, 1e-5, 3, rtol=1e-7)


def test_autocast_type_is_the_output_type():
    x, gain = tensors((3, 17), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert assert_same(x, gain, rtol=3e-2).dtype == torch.bfloat16


@pytest.mark.parametrize(("dtype", "gain"), [(torch.float32, [0.0, 1.0, -2.0]), (torch.bfloat16, [0.7, 1.0, 3.0])])
def test_without_gradients_it_is_the_same_to_the_last_bit(dtype, gain):
    x, gain = tensors((5, 3), dtype, gain)
    before = x.detach().clone()
    with torch.no_grad():
        found = rms_norm(x, gain, 1e-5, 4)
    assert torch.equal(found, rms_norm(x, gain, 1e-5, 4))
    assert torch.equal(x, before)
