"""The dynamic-width feed-forward, against plain SwiGLUs of the widths it chooses and against formulas."""

import math
from itertools import accumulate

import pytest
import torch
from comparing import CONTEXT, assert_same, norm_site, random, randomised
from dynamic_models import exact_units
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_decoder import dynamic, width_fraction
from measured import counted_flops
from model_cases import config, decoder, random_tokens
from pydantic import TypeAdapter
from test_ffn_contract import build, random_input
from thinned import in_turn

from widthwise.config_io import parse, to_data
from widthwise.kernels.sliced_swiglu import bucket_edges
from widthwise.model.context import PassContext
from widthwise.model.ffn.dynamic import DynamicConfig, DynamicTemplate
from widthwise.model.ffn.dynamic_module import old_index
from widthwise.model.ffn.swiglu import SwiGLUConfig, swiglu_cost
from widthwise.model.ffn.width_choice import AnyWidthScore
from widthwise.model.ffn.width_choice_module import EPS, SCORES

pytestmark = pytest.mark.filterwarnings("ignore:.*no variance")

D, D_OUT, D_FF = 21, 13, 40
MASKS = ("hard", "ste", "soft")


def options(score="linear", mask="ste", **more):
    """The options of a dynamic feed-forward in a recipe. score, mask: a kind, or all options of one."""
    score, mask = ({"kind": each} if isinstance(each, str) else each for each in (score, mask))
    return {"kind": "dynamic", "d_ff": D_FF, "score": score, "mask": mask, **more}


def layer(score="linear", mask="ste", dtype=torch.float64, placement="pre", **more):
    """With random weights, the score's included."""
    return build(parse(DynamicTemplate, options(score, mask, **more)), D, D_OUT, dtype, placement)


def plain(module, n_units):
    """A SwiGLU of the first units of a dynamic layer."""
    found = SwiGLUConfig(d_ff=n_units).build(D, D_OUT, norm_site("pre", D, D_OUT)).double()
    with torch.no_grad():
        found.norm.weight.copy_(module.norm.weight)
        found.w_gate.weight.copy_(module.w_gate.weight[:n_units])
        found.w_up.weight.copy_(module.w_up.weight[:n_units])
        found.w_down.weight.copy_(module.w_down.weight[:, :n_units])
    return found


def forced(fraction):
    width_fraction = torch.tensor(fraction).double()
    return PassContext({}, {}, width_fraction=width_fraction)


@in_turn(
    ("mask", [*MASKS, "none"]),
    ("n_units", [1, 13, D_FF, 12.5]),
)
def test_a_forced_width_is_the_swiglu_of_the_first_units_whatever_the_mask(mask, n_units):
    """Half a unit is none: a unit is used where the width is beyond its middle."""
    module, x = layer(mask=mask), random_input(D)
    update, choices = module(x, forced(n_units / D_FF))
    torch.testing.assert_close(update, plain(module, int(n_units))(x, CONTEXT)[0])
    torch.testing.assert_close(choices["width_fraction"], torch.full((2, 5), n_units / D_FF, dtype=torch.float64))


@pytest.mark.parametrize("mask", ["ste", "soft"])
def test_values_and_gradients_equal_the_formulas(mask):
    module = layer("linear", {"kind": mask, "temperature": 1.8}, placement="none", min_fraction=0.2)
    x = random_input(D).requires_grad_()
    update, choices = module(x, CONTEXT)
    truth = [dynamic(module, x), width_fraction(module, x)]
    assert_same([update, choices["width_fraction"]], truth, (x, *module.parameters()))


class TestExecution:
    @in_turn(
        ("mask", ["hard", "ste"]),
        ("training", [True, False]),
        ("score", ["linear", "const"]),
    )
    def test_sliced_equals_masked(self, mask, training, score):
        found = {}
        for execution in ("masked", "sliced", "auto"):
            module = layer(score, mask, d_ff=200, execution=execution).train(training)
            found[execution] = list(outcome(module, CONTEXT, random_input(D)).values())
        for execution in ("sliced", "auto"):
            torch.testing.assert_close(found[execution], found["masked"], rtol=1e-10, atol=1e-11)

    def test_a_straight_through_mask_trains_on_the_units_that_its_derivative_reaches(self):
        found = {}
        for execution in ("masked", "auto"):
            mask = {"kind": "ste", "temperature": 1.3}
            module = layer(mask=mask, d_ff=400, min_fraction=0.1, start=0.3, execution=execution)
            found[execution] = outcome(module, CONTEXT, random_input(D))
        torch.testing.assert_close(found["auto"], found["masked"], rtol=1e-10, atol=1e-11)
        width = 400 * found["auto"]["width_fraction"].detach().flatten()
        reached = [round(each + 1.3 * math.log(2**53)) for each in width.tolist()]
        expected = sum(next(edge for edge in bucket_edges(400) if edge >= min(n, 400)) for n in reached)
        assert module.bucketed_units(width) == expected < 400 * len(width)


