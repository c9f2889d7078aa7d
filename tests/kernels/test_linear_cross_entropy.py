"""The loss of a linear head in chunks, with and without a teacher, against the reference."""

import torch
from comparing import random
from thinned import every_pair

from widthwise.kernels import linear_cross_entropy as kernel
from widthwise.kernels.linear_cross_entropy import Head, Teacher
from widthwise.kernels.linear_cross_entropy import linear_cross_entropy as fused
from widthwise.kernels.linear_cross_entropy import reference_linear_cross_entropy as reference


def inputs(shape=(3, 5), d_model=7, vocab_size=11, dtype=torch.float64, weight_dtype=None):
    hidden = random(*shape, d_model, dtype=dtype).requires_grad_()
    weight = random(vocab_size, d_model, seed=2, dtype=weight_dtype or dtype).requires_grad_()
    return hidden, weight, torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(0))


def result(op, hidden, weight, targets, multiplier=0.7, z_coefficient=0.0, scale=1.0, teacher=None, cap=None):
    objective, loss, log_normaliser = op(hidden, Head(weight, multiplier, cap), targets, z_coefficient, teacher)
    return objective, loss, log_normaliser, *torch.autograd.grad(scale * objective, (hidden, weight))


def teacher(hidden, vocab_size=11, d_teacher=5, share=0.3, temperature=1.7):
    """A teacher of another width, with a head of its own."""
    states = random(*hidden.shape[:-1], d_teacher, seed=9, dtype=hidden.dtype)
    weight = random(vocab_size, d_teacher, seed=8, dtype=hidden.dtype).requires_grad_()
    return Teacher(states, Head(weight, 0.9, cap=1.1), share, temperature)


def test_what_a_teacher_adds_is_the_literal_divergence():
    hidden, weight, targets = inputs()
    taught = teacher(hidden)
    logits = 1.4 * torch.tanh(0.7 * hidden @ weight.T / 1.4)
    aims = 1.1 * torch.tanh(0.9 * taught.hidden @ taught.head.weight.detach().T / 1.1)
    ours, theirs = ((each / 1.7).softmax(dim=-1) for each in (logits, aims))
    divergence = (theirs * (theirs / ours).log()).sum(dim=-1)
    losses = -logits.log_softmax(dim=-1).gather(-1, targets[..., None])[..., 0]
    expected = (0.7 * losses + 0.3 * 1.7**2 * divergence + 0.2 * logits.logsumexp(dim=-1).square()).mean()
    gradients = torch.autograd.grad(expected, (hidden, weight))
    for form in (fused, reference):
        objective, loss, _, *found = result(form, hidden, weight, targets, 0.7, 0.2, teacher=taught, cap=1.4)
        torch.testing.assert_close(objective, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(loss, losses.detach(), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(found, gradients, rtol=1e-11, atol=1e-13)


@every_pair(
    ("n_rows", [1, 7, 15, 16]),
    ("shape", [(3, 5), (1,), (63,), (2, 3, 5)]),
    (("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)]),
    (("z_coefficient", "multiplier"), [(0.0, 1.0), (0.3, 0.125)]),
    ("is_taught", [False, True]),
    ("cap", [None, 1.4]),
)
def test_fused_equals_reference_at_every_chunk_size(
    monkeypatch, n_rows, shape, dtype, tolerance, z_coefficient, multiplier, is_taught, cap
):
    monkeypatch.setattr(kernel, "rows_per_chunk", lambda *_: n_rows)
    tensors = inputs(shape, dtype=dtype, weight_dtype=torch.promote_types(dtype, torch.float32))
    taught = teacher(tensors[0]) if is_taught else None
    ours, truth = (result(form, *tensors, multiplier, z_coefficient, 2.5, taught, cap) for form in (fused, reference))
    torch.testing.assert_close(ours, truth, rtol=tolerance, atol=tolerance)


def test_autocast_equals_reference_under_autocast():
    arguments = inputs((4, 9), 33, 97, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, truth = (result(form, *arguments) for form in (fused, reference))
    torch.testing.assert_close(ours, truth, rtol=3e-2, atol=3e-2)


def test_no_gradient_is_formed_where_none_is_wanted(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("formed a gradient")

    hidden, weight, targets = inputs()
    monkeypatch.setattr(torch, "mm", refuse)
    with torch.no_grad():
        expected = fused(hidden, Head(weight), targets)
    frozen = fused(hidden.detach(), Head(weight.detach()), targets)
    torch.testing.assert_close(frozen, expected)


def test_holds_no_more_logits_than_a_chunk(monkeypatch):
    monkeypatch.setattr(kernel, "rows_per_chunk", lambda *_: 3)
    sizes = []
    real = kernel.linear
    monkeypatch.setattr(kernel, "linear", lambda *arguments: sizes.append((out := real(*arguments)).numel()) or out)
    hidden, weight, targets = inputs()
    fused(hidden, Head(weight), targets)
    assert sizes == [33] * 5
