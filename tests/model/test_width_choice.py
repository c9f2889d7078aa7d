"""The scores from which tokens choose their widths and the masks over hidden units, against their formulas."""

import math

import pytest
import torch
from comparing import assert_same, random, randomised
from pydantic import TypeAdapter
from thinned import in_turn

from widthwise.model.ffn.width_choice import AnyWidthMask, AnyWidthScore
from widthwise.model.ffn.width_choice_module import EDGES, EPS, SCORES

D = 37
M = 512
CENTRES = torch.arange(M, dtype=torch.float64) + 0.5

pytestmark = pytest.mark.filterwarnings("ignore:.*no variance")


def scored(kind, **options):
    config = TypeAdapter(AnyWidthScore).validate_python({"kind": kind, **options})
    return randomised(SCORES[kind](config, D).double())


def inputs():
    return random(3, 5, D), 3 * random(3, 5, D, seed=2) + 1


def apply(score, x, stream):
    return score(score.source(x, stream))


LITERAL = {
    "ln_mean": lambda s, x, stream: (
        ((x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()) * s.scale.weight
        + s.shift.weight
    ).mean(-1),
    "raw_mean": lambda s, x, stream: stream.sum(-1) / D,
    "linear": lambda s, x, stream: (x * s.v.weight[0]).sum(-1),
}


@pytest.mark.parametrize("kind", LITERAL)
def test_equals_its_formula_times_the_gain(kind):
    score, (x, stream) = scored(kind), inputs()
    expected = LITERAL[kind](score, x, stream) * score.log_gain.weight.exp()
    assert_same(apply(score, x, stream), expected, score.parameters(), rtol=1e-10, atol=1e-12)


def test_the_mean_of_a_layer_norm_of_equal_gains_is_zero_and_says_so():
    with pytest.warns(UserWarning, match="score has no variance"):
        score = scored("ln_mean")
    torch.nn.init.constant_(score.scale.weight, 0.7)
    torch.nn.init.zeros_(score.shift.weight)
    assert apply(score, *inputs()).abs().max() < 1e-12


def test_a_random_score_is_uniform_before_the_bias():
    torch.manual_seed(0)
    x = torch.zeros(40, 500, D)
    ordered = torch.sigmoid(apply(scored("random", learn_gain=False), x, x)).flatten().sort().values
    uniform = torch.arange(len(ordered)) / len(ordered)
    assert (ordered - uniform).abs().max() < 1.95 / math.sqrt(len(ordered))  # Kolmogorov-Smirnov, p = 0.001


def edge_of(kind, training=True):
    mask = TypeAdapter(AnyWidthMask).validate_python({"kind": kind}).at_width(M)
    return EDGES[kind](mask, torch.float64, training)


def values(edge, width):
    """(n_widths, n_units)."""
    return edge.mask(torch.as_tensor(width, dtype=torch.float64)[..., None], CENTRES)


def slopes(edge, width):
    """d mask / d width, unit by unit, through the backward pass: a straight-through mask has its derivative there."""
    width = torch.tensor(width, dtype=torch.float64).requires_grad_()
    found = values(edge, width)
    if not found.requires_grad:
        return torch.zeros(M, dtype=torch.float64)
    return torch.autograd.grad(found, width, torch.eye(M, dtype=torch.float64), is_grads_batched=True)[0]


@in_turn(
    ("kind", ["hard", "ste", "soft"]),
    ("training", [True, False]),
)
def test_beyond_the_margin_the_mask_is_0_or_1_without_derivative(kind, training):
    """A straight-through mask has a derivative everywhere, of which rounding leaves nothing beyond its margin."""
    edge = edge_of(kind, training)
    if kind == "hard" or (kind == "ste" and not training):
        assert edge.margin == 0
    for width in (0.0, 0.5, 3.3, 255.5, 256.0, 400.49, 512.0):
        inner, outer = width - edge.margin > CENTRES, width + edge.margin < CENTRES
        assert (values(edge, width)[inner] == 1).all()
        assert (values(edge, width)[outer] == 0).all()
        assert slopes(edge, width)[inner | outer].sum() <= 1.1 * 2**-52
