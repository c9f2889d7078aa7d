import math

import pytest
import torch
from pydantic import TypeAdapter

from widthwise.model.axes import Linear
from widthwise.model.context import PassContext
from widthwise.model.ffn.width_score import AnyWidthScore
from widthwise.model.ffn.width_score_module import EPS
from widthwise.model.initial_weights import fill

D = 37
VOCAB = 61
KINDS = ("ln_mean", "rms_mean", "raw_mean", "linear", "mlp", "token", "const", "random")

pytestmark = pytest.mark.filterwarnings("ignore:.*no variance")


def config(kind, **options):
    needed = {"vocab_size": VOCAB} if kind == "token" else {}
    return TypeAdapter(AnyWidthScore).validate_python({"kind": kind, **needed, **options})


def initial(kind, dtype=torch.float64, **options):
    """As it starts."""
    score = config(kind, **options).build(D).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for module in score.modules():
        fill(module, 0.4, generator)
    return score


def score_of(kind, dtype=torch.float64, **options):
    """With weights that differ from where they start."""
    score = initial(kind, dtype, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in score.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) / 3
    return score


def inputs(dtype=torch.float64, batch=3, length=5):
    generator = torch.Generator().manual_seed(2)
    x, stream = (torch.randn(batch, length, D, generator=generator).to(dtype) for _ in range(2))
    tokens = torch.randint(VOCAB, (batch, length), generator=generator)
    return x, 3 * stream + 1, PassContext(tokens, rope={}, mask=None, progress=torch.ones(()))


def apply(score, x, stream, context):
    return score(score.source(x, stream, context))


def silu(x):
    return x / (1 + torch.exp(-x))


LITERAL = {
    "ln_mean": lambda s, x, stream, tokens: (
        ((x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()) * s.scale.weight
        + s.shift.weight
    ).mean(-1),
    "rms_mean": lambda s, x, stream, tokens: (x / ((x**2).mean(-1, True) + EPS).sqrt()).mean(-1),
    "raw_mean": lambda s, x, stream, tokens: stream.sum(-1) / D,
    "linear": lambda s, x, stream, tokens: (x * s.v.weight[0]).sum(-1),
    "mlp": lambda s, x, stream, tokens: silu(x @ s.w_in.weight.T) @ s.v.weight[0],
    "token": lambda s, x, stream, tokens: s.table.weight[tokens],
}


@pytest.mark.parametrize("kind", LITERAL)
def test_equals_its_formula_times_the_gain(kind):
    score, (x, stream, context) = score_of(kind), inputs()
    expected = LITERAL[kind](score, x, stream, context.tokens) * score.log_gain.weight.exp()
    found = apply(score, x, stream, context)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    direction = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients, truth = (
        torch.autograd.grad((each * direction).sum(), list(score.parameters())) for each in (found, expected)
    )
    for ours, theirs in zip(gradients, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_cost_is_that_of_the_built_score(kind):
    for gain in (True, False) if kind != "const" else (None,):
        options = {} if gain is None else {"learn_gain": gain}
        built = sum(parameter.numel() for parameter in config(kind, **options).build(D).parameters())
        assert config(kind, **options).cost(D).params == built


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "const"])
def test_without_a_learned_gain_there_is_none(kind):
    names = [name for name, _ in initial(kind, learn_gain=False).named_parameters()]
    assert "log_gain.weight" not in names
    torch.manual_seed(0)
    fixed = apply(initial(kind, learn_gain=False), *inputs())
    torch.manual_seed(0)
    torch.testing.assert_close(fixed, apply(initial(kind), *inputs()), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["linear", "mlp", "token", "const"])
def test_what_is_learned_starts_as_one_width_for_all_tokens(kind):
    assert (apply(initial(kind), *inputs()) == 0).all()


