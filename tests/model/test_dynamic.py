"""The dynamic-width feed-forward compared with plain SwiGLUs of its widths and with formulas."""

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
    """Return a dynamic feed-forward of a recipe. score, mask: a kind, or its section of the recipe."""
    score, mask = ({"kind": option} if isinstance(option, str) else option for option in (score, mask))
    return {"kind": "dynamic", "d_ff": D_FF, "score": score, "mask": mask, **more}


def layer(score="linear", mask="ste", dtype=torch.float64, placement="pre", **more):
    """Return a module with random weights, including the score's."""
    return build(parse(DynamicTemplate, options(score, mask, **more)), D, D_OUT, dtype, placement)


def plain(module, n_units):
    """Return a SwiGLU of the first units of a dynamic layer."""
    swiglu = SwiGLUConfig(d_ff=n_units).build(D, D_OUT, norm_site("pre", D, D_OUT)).double()
    with torch.no_grad():
        swiglu.norm.weight.copy_(module.norm.weight)
        swiglu.w_gate.weight.copy_(module.w_gate.weight[:n_units])
        swiglu.w_up.weight.copy_(module.w_up.weight[:n_units])
        swiglu.w_down.weight.copy_(module.w_down.weight[:, :n_units])
    return swiglu


def forced(fraction):
    """Return the context of a pass with this width fraction for all tokens."""
    width_fraction = torch.tensor(fraction).double()
    return PassContext({}, {}, width_fraction=width_fraction)


@in_turn(
    ("mask", [*MASKS, "none"]),
    ("n_units", [1, 13, D_FF, 12.5]),
)
def test_a_forced_width_is_the_swiglu_of_the_first_units_whatever_the_mask(mask, n_units):
    """Half a unit is not used: a unit is used if the width exceeds its centre."""
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
        results = {}
        for execution in ("masked", "sliced", "auto"):
            module = layer(score, mask, d_ff=200, execution=execution).train(training)
            results[execution] = list(outcome(module, CONTEXT, random_input(D)).values())
        for execution in ("sliced", "auto"):
            torch.testing.assert_close(results[execution], results["masked"], rtol=1e-10, atol=1e-11)

    def test_a_straight_through_mask_computes_the_units_that_its_derivative_reaches(self):
        results = {}
        for execution in ("masked", "auto"):
            mask = {"kind": "ste", "temperature": 1.3}
            module = layer(mask=mask, d_ff=400, min_fraction=0.1, start=0.3, execution=execution)
            results[execution] = outcome(module, CONTEXT, random_input(D))
        torch.testing.assert_close(results["auto"], results["masked"], rtol=1e-10, atol=1e-11)
        width = 400 * results["auto"]["width_fraction"].detach().flatten()
        n_reached = [round(w + 1.3 * math.log(2**53)) for w in width.tolist()]
        expected = sum(next(edge for edge in bucket_edges(400) if edge >= min(n, 400)) for n in n_reached)
        assert module.bucketed_units(width) == expected < 400 * len(width)


FIRST, ONCE, TWICE = 150, 211, 390
"""Sizes of a layer before a growth, after it, and after another; bounds of slices lie between them."""


def grown(module, d_ff):
    """Return the layer after a growth: in w_down new columns are 0, elsewhere new entries are random."""
    sizes = (*module.config.sizes, d_ff)
    config = parse(DynamicConfig, {**to_data(module.config), "grown_from": sizes[:-1], "d_ff": d_ff})
    larger = config.build(D, D_OUT, norm_site("pre", D, D_OUT)).double().train(module.training)
    old, generator = module.state_dict(), torch.Generator().manual_seed(d_ff)
    with torch.no_grad():
        for name, weight in larger.state_dict().items():
            if name.startswith("w_"):
                weight.normal_(generator=generator)
                at_units(name, weight)[places(sizes)] = at_units(name, old[name])
                if name == "w_down.weight":
                    weight[:, torch.tensor(old_index(sizes)) < 0] = 0
            else:
                weight.copy_(old[name])
    return larger


def places(sizes, earlier=-2):
    """Return the current positions of the units of an earlier size. earlier: index of that size."""
    positions = torch.arange(sizes[earlier])
    for n_sizes in range(len(sizes) + earlier + 2, len(sizes) + 1):
        index = torch.tensor(old_index(sizes[:n_sizes]))
        positions = (index >= 0).nonzero()[:, 0][positions]
    return positions


def at_units(name, weight):
    """Return a view of a matrix, or of its gradient, whose first axis is the units."""
    return weight.T if name == "w_down.weight" else weight


def outcome(module, context, x):
    """Return update, widths and every gradient of a pass with fixed random draws."""
    x = x.clone().requires_grad_()
    torch.manual_seed(0)
    update, choices = module(x, context)
    loss = (update * random(*update.shape, seed=6)).sum() + choices["width_fraction"].square().sum()
    gradients = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True)
    names = ["x", *(name for name, _ in module.named_parameters())]
    return {"update": update, **choices, **dict(zip(names, gradients, strict=True))}