FIRST, ONCE, TWICE = 150, 211, 390
"""Sizes of a layer before a growth, after it, and after another; bounds of slices lie between them."""


def grown(module, d_ff):
    """The layer after a growth: in w_down new columns are 0, elsewhere new entries are random."""
    sizes = (*module.config.sizes, d_ff)
    config = parse(DynamicConfig, {**to_data(module.config), "grown_from": sizes[:-1], "d_ff": d_ff})
    found = config.build(D, D_OUT, norm_site("pre", D, D_OUT)).double().train(module.training)
    old, generator = module.state_dict(), torch.Generator().manual_seed(d_ff)
    with torch.no_grad():
        for name, weight in found.state_dict().items():
            if name.startswith("w_"):
                weight.normal_(generator=generator)
                at_units(name, weight)[places(sizes)] = at_units(name, old[name])
                if name == "w_down.weight":
                    weight[:, torch.tensor(old_index(sizes)) < 0] = 0
            else:
                weight.copy_(old[name])
    return found


def places(sizes, earlier=-2):
    """Where the units of an earlier size are now."""
    found = torch.arange(sizes[earlier])
    for n_sizes in range(len(sizes) + earlier + 2, len(sizes) + 1):
        index = torch.tensor(old_index(sizes[:n_sizes]))
        found = (index >= 0).nonzero()[:, 0][found]
    return found


def at_units(name, weight):
    """A view of a matrix, or of its gradient, whose first axis are the units."""
    return weight.T if name == "w_down.weight" else weight


def outcome(module, passed, x):
    """Update, widths and every gradient, of a pass that draws what others draw."""
    x = x.clone().requires_grad_()
    torch.manual_seed(0)
    update, choices = module(x, passed)
    loss = (update * random(*update.shape, seed=6)).sum() + choices["width_fraction"].square().sum()
    gradients = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True)
    names = ["x", *(name for name, _ in module.named_parameters())]
    return {"update": update, **choices, **dict(zip(names, gradients, strict=True))}


class TestGrown:
    """Every token goes on with the units that it used before."""

    @in_turn(
        ("mask", [*MASKS, "none"]),
        ("execution", ["sliced", "masked", "auto"]),
        ("training", [True, False]),
    )
    def test_update_widths_and_gradients_of_what_was_there_stay(self, mask, training, execution):
        module = layer("linear", mask, d_ff=FIRST, min_fraction=0.1, start=0.5, execution=execution).train(training)
        once = grown(module, ONCE)
        twice = grown(once, TWICE)
        x = random(4, 9, D)  # enough for stripes
        for passed in (CONTEXT, *(forced(fraction) for fraction in (0.0, 0.3, 41 / FIRST, 1.0))):
            truth = outcome(module, passed, x)
            for found, earlier in ((once, -2), (twice, -3)):
                ours, kept = outcome(found, passed, x), places(found.config.sizes, earlier)
                for name, expected in truth.items():
                    if expected is None:
                        assert ours[name] is None
                        continue
                    if name.startswith("w_"):
                        expected, ours[name] = at_units(name, expected), at_units(name, ours[name])[kept]
                    torch.testing.assert_close(ours[name], expected, rtol=1e-12, atol=1e-12)

    @in_turn(
        ("mask", [*MASKS, "none"]),
        (
            ("training", "execution", "batch"),
            [(True, "masked", 40), (True, "sliced", 40), (True, "auto", 1), (False, "sliced", 1), (False, "auto", 40)],
        ),
    )
    def test_counts_the_units_that_it_computes(self, mask, training, execution, batch):
        module = layer("raw_mean", mask, d_ff=FIRST, min_fraction=0.1, start=0.2, execution=execution)
        found = grown(grown(module, ONCE), TWICE).train(training)
        x, passed = random_input(D, batch=batch), CONTEXT
        widths = []
        update = found._update
        found._update = lambda x, width, edge: (widths.append(width), update(x, width, edge))[1]
        counted = counted_flops(lambda: found(x, passed))
        width = widths[0].flatten()
        of_unit = swiglu_cost(D, 1, D_OUT).flops
        assert counted == of_unit * found.computed_units(width, is_compiled=False)
        is_step = mask == "hard" or (mask == "ste" and not training)
        if not is_step or execution == "masked":
            assert counted == of_unit * TWICE * len(width)
        elif batch > 1:
            assert counted < of_unit * TWICE * len(width)

    def test_used_units_are_those_whose_rank_lies_below_the_fraction(self):
        found = grown(grown(layer(d_ff=FIRST), ONCE), TWICE)
        fraction = torch.linspace(0, 1, 401, dtype=torch.float64)
        ranks = torch.tensor([float(rank) for rank, _ in exact_units((FIRST, ONCE, TWICE))], dtype=torch.float64)
        near = (FIRST * (fraction[:, None] - ranks).abs() < 1e-9).any(dim=1)  # where rounding may decide
        used = found.used_units(FIRST * fraction)
        assert torch.equal(used[~near], (ranks < fraction[:, None]).sum(dim=1)[~near])
        assert near.sum() < 100
        assert int(found.used_units(torch.tensor(float(FIRST)))) == TWICE
        own = found._centres(fraction)  # a width of exactly a centre does not reach it
        assert torch.equal(found.used_units(own), (own < own[:, None]).sum(dim=1))