@pytest.mark.parametrize(("kind", "zero"), [("linear", "v"), ("mlp", "v"), ("token", "table")])
def test_and_leaves_it_with_its_first_gradient(kind, zero):
    score = initial(kind)
    (apply(score, *inputs()) * torch.arange(5.0)).sum().backward()
    assert (score.get_submodule(zero).weight.grad != 0).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_mean_of_a_layer_norm_is_zero(dtype):
    x = (5 * torch.randn(4096, 768, generator=torch.Generator().manual_seed(0)) + 2).to(dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-3}[dtype]
    assert torch.nn.functional.layer_norm(x, (768,)).mean(-1).abs().max() <= tolerance


def test_as_written_the_score_is_zero_and_says_so():
    with pytest.warns(UserWarning, match="score has no variance"):
        score = config("ln_mean").build(D).double()
    for module in score.modules():
        fill(module, 1.0, torch.Generator())
    assert apply(score, *inputs()).abs().max() < 1e-12


def test_token_parts_of_a_layer_norms_mean_shrink_with_the_root_of_the_width():
    """With gains of spread s the score's standard deviation is s / sqrt(d): what a learned direction does not lose."""
    generator = torch.Generator().manual_seed(0)
    for d in (48, 768):
        score = config("ln_mean").build(d).double()
        with torch.no_grad():
            score.scale.weight.copy_(1 + 0.1 * torch.randn(d, generator=generator))
            score.shift.weight.zero_()
            score.log_gain.weight.zero_()
        x = torch.randn(1, 4096, d, generator=generator, dtype=torch.float64)
        assert score(x).std().item() == pytest.approx(0.1 / math.sqrt(d), rel=0.3)


@pytest.mark.parametrize("kind", ["linear", "mlp", "ln_mean", "rms_mean", "raw_mean"])
def test_detached_scores_leave_the_features_alone(kind):
    for detach in (False, True):
        x, stream, context = inputs()
        x.requires_grad_()
        stream.requires_grad_()
        score = score_of(kind, detach=detach)
        (apply(score, x, stream, context) * torch.arange(5.0)).sum().backward()
        assert all(parameter.grad is not None for parameter in score.parameters())
        reached = [tensor.grad is not None and bool((tensor.grad != 0).any()) for tensor in (x, stream)]
        assert reached == [not detach and kind != "raw_mean", not detach and kind == "raw_mean"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "random"])
def test_bf16_features_are_scored_in_fp32(kind):
    x, stream, context = inputs(torch.bfloat16)
    score = score_of(kind, torch.float32)
    found = apply(score, x, stream, context)
    assert found.dtype == torch.float32
    exact = apply(score_of(kind), x.double(), stream.double(), context)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    assert apply(score_of(kind), *inputs()).dtype == torch.float64


class TestRandom:
    def levels(self, bias=0.0):
        torch.manual_seed(0)
        x = torch.zeros(40, 500, D)
        return torch.sigmoid(apply(initial("random", torch.float32), x, x, inputs()[2]) + bias)

    def test_is_uniform_before_the_bias(self):
        ordered = self.levels().flatten().sort().values
        uniform = torch.arange(len(ordered)) / len(ordered)
        assert (ordered - uniform).abs().max() < 1.95 / math.sqrt(len(ordered))  # Kolmogorov-Smirnov, p = 0.001

    def test_the_bias_moves_its_mean(self):
        assert self.levels(-1).mean() < 0.4 < self.levels().mean() < 0.6 < self.levels(1).mean()

    def test_a_draw_of_zero_has_a_finite_gradient(self):
        score = initial("random")
        torch.sigmoid(score(torch.zeros(2, 3, dtype=torch.float64))).sum().backward()
        assert torch.isfinite(score.log_gain.weight.grad).all()


def test_matrices_that_start_at_zero_are_linear_layers_of_the_stream():
    for kind in ("linear", "mlp"):
        (zero,) = (m for m in initial(kind).modules() if isinstance(m, Linear) and m.start == 0)
        assert zero.out_axes == {"score": 1}


def test_vocabulary_must_be_given():
    with pytest.raises(ValueError, match="vocab_size"):
        TypeAdapter(AnyWidthScore).validate_python({"kind": "token"})
