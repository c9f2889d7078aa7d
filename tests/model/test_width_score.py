"""The scores from which tokens choose their widths, against their formulas."""

import math

import pytest
import torch
from comparing import assert_same, context, random, started
from pydantic import TypeAdapter

from widthwise.model.ffn.width_score import AnyWidthScore
from widthwise.model.ffn.width_score_module import EPS

D = 37
VOCAB = 61
KINDS = ("ln_mean", "rms_mean", "raw_mean", "linear", "mlp", "token", "const", "random")

pytestmark = pytest.mark.filterwarnings("ignore:.*no variance")


def config(kind, **options):
    needed = {"vocab_size": VOCAB} if kind == "token" else {}
    return TypeAdapter(AnyWidthScore).validate_python({"kind": kind, **needed, **options})


def initial(kind, noise=0.0, **options):
    """As it starts, but for noise."""
    return started(config(kind, **options).build(D).double(), std=0.4, noise=noise)


def inputs():
    return random(3, 5, D), 3 * random(3, 5, D, seed=2) + 1, context(3, 5)


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
    score, (x, stream, context) = initial(kind, noise=0.3), inputs()
    expected = LITERAL[kind](score, x, stream, context.tokens) * score.log_gain.weight.exp()
    assert_same(apply(score, x, stream, context), expected, score.parameters(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_cost_is_that_of_the_built_score_which_has_a_gain_unless_told_otherwise(kind):
    for options in ({"learn_gain": True}, {"learn_gain": False}) if kind != "const" else ({},):
        names = dict(initial(kind, **options).named_parameters())
        assert config(kind, **options).cost(D).params == sum(parameter.numel() for parameter in names.values())
        assert ("log_gain.weight" in names) == options.get("learn_gain", False)
    if kind != "const":
        found = []
        for gain in (True, False):
            torch.manual_seed(0)
            found.append(apply(initial(kind, learn_gain=gain), *inputs()))
        assert torch.equal(*found)
    if kind in ("linear", "mlp", "token", "const"):  # what is learned starts as one width for all tokens
        assert (apply(initial(kind), *inputs()) == 0).all()


def test_as_written_the_score_is_zero_and_says_so():
    with pytest.warns(UserWarning, match="score has no variance"):
        score = initial("ln_mean")
    assert apply(score, *inputs()).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["linear", "mlp", "ln_mean", "rms_mean", "raw_mean"])
def test_detached_scores_leave_the_features_alone(kind):
    for detach in (False, True):
        x, stream, context = inputs()
        x.requires_grad_()
        stream.requires_grad_()
        score = initial(kind, noise=0.3, detach=detach)
        (apply(score, x, stream, context) * torch.arange(5.0)).sum().backward()
        assert all(parameter.grad is not None for parameter in score.parameters())
        reached = [tensor.grad is not None and bool((tensor.grad != 0).any()) for tensor in (x, stream)]
        assert reached == [not detach and kind != "raw_mean", not detach and kind == "raw_mean"]


def test_a_random_score_is_uniform_before_the_bias():
    torch.manual_seed(0)
    x = torch.zeros(40, 500, D)
    ordered = torch.sigmoid(apply(initial("random"), x, x, inputs()[2])).flatten().sort().values
    uniform = torch.arange(len(ordered)) / len(ordered)
    assert (ordered - uniform).abs().max() < 1.95 / math.sqrt(len(ordered))  # Kolmogorov-Smirnov, p = 0.001