class TestGrown:
    """After growth every token still uses its old units."""

    @in_turn(
        ("mask", [*MASKS, "none"]),
        ("execution", ["sliced", "masked", "auto"]),
        ("training", [True, False]),
    )
    def test_update_widths_and_gradients_of_old_units_do_not_change(self, mask, training, execution):
        module = layer("linear", mask, d_ff=FIRST, min_fraction=0.1, start=0.5, execution=execution).train(training)
        once = grown(module, ONCE)
        twice = grown(once, TWICE)
        x = random(4, 9, D)  # enough for stripes
        for context in (CONTEXT, *(forced(fraction) for fraction in (0.0, 0.3, 41 / FIRST, 1.0))):
            before = outcome(module, context, x)
            for larger, earlier in ((once, -2), (twice, -3)):
                after, old_units = outcome(larger, context, x), places(larger.config.sizes, earlier)
                for name, expected in before.items():
                    if expected is None:
                        assert after[name] is None
                        continue
                    if name.startswith("w_"):
                        expected, after[name] = at_units(name, expected), at_units(name, after[name])[old_units]
                    torch.testing.assert_close(after[name], expected, rtol=1e-12, atol=1e-12)

    @in_turn(
        ("mask", [*MASKS, "none"]),
        (
            ("training", "execution", "batch"),
            [(True, "masked", 40), (True, "sliced", 40), (True, "auto", 1), (False, "sliced", 1), (False, "auto", 40)],
        ),
    )
    def test_computed_units_are_the_units_that_torch_counts(self, mask, training, execution, batch):
        module = layer("raw_mean", mask, d_ff=FIRST, min_fraction=0.1, start=0.2, execution=execution)
        larger = grown(grown(module, ONCE), TWICE).train(training)
        x = random_input(D, batch=batch)
        widths = []
        update = larger._update
        larger._update = lambda x, width, edge: (widths.append(width), update(x, width, edge))[1]
        counted = counted_flops(lambda: larger(x, CONTEXT))
        width = widths[0].flatten()
        flops_per_unit = swiglu_cost(D, 1, D_OUT).flops
        assert counted == flops_per_unit * larger.computed_units(width, is_compiled=False)
        is_step = mask == "hard" or (mask == "ste" and not training)
        if not is_step or execution == "masked":
            assert counted == flops_per_unit * TWICE * len(width)
        elif batch > 1:
            assert counted < flops_per_unit * TWICE * len(width)

    def test_used_units_are_the_units_whose_rank_is_below_the_fraction(self):
        larger = grown(grown(layer(d_ff=FIRST), ONCE), TWICE)
        fraction = torch.linspace(0, 1, 401, dtype=torch.float64)
        ranks = torch.tensor([float(rank) for rank, _ in exact_units((FIRST, ONCE, TWICE))], dtype=torch.float64)
        near = (FIRST * (fraction[:, None] - ranks).abs() < 1e-9).any(dim=1)  # where rounding may decide
        used = larger.used_units(FIRST * fraction)
        assert torch.equal(used[~near], (ranks < fraction[:, None]).sum(dim=1)[~near])
        assert near.sum() < 100
        assert int(larger.used_units(torch.tensor(float(FIRST)))) == TWICE
        centres = larger._centres(fraction)  # a width equal to a centre does not use its unit
        assert torch.equal(larger.used_units(centres), (centres < centres[:, None]).sum(dim=1))


GROWTHS = st.lists(st.integers(1, 90), min_size=2, max_size=4).map(lambda added: tuple(accumulate(added)))
"""Sizes of a layer that was grown once to three times."""


@settings(deadline=None)
@given(GROWTHS)
def test_units_of_a_grown_layer_are_merged_exactly_and_original_units_keep_their_centres(sizes):
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
def test_loss_returns_the_chosen_widths_of_every_layer_and_can_force_them():
    ffns = options(mask="ste", min_fraction=0.1), options(mask="none")
    model, plain_model = (decoder(config("zigzag", ffn=ffn)) for ffn in ffns)
    plain_model.load_state_dict(model.state_dict(), strict=False)
    batch = random_tokens(2, 7), random_tokens(2, 7, seed=1)
    free, narrow, full = (model.loss(*batch, width_fraction=fraction) for fraction in (None, 0.25, 1.0))
    assert [choices["width_fraction"].requires_grad for choices in free.choices] == [True] * 5
    assert [choices["width_fraction"].unique().tolist() for choices in narrow.choices] == [[0.25]] * 5
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
def test_a_score_equals_its_formula_times_the_gain(kind):
    score, x, stream = scored(kind), random(3, 5, D), 3 * random(3, 5, D, seed=2) + 1
    expected = LITERAL_SCORES[kind](score, x, stream) * score.log_gain.weight.exp()
    assert_same(score(score.source(x, stream)), expected, score.parameters(), rtol=1e-10, atol=1e-12)


def test_the_ln_mean_score_is_zero_with_equal_gains_and_warns():
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