GROWTHS = st.lists(st.integers(1, 90), min_size=2, max_size=4).map(lambda added: tuple(accumulate(added)))
"""Sizes of a layer that was grown once to three times."""


@settings(deadline=None)
@given(GROWTHS)
def test_units_of_a_grown_layer_are_an_exact_merge_in_which_the_first_ones_keep_their_centres(sizes):
    units = exact_units(sizes)
    assert old_index(sizes) == [place for _, place in units]
    grown_config = DynamicConfig(d_ff=sizes[-1], grown_from=sizes[:-1], mask={"kind": "hard"})
    grown_layer = grown_config.build(1, 1, norm_site("pre", 1, 1))
    for dtype in (torch.float32, torch.float64):
        expected = torch.tensor([float(rank * sizes[0]) for rank, _ in units], dtype=torch.float64)
        centres = grown_layer._centres(torch.ones((), dtype=dtype))
        assert torch.equal(centres, expected.to(dtype))
        assert centres[places(sizes, -len(sizes))].tolist() == [i + 0.5 for i in range(sizes[0])]


@pytest.mark.usefixtures("float64")
def test_a_loss_has_the_widths_that_every_layer_chose_and_can_force_them():
    ffns = options(mask="ste", min_fraction=0.1), options(mask="none")
    model, plain_model = (decoder(config("zigzag", ffn=ffn)) for ffn in ffns)
    plain_model.load_state_dict(model.state_dict(), strict=False)
    batch = random_tokens(2, 7), random_tokens(2, 7, seed=1)
    free, narrow, full = (model.loss(*batch, width_fraction=fraction) for fraction in (None, 0.25, 1.0))
    assert [chosen["width_fraction"].requires_grad for chosen in free.choices] == [True] * 5
    assert [chosen["width_fraction"].unique().tolist() for chosen in narrow.choices] == [[0.25]] * 5
    assert (narrow.losses - full.losses).abs().max() > 1e-3
    torch.testing.assert_close(full.losses, plain_model.loss(*batch).losses)


def scored(kind, **options):
    config = TypeAdapter(AnyWidthScore).validate_python({"kind": kind, **options})
    return randomised(SCORES[kind](config, D).double())


LITERAL_SCORES = {
    "ln_mean": lambda s, x, stream: (
        ((x - x.mean(-1, True)) / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()) * s.scale.weight
        + s.shift.weight
    ).mean(-1),
    "raw_mean": lambda s, x, stream: stream.sum(-1) / D,
}


@pytest.mark.parametrize("kind", LITERAL_SCORES)
def test_a_score_is_its_formula_times_the_gain(kind):
    score, x, stream = scored(kind), random(3, 5, D), 3 * random(3, 5, D, seed=2) + 1
    expected = LITERAL_SCORES[kind](score, x, stream) * score.log_gain.weight.exp()
    assert_same(score(score.source(x, stream)), expected, score.parameters(), rtol=1e-10, atol=1e-12)


def test_the_mean_of_a_layer_norm_of_equal_gains_is_zero_and_says_so():
    with pytest.warns(UserWarning, match="score has no variance"):
        score = scored("ln_mean")
    torch.nn.init.constant_(score.scale.weight, 0.7)
    torch.nn.init.zeros_(score.shift.weight)
    assert score(random(3, 5, D)).abs().max() < 1e-12


def test_a_random_score_is_uniform_before_the_bias():
    torch.manual_seed(0)
    score, x = scored("random", learn_gain=False), torch.zeros(40, 500, D)
    ordered = torch.sigmoid(score(score.source(x, x))).flatten().sort().values
    uniform = torch.arange(len(ordered)) / len(ordered)
    assert (ordered - uniform).abs().max() < 1.95 / math.sqrt(len(ordered))  # Kolmogorov-Smirnov, p = 0.001
