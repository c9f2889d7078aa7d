"""The dynamic-width feed-forward, against plain SwiGLUs of the widths it chooses and against formulas."""

import math
import warnings
from itertools import cycle, product

import pytest
import torch
from dynamic_models import exact_units
from measured import counted_flops
from model_cases import config, decoder, random_tokens, template
from test_ffn_contract import build, context, norm_site, random_input

from widthwise.config_io import UserError, parse, to_data
from widthwise.kernels.sliced_swiglu.buckets import bucket_edges
from widthwise.model.config import ModelConfig
from widthwise.model.context import PassContext
from widthwise.model.ffn.dynamic import DynamicConfig, DynamicTemplate
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.ffn.unit_ranks import old_index
from widthwise.model.generate import SamplingConfig, generate
from widthwise.model.initial_weights import fill
from widthwise.model.norm import NormConfig, NormSite
from widthwise.yaml_io import parse_yaml, to_yaml

pytestmark = pytest.mark.filterwarnings("ignore:.*no variance")

D, D_OUT, D_FF = 21, 13, 40
MASKS = ("hard", "ste", "soft", "anneal", "linear_ramp", "nested")
SCORES = ("ln_mean", "rms_mean", "raw_mean", "linear", "mlp", "token", "const", "random")
AS_WRITTEN = {"score": {"kind": "ln_mean"}, "mask": {"kind": "hard"}, "min_fraction": 0.0, "start": 0.5}


def options(score="linear", mask="ste", **more):
    """The options of a dynamic feed-forward in a recipe. score, mask: a kind, or all options of one."""
    score, mask = ({"kind": each} if isinstance(each, str) else each for each in (score, mask))
    needed = {"vocab_size": 61} if score["kind"] == "token" else {}
    return {"kind": "dynamic", "d_ff": D_FF, "score": {**score, **needed}, "mask": mask, **more}


def layer(score="linear", mask="ste", dtype=torch.float64, placement="pre", **more):
    """With random weights, the score's included."""
    return build(parse(DynamicTemplate, options(score, mask, **more)), D, D_OUT, dtype, placement)


def initial(d_model=D, d_out=D_OUT, placement="pre", seed=0, **choice):
    """A layer as it starts."""
    site = NormSite(placement, NormConfig(norm_dim=d_model))
    module = parse(DynamicTemplate, options(**choice)).at_width(d_model).build(d_model, d_out, site)
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        fill(part, 0.3, generator)
    return module


def plain(module, n_units):
    """A SwiGLU of the first units of a dynamic layer."""
    found = SwiGLUConfig(d_ff=n_units).build(D, D_OUT, norm_site("pre", D, D_OUT)).double()
    with torch.no_grad():
        found.norm.weight.copy_(module.norm.weight)
        found.w_gate.weight.copy_(module.w_gate.weight[:n_units])
        found.w_up.weight.copy_(module.w_up.weight[:n_units])
        found.w_down.weight.copy_(module.w_down.weight[:, :n_units])
    return found


def forced(fraction, batch=2, length=5):
    width_fraction = torch.tensor(fraction).double()
    return PassContext(random_tokens(batch, length), {}, None, torch.ones(()), width_fraction=width_fraction)


class TestWidths:
    @pytest.mark.parametrize("mask", ["hard", "ste"])
    def test_each_token_gets_the_swiglu_of_its_own_width(self, mask):
        module, x = layer(mask=mask), random_input(D)
        update, choices = module(x, context(2, 5))
        widths = (D_FF * choices["width_fraction"]).round().long()
        assert len(widths.unique()) > 3
        for row in range(2):
            for token in range(5):
                alone = plain(module, int(widths[row, token]))(x[row : row + 1, token : token + 1], context(1, 1))[0]
                torch.testing.assert_close(update[row : row + 1, token : token + 1], alone)

    def test_the_fraction_is_the_formula_of_score_and_bias(self):
        module, x = layer(min_fraction=0.2), random_input(D)
        score = module.norm(x) @ module.score.v.weight[0] * module.score.log_gain.weight.exp()
        expected = 0.2 + 0.8 / (1 + torch.exp(-score - module.bias.weight))
        torch.testing.assert_close(module(x, context(2, 5))[1]["width_fraction"], expected)

    @pytest.mark.parametrize("start", [0.9, 0.35])
    def test_all_tokens_start_at_the_level_that_is_said(self, start):
        module = initial(start=start, min_fraction=0.25)
        fraction = module(random_input(D, torch.float32), context(2, 5))[1]["width_fraction"]
        torch.testing.assert_close(fraction, torch.full((2, 5), 0.25 + 0.75 * start))

    @pytest.mark.parametrize("score", SCORES)
    def test_fractions_stay_between_the_floor_and_one(self, score):
        module = layer(score, min_fraction=0.3)
        with torch.no_grad():
            for parameter in module.score.parameters():
                parameter *= 40
        fraction = module(3 * random_input(D), context(2, 5))[1]["width_fraction"]
        assert (fraction >= 0.3).all()
        assert (fraction <= 1).all()

    def test_widths_are_fp32_under_autocast(self):
        module = layer(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            update, choices = module(random_input(D, torch.float32), context(2, 5))
        assert choices["width_fraction"].dtype == torch.float32
        assert update.dtype == torch.bfloat16

    def test_nested_training_draws_what_is_used_and_reports_what_is_asked(self):
        module, x = layer(mask={"kind": "nested", "n_buckets": 3}, min_fraction=0.2), random_input(D)
        asked = module.eval()(x, context(2, 5))[1]["width_fraction"]
        torch.manual_seed(0)
        update, choices = module.train()(x, context(2, 5))
        torch.testing.assert_close(choices["width_fraction"], asked)
        drawn = {n: plain(module, n)(x, context(2, 5))[0] for n in (8, 24, 40)}  # 0.2, 0.6 and 1 of 40 units
        used = torch.stack([(update - drawn[n]).abs().amax(-1) < 1e-12 for n in drawn])
        assert (used.sum(dim=0) == 1).all()
        assert used.any(dim=2).any(dim=1).all()


class TestLimits:
    @pytest.mark.parametrize("mask", ["hard", "ste", "nested", "none"])
    @pytest.mark.parametrize("training", [True, False])
    def test_a_floor_of_one_or_no_mask_is_a_plain_swiglu_to_the_bit(self, mask, training):
        floor = 0.5 if mask == "none" else 1.0
        module, x = layer(mask=mask, min_fraction=floor, execution="masked").train(training), random_input(D)
        update, choices = module(x, context(2, 5))
        assert torch.equal(update, plain(module, D_FF)(x, context(2, 5))[0])
        assert (choices["width_fraction"] == 1).all()

    def test_without_a_mask_there_is_no_score_and_the_parameters_are_the_swiglus(self):
        module = layer("mlp", "none")
        assert dict(module.named_parameters()).keys() == dict(plain(module, D_FF).named_parameters()).keys()

    @pytest.mark.parametrize("mask", [*MASKS, "none"])
    @pytest.mark.parametrize("n_units", [1, 13, D_FF])
    def test_a_forced_width_is_the_swiglu_of_the_first_units_whatever_the_mask(self, mask, n_units):
        module, x = layer(mask=mask), random_input(D)
        update, choices = module(x, forced(n_units / D_FF))
        torch.testing.assert_close(update, plain(module, n_units)(x, context(2, 5))[0])
        torch.testing.assert_close(choices["width_fraction"], torch.full((2, 5), n_units / D_FF, dtype=torch.float64))

    def test_a_width_of_zero_writes_nothing(self):
        module = layer(min_fraction=0.0)
        torch.nn.init.constant_(module.bias.weight, -900.0)
        for passed in (context(2, 5), forced(0.0)):
            assert not module(random_input(D), passed)[0].any()

    def test_soft_masks_become_hard_ones_as_the_temperature_falls(self):
        x = random_input(D)
        hard = layer(mask="hard")(x, context(2, 5))[0]
        gaps = [
            (layer(mask={"kind": "soft", "temperature": t})(x, context(2, 5))[0] - hard).norm()
            for t in (1.0, 0.1, 1e-3, 1e-5)
        ]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] < 1e-9 * hard.norm()

    def test_straight_through_is_hard_to_the_bit(self):
        x = random_input(D)
        hard, ste = (layer(mask=kind, execution="masked")(x, context(2, 5))[0] for kind in ("hard", "ste"))
        assert torch.equal(hard, ste)


class TestAsWritten:
    """The paper's formulas: a step at sigmoid(mean(LayerNorm(x))) * d_ff."""

    def test_every_token_uses_exactly_half_of_the_units(self):
        for dtype in (torch.float64, torch.float32):
            module = initial(**AS_WRITTEN).to(dtype)
            x = 3 * torch.randn(7, 60, D, generator=torch.Generator().manual_seed(4)).to(dtype)
            update, choices = module(x, context(7, 60))
            torch.testing.assert_close(choices["width_fraction"], torch.full((7, 60), 0.5, dtype=dtype))
            torch.testing.assert_close(update, plain(module, D_FF // 2).to(dtype)(x, context(7, 60))[0])

    def test_trains_as_a_swiglu_of_half_the_width(self):
        dynamic = initial(**AS_WRITTEN).double()
        half = plain(dynamic, D_FF // 2)
        losses = {}
        for module in (dynamic, half):
            generator = torch.Generator().manual_seed(5)
            optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.1)
            teacher = torch.randn(D, D_OUT, generator=generator, dtype=torch.float64)
            losses[module] = []
            for _ in range(100):
                x = torch.randn(2, 9, D, generator=generator, dtype=torch.float64)
                loss = (module(x, context(2, 9))[0] - torch.tanh(x @ teacher)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[module].append(loss.item())
        assert losses[half][-1] < 0.8 * losses[half][0]
        assert losses[dynamic] == pytest.approx(losses[half], rel=0, abs=1e-12)
        assert not dynamic.w_gate.weight.grad[D_FF // 2 :].any()

    def test_building_it_warns_once(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                initial(**AS_WRITTEN)
        assert [str(each.message)[:9] for each in caught] == ["ffn.score"]


class TestGradients:
    @pytest.mark.parametrize("execution", ["masked", "auto"])
    def test_through_a_hard_mask_none_reaches_the_score(self, execution):
        module = layer(mask="hard", execution=execution)
        module(random_input(D), context(2, 5))[0].square().sum().backward()
        assert not any(p.grad is not None and p.grad.any() for p in (*module.score.parameters(), module.bias.weight))

    @pytest.mark.parametrize("mask", MASKS)
    def test_a_budget_on_the_widths_always_does(self, mask):
        module = layer(mask=mask)
        module(random_input(D), context(2, 5))[1]["width_fraction"].mean().backward()
        assert all(p.grad.any() for p in (*module.score.parameters(), module.bias.weight))

    @pytest.mark.parametrize("mask", ["ste", "soft"])
    def test_a_layer_norm_mean_starts_by_moving_its_norm_but_not_its_gain(self, mask):
        module = initial(score="ln_mean", mask=mask).double()
        module(random_input(D), context(2, 5))[0].square().sum().backward()
        score = module.score
        assert score.scale.weight.grad.any()
        assert score.shift.weight.grad.any()
        assert score.log_gain.weight.grad.abs().max() < 1e-12 * score.shift.weight.grad.abs().max()

    def test_a_linear_score_starts_by_moving_its_direction_and_its_bias(self):
        module = initial().double()
        module(random_input(D), context(2, 5))[0].square().sum().backward()
        assert module.score.v.weight.grad.any()
        assert module.bias.weight.grad.any()

    @pytest.mark.parametrize("mask", ["ste", "soft"])
    def test_equal_the_formulas(self, mask):
        """With a = silu(gate) up, u = a (w_down^T delta) and a sigmoid s: d/d width = sum_i u_i s_i (1 - s_i) / T."""
        floor, start = 0.2, 1.8
        module = layer(
            "linear",
            {"kind": mask, "temperature": start, "learn_temperature": True},
            placement="none",
            min_fraction=floor,
        )
        x = random_input(D).requires_grad_()
        delta = torch.randn(2, 5, D_OUT, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        (module(x, context(2, 5))[0] * delta).sum().backward()

        with torch.no_grad():
            gain = module.score.log_gain.weight.exp()
            temperature = start * module.mask.temperature.theta.weight.exp()
            direction = module.score.v.weight[0]
            level = torch.sigmoid(gain * (x @ direction) + module.bias.weight)
            width = D_FF * (floor + (1 - floor) * level)
            distance = width[..., None] - torch.arange(D_FF) - 0.5
            soft = torch.sigmoid(distance / temperature)
            used = soft if mask == "soft" else (distance > 0).double()
            gate, up = x @ module.w_gate.weight.T, x @ module.w_up.weight.T
            sigma = torch.sigmoid(gate)
            hidden, of_masked = gate * sigma * up, delta @ module.w_down.weight
            of_mask = hidden * of_masked
            of_width = (of_mask * soft * (1 - soft)).sum(-1) / temperature
            of_biased = of_width * D_FF * (1 - floor) * level * (1 - level)
            of_score = of_biased * gain
            of_hidden = used * of_masked
            of_gate, of_up = of_hidden * up * sigma * (1 + gate * (1 - sigma)), of_hidden * gate * sigma
            expected = {
                module.bias.weight: of_biased.sum()[None],
                module.score.v.weight: (of_score[..., None] * x).sum((0, 1))[None],
                module.score.log_gain.weight: (of_score * (x @ direction)).sum()[None],
                module.mask.temperature.theta.weight: -(of_mask * distance / temperature * soft * (1 - soft)).sum()[
                    None
                ],
                module.w_gate.weight: of_gate.flatten(0, 1).T @ x.flatten(0, 1),
                module.w_up.weight: of_up.flatten(0, 1).T @ x.flatten(0, 1),
                module.w_down.weight: delta.flatten(0, 1).T @ (hidden * used).flatten(0, 1),
                x: of_gate @ module.w_gate.weight + of_up @ module.w_up.weight + of_score[..., None] * direction,
            }
        assert len(expected) == 1 + len(list(module.parameters()))
        for tensor, truth in expected.items():
            torch.testing.assert_close(tensor.grad, truth, rtol=1e-11, atol=1e-12)

    @pytest.mark.parametrize("detach", [False, True])
    def test_a_detached_score_leaves_the_gradient_of_the_features_as_if_the_width_were_given(self, detach):
        score = {"kind": "linear", "detach": detach}
        x, gradients = random_input(D), []
        for direction in (1.0, 0.0):
            module = layer(score, mask="ste", placement="none")
            width = module(x, context(2, 5))[1]["width_fraction"].detach()
            given = x.clone().requires_grad_()
            if direction == 0:  # the same widths, from a score without gradient
                module.score.source = lambda *_: x
            update, choices = module(given, context(2, 5))
            assert torch.equal(choices["width_fraction"], width)
            gradients.append(torch.autograd.grad(update.square().sum(), given)[0])
        assert torch.equal(*gradients) == detach


class TestExecution:
    @pytest.mark.parametrize("mask", ["hard", "nested", "linear_ramp", "ste"])
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("score", ["linear", "const"])
    def test_sliced_equals_masked(self, mask, training, score):
        found = {}
        for execution in ("masked", "sliced", "auto"):
            module = layer(score, mask, d_ff=200, execution=execution).train(training)
            x = random_input(D).requires_grad_()
            torch.manual_seed(0)
            update, choices = module(x, context(2, 5))
            (update.square().sum() + choices["width_fraction"].square().sum()).backward()
            found[execution] = [update, x.grad, *(p.grad for p in module.parameters())]
        for execution in ("sliced", "auto"):
            for ours, truth in zip(found[execution], found["masked"], strict=True):
                torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-11)

    def test_a_straight_through_mask_trains_on_the_units_that_its_derivative_reaches(self):
        mask = {"kind": "ste", "temperature": 1.3}
        results = []
        for execution in ("masked", "auto"):
            module = layer(mask=mask, d_ff=400, min_fraction=0.1, start=0.3, execution=execution)
            x = random_input(D).requires_grad_()
            update, choices = module(x, context(2, 5))
            update.square().sum().backward()
            results.append([update, x.grad, *(p.grad for p in module.parameters())])
        for ours, truth in zip(*results, strict=True):
            torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-11)
        width = 400 * choices["width_fraction"].detach().flatten()
        reached = [round(each + 1.3 * math.log(2**53)) for each in width.tolist()]
        expected = sum(next(edge for edge in bucket_edges(400) if edge >= min(n, 400)) for n in reached)
        assert module.bucketed_units(width, torch.ones(())) == expected < 400 * len(width)

    @pytest.mark.parametrize(("dtype", "is_sliced"), [(torch.bfloat16, True), (torch.float32, False)])
    def test_slicing_pays_in_training_where_the_products_are_coarse(self, dtype, is_sliced):
        """The usual temperature is d_ff / 32, of which bf16 sees 5.5 to either side and fp32 16.6."""
        found = {}
        for execution in ("masked", "auto"):
            module = layer(d_ff=512, dtype=torch.float32, min_fraction=0.1, start=0.2, execution=execution)
            x = random_input(D, torch.float32).repeat(1, 200, 1)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                update, choices = module(x, context(2, 1000))
                n_units = module.computed_units(
                    512 * choices["width_fraction"].detach().flatten(), torch.ones(()), is_compiled=False
                )
            update.float().square().mean().backward()
            found[execution] = [p.grad for p in module.parameters()]
        assert (n_units < 512 * 2000) == is_sliced
        for ours, truth in zip(found["auto"], found["masked"], strict=True):
            assert (ours - truth).norm() <= (0.03 if is_sliced else 0) * truth.norm()

    def test_flops_of_units_are_those_of_a_swiglu_of_that_width(self):
        module, x = layer(), random_input(D)
        for n_units in (1, 17, D_FF):
            expected = counted_flops(lambda n=n_units: plain(module, n)(x, context(2, 5)))
            assert 2 * 5 * module.config.flops_of_units(n_units, D, D_OUT) == expected

    @pytest.mark.parametrize("score", SCORES)
    @pytest.mark.parametrize("mask", ["hard", "soft"])
    def test_the_masked_form_costs_all_units_and_the_score(self, score, mask):
        module, x = layer(score, mask, execution="masked"), random_input(D)
        counted = counted_flops(lambda: module(x, context(2, 5)))
        assert counted == 2 * 5 * module.config.cost(D, D_OUT).flops
        of_score = {"linear": 2 * D, "mlp": 2 * 16 * (D + 1)}.get(score, 0)
        assert counted == 2 * 5 * (module.config.flops_of_units(D_FF, D, D_OUT) + of_score)

    @pytest.mark.parametrize(
        ("mask", "training", "passed"),
        [
            *((mask, True, context(2, 5)) for mask in ("ste", "anneal", "linear_ramp", "nested")),
            ("ste", False, context(2, 5)),
            ("soft", False, forced(0.37)),
        ],
    )
    def test_traces_as_one_graph(self, mask, training, passed):
        torch._dynamo.reset()
        module, x = layer(mask=mask, dtype=torch.float32).train(training), random_input(D, torch.float32)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
        results = []
        for form in (module, compiled):
            torch.manual_seed(0)
            module.zero_grad()
            update, choices = form(x, passed)
            (update.square().sum() + choices["width_fraction"].sum()).backward()
            results.append([update, *(p.grad for p in module.parameters() if p.grad is not None)])
        for ours, truth in zip(*results, strict=True):
            torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-4)


FIRST, ONCE, TWICE = 150, 211, 390
"""Sizes of a layer before a growth, after it, and after another; bounds of slices lie between them."""
LEARNED = [{"kind": kind, "learn_temperature": True} for kind in ("ste", "soft", "linear_ramp")]


def grown(module, d_ff, placement="pre"):
    """The layer after a growth: in w_down new columns are 0, elsewhere new entries are random."""
    sizes = (*module.config.sizes, d_ff)
    config = parse(DynamicConfig, {**to_data(module.config), "grown_from": sizes[:-1], "d_ff": d_ff})
    found = config.build(D, D_OUT, norm_site(placement, D, D_OUT)).double().train(module.training)
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
    weights = torch.randn(update.shape, generator=torch.Generator().manual_seed(6), dtype=update.dtype)
    loss = (update * weights).sum() + choices["width_fraction"].square().sum()
    gradients = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True)
    names = ["x", *(name for name, _ in module.named_parameters())]
    return {"update": update, **choices, **dict(zip(names, gradients, strict=True))}


class TestGrown:
    """Every token goes on with the units that it used before."""

    @pytest.mark.parametrize(
        ("mask", "training", "execution"),
        [
            (mask, training, execution)
            for (training, mask), execution in zip(
                product([True, False], [*MASKS, "none", *LEARNED]), cycle(["sliced", "masked", "auto"])
            )
        ],
    )
    def test_update_widths_and_gradients_of_what_was_there_stay(self, mask, training, execution):
        module = layer("linear", mask, d_ff=FIRST, min_fraction=0.1, start=0.5, execution=execution).train(training)
        if mask in LEARNED:
            torch.nn.init.constant_(module.mask.temperature.theta.weight, 9.0)  # stopped by the bound of the first size
        once = grown(module, ONCE)
        twice = grown(once, TWICE)
        x = torch.randn(4, 9, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)  # enough for stripes
        for passed in (context(4, 9), *(forced(fraction, 4, 9) for fraction in (0.0, 0.3, 41 / FIRST, 1.0))):
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

    @pytest.mark.parametrize("mask", MASKS)
    def test_old_units_keep_their_masks_to_the_bit_in_fp32(self, mask):
        module = layer(mask=mask, d_ff=FIRST, execution="masked")
        found, masks = grown(module, ONCE), []
        for each in (module, found):
            width = torch.linspace(0, FIRST, 601)
            masks.append(each.mask.edge(torch.tensor(0.3), torch.float64).mask(width[:, None], each._centres(width)))
        assert torch.equal(masks[1][:, places(found.config.sizes)], masks[0])

    @pytest.mark.parametrize("mask", [*MASKS, *LEARNED])
    def test_new_units_are_used_and_learn(self, mask):
        found = grown(layer(mask=mask, d_ff=FIRST, min_fraction=0.1, start=0.5), TWICE)
        is_new = torch.tensor(old_index(found.config.sizes)) < 0
        x = random_input(D)
        optimizer = torch.optim.SGD(found.parameters(), lr=1e-3)
        for name in ("w_down", "w_gate", "w_up"):  # what reads the new units moves first, since it is 0
            optimizer.zero_grad()
            torch.manual_seed(0)
            found(x, context(2, 5))[0].square().sum().backward()
            gradient = at_units(f"{name}.weight", getattr(found, name).weight.grad)[is_new].abs().sum(dim=1)
            assert 0.3 * TWICE - 0.3 * FIRST < (gradient > 0).sum() <= is_new.sum()
            optimizer.step()

    def test_a_width_computed_from_the_new_size_would_change_the_old_units(self):
        module, x = layer(d_ff=FIRST), random_input(D)
        found = grown(module, ONCE)
        forgotten = parse(DynamicConfig, {**to_data(found.config), "grown_from": []})
        other = forgotten.build(D, D_OUT, norm_site("pre", D, D_OUT)).double()
        other.load_state_dict(found.state_dict())
        truth = module(x, context(2, 5))[0]
        assert (found(x, context(2, 5))[0] - truth).norm() < 1e-12 * truth.norm()
        assert (other(x, context(2, 5))[0] - truth).norm() > 0.05 * truth.norm()

    @pytest.mark.parametrize("mask", [*MASKS, "none"])
    @pytest.mark.parametrize(
        ("training", "execution", "batch"),
        [(True, "masked", 40), (True, "sliced", 40), (True, "auto", 1), (False, "sliced", 1), (False, "auto", 40)],
    )  # few tokens share the units of the widest
    def test_counts_the_units_that_it_computes(self, mask, training, execution, batch):
        module = layer("rms_mean", mask, d_ff=FIRST, min_fraction=0.1, start=0.2, execution=execution)
        found = grown(grown(module, ONCE), TWICE).train(training)
        x, passed = random_input(D, batch=batch), context(batch, 5)
        widths = []
        update = found._update
        found._update = lambda x, width, edge: (widths.append(width), update(x, width, edge))[1]
        counted = counted_flops(lambda: found(x, passed))
        width = widths[0].flatten()
        of_unit = found.config.flops_of_units(1, D, D_OUT)
        assert counted == of_unit * found.computed_units(width, passed.progress, is_compiled=False)
        is_step = mask in ("hard", "nested") or (mask in ("ste", "anneal") and not training)
        if not is_step or execution == "masked":
            assert counted == of_unit * TWICE * len(width)
        elif batch > 1:
            assert counted < of_unit * TWICE * len(width)

    def test_used_units_are_those_whose_rank_lies_below_the_fraction(self):
        found = grown(grown(layer(d_ff=FIRST), ONCE), TWICE)
        fraction = torch.linspace(0, 1, 401, dtype=torch.float64)
        ranks = torch.tensor([float(rank) for rank, _ in exact_units((FIRST, ONCE, TWICE))], dtype=torch.float64)
        centres = torch.tensor([rank * FIRST for rank in ranks.tolist()], dtype=torch.float64)
        near = ((FIRST * fraction[:, None] - centres).abs() < 1e-9).any(dim=1)  # where rounding may decide
        used = found.used_units(FIRST * fraction)
        assert torch.equal(used[~near], (ranks < fraction[:, None]).sum(dim=1)[~near])
        assert near.sum() < 100
        assert int(found.used_units(torch.tensor(float(FIRST)))) == TWICE
        own = found._centres(fraction)  # a width of exactly a centre does not reach it
        assert torch.equal(found.used_units(own), (own < own[:, None]).sum(dim=1))

    @pytest.mark.parametrize("kind", ["hard", "linear_ramp"])
    def test_buckets_hold_the_units_that_a_mask_reaches(self, kind):
        found, progress = grown(grown(layer(mask=kind, d_ff=FIRST), ONCE), TWICE), torch.ones(())
        width = torch.linspace(0, FIRST, 77, dtype=torch.float64)
        centres = torch.tensor(
            [float(FIRST * rank) for rank, _ in exact_units((FIRST, ONCE, TWICE))], dtype=torch.float64
        )
        reached = (found.mask.edge(progress, torch.float64).mask(width[:, None], centres) > 0).sum(dim=1)
        expected = sum(min(edge for edge in (0, *bucket_edges(TWICE)) if edge >= n) for n in reached.tolist())
        assert found.bucketed_units(width, progress) == expected

    @pytest.mark.parametrize("mask", ["ste", "linear_ramp"])
    def test_traces_as_one_graph(self, mask):
        torch._dynamo.reset()
        found = grown(layer(mask=mask, d_ff=FIRST), ONCE)
        compiled = torch.compile(found, backend="aot_eager", fullgraph=True, dynamic=False)
        ours, truth = (outcome(form, context(2, 5), random_input(D)) for form in (compiled, found))
        torch.testing.assert_close(list(ours.values()), list(truth.values()), rtol=1e-10, atol=1e-10)

    def test_cost_is_that_of_the_units_it_has(self):
        found = grown(layer(d_ff=FIRST), ONCE)
        assert found.config.hidden_widths == (ONCE,)
        params = sum(p.numel() for name, p in found.named_parameters() if name != "norm.weight")
        assert found.config.cost(D, D_OUT).params == params

    def test_the_temperature_is_measured_in_the_units_of_the_first_size(self):
        mask = {"kind": "soft", "temperature": 5.0, "learn_temperature": True}
        assert parse(DynamicConfig, {"d_ff": 512, "mask": mask}).full_width == 512
        grown_config = parse(DynamicConfig, {"d_ff": 512, "grown_from": [96, 100], "mask": mask})
        assert grown_config.full_width == 96
        assert parse(DynamicConfig, to_data(grown_config)) == grown_config
        with pytest.raises(UserError, match=r"mask\.temperature: got 5; .* between 1 and 4"):
            parse(DynamicConfig, {"d_ff": 512, "grown_from": [64, 100], "mask": mask})

    @pytest.mark.parametrize("sizes", [[64], [80], [30, 30], [30, 20], [0]])
    def test_sizes_that_do_not_increase_are_refused(self, sizes):
        with pytest.raises(UserError, match=r"grown_from.*: got "):
            parse(DynamicConfig, {"d_ff": 64, "grown_from": sizes, "mask": {"kind": "hard"}})


def model(score="linear", mask="ste", **more):
    """A small decoder of odd widths in which tokens choose different widths."""
    return decoder(config("zigzag", ffn=options(score, mask, **more)))


def fractions(found):
    """(n_layers, B, T) of the choices of all layers."""
    return torch.stack([chosen["width_fraction"] for chosen in found])


def chosen_widths(of_model, tokens, cache=None):
    """The logits, and (n_layers, B, T) what the layers chose on the way."""
    kept = []
    hooks = [layer.ffn.register_forward_hook(lambda *passed: kept.append(passed[2][1])) for layer in of_model.layers]
    logits = of_model(tokens, cache)
    for hook in hooks:
        hook.remove()
    return logits, fractions(kept)


@pytest.mark.usefixtures("float64")
class TestModel:
    @torch.no_grad()
    @pytest.mark.parametrize("score", [score for score in SCORES if score != "random"])
    @pytest.mark.parametrize("mask", ["ste", "soft"])
    def test_decoding_with_a_cache_chooses_the_widths_of_a_full_pass(self, score, mask):
        of_model, tokens = model(score, mask).eval(), random_tokens(2, 9)
        logits, widths = chosen_widths(of_model, tokens)
        cache = of_model.new_cache(2, 9)
        steps = [chosen_widths(of_model, tokens[:, i : i + 1], cache) for i in range(9)]
        torch.testing.assert_close(torch.cat([step[0] for step in steps], dim=1), logits, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(torch.cat([step[1] for step in steps], dim=2), widths, rtol=1e-10, atol=1e-12)

    @torch.no_grad()
    @pytest.mark.parametrize("score", [score for score in SCORES if score != "random"])
    def test_a_width_does_not_depend_on_later_tokens(self, score):
        of_model, tokens = model(score), random_tokens(2, 9)
        other = torch.cat((tokens[:, :6], random_tokens(2, 3, seed=7)), dim=1)
        before, after = (chosen_widths(of_model, each)[1] for each in (tokens, other))
        torch.testing.assert_close(before[..., :6], after[..., :6], rtol=1e-12, atol=1e-13)
        if score not in ("const", "ln_mean"):
            assert (before[..., 6:] - after[..., 6:]).abs().max() > 1e-4

    def test_generation_equals_decoding_without_a_cache(self):
        of_model, prompts = model().eval(), [[3, 1, 4, 1, 5], [9]]
        found = generate(of_model, prompts, 6, SamplingConfig(temperature=0))
        for prompt, continuation in zip(prompts, found, strict=True):
            tokens = list(prompt)
            for _ in range(6):
                with torch.no_grad():
                    tokens.append(int(of_model(torch.tensor([tokens]))[0, -1].argmax()))
            assert tokens[len(prompt) :] == continuation

    def test_the_loss_carries_what_every_layer_chose_and_can_force_it(self):
        of_model, tokens, targets = model(min_fraction=0.1), random_tokens(2, 7), random_tokens(2, 7, seed=1)
        free = fractions(of_model.loss(tokens, targets).choices)
        assert free.shape == (5, 2, 7)
        assert free.requires_grad
        narrow, full = (of_model.loss(tokens, targets, width_fraction=fraction) for fraction in (0.25, 1.0))
        assert (fractions(narrow.choices) == 0.25).all()
        assert (narrow.losses - full.losses).abs().max() > 1e-3
        plain_model = model(mask="none")
        plain_model.load_state_dict(
            {name: weight for name, weight in of_model.state_dict().items() if name in plain_model.state_dict()}
        )
        torch.testing.assert_close(full.losses, plain_model.loss(tokens, targets).losses)


class TestConfig:
    def test_the_resolved_layer_says_the_temperature_and_reads_back(self):
        resolved = config("zigzag", ffn={"kind": "dynamic", "ratio": 3.0})
        for each in resolved.layers:
            assert each.ffn.mask.temperature == max(1.0, each.ffn.d_ff / 32)
        assert parse(ModelConfig, parse_yaml(to_yaml(resolved), "dump")) == resolved

    def test_one_layer_without_its_temperature_is_refused(self):
        with pytest.raises(UserError, match=r"layers\.1.*mask\.temperature: is required"):
            config("x", layers={1: {"ffn": {"kind": "dynamic", "d_ff": 64}}})
        changed = {"kind": "dynamic", "d_ff": 64, "mask": {"kind": "soft", "temperature": 2.0}}
        assert config("x", layers={1: {"ffn": changed}}).layers[1].ffn.hidden_widths == (64,)

    @pytest.mark.parametrize(
        ("ffn", "message"),
        [
            ({"min_fraction": 1.1}, r"model: ffn\.min_fraction: got 1\.1"),
            ({"start": 1.0}, r"model: ffn\.start: got 1\.0"),
            ({"score": {"kind": "lineal"}}, r"model: ffn\.score\.kind: got 'lineal'; did you mean 'linear'"),
            ({"score": {"kind": "token"}}, r"model: ffn\.score\.vocab_size: is required but missing"),
            ({"score": {"kind": "const", "learn_gain": True}}, r"model: ffn\.score\.learn_gain: unknown key"),
            ({"mask": {"kind": "hard", "temperature": 1.0}}, r"model: ffn\.mask\.temperature: unknown key"),
            ({"d_ff": 40, "ratio": 2.0}, r"d_ff: conflicts with ratio"),
        ],
    )
    def test_mistakes_are_named(self, ffn, message):
        with pytest.raises(UserError, match=message):
            template(ffn={"kind": "dynamic", **ffn})

    def test_a_learned_temperature_out_of_bounds_names_its_layer(self):
        mask = {"kind": "soft", "temperature": 30.0, "learn_temperature": True}
        with pytest.raises(UserError, match=r"model\.layers\.0\.ffn\.mask\.temperature: got 30"):
            config("x", ffn={"kind": "dynamic", "mask": mask})

    def test_the_parts_of_a_layer_can_be_given_alone(self):
        assert DynamicConfig(d_ff=64, mask={"kind": "hard"}).hidden_widths == (64,)


class Toy:
    """Half of the tokens need nothing and say so in one feature; the other half need many units."""

    D, D_FF, BUDGET, N_STEPS = 12, 24, 0.5, 1200

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.teacher = torch.randn(self.D, self.D, generator=self.generator) / math.sqrt(self.D)
        self.seed = seed

    def draw(self, n):
        x = torch.randn(1, n, self.D, generator=self.generator)
        needs = torch.rand(1, n, generator=self.generator) < 0.5
        x[..., 0] = 2.0 * needs - 1
        return x, needs, 3 * torch.tanh(x @ self.teacher) * needs[..., None]

    def train(self, module, parameters):
        optimizer = torch.optim.AdamW(parameters, lr=5e-3, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.N_STEPS)
        price = torch.zeros(())
        for _ in range(self.N_STEPS):
            x, _, y = self.draw(192)
            update, choices = module(x, context(1, 192))
            mean = choices["width_fraction"].mean()
            optimizer.zero_grad()
            ((update - y).square().mean() + price * (mean - self.BUDGET)).backward()
            optimizer.step()
            schedule.step()
            price = (price + 0.02 * (mean.detach() - self.BUDGET)).clamp(min=0)

    def result(self, score):
        """Area under the curve of the widths as a test for the tokens in need, error, mean width."""
        is_learned = score == "linear"
        # The controls' widths stay where they start, at a mean of exactly the budget.
        start = 0.9 if is_learned else self.BUDGET
        sizes = {"d_model": self.D, "d_out": self.D, "d_ff": self.D_FF, "placement": "none"}
        module = initial(**sizes, seed=self.seed, score=score, min_fraction=0.0, start=start)
        parts = dict(module.named_parameters())
        torch.manual_seed(self.seed)
        self.train(module, [p for name, p in parts.items() if is_learned or not name.startswith(("score", "bias"))])
        with torch.no_grad():
            x, needs, y = self.draw(4096)
            update, choices = module.eval()(x, context(1, 4096))
        fraction = choices["width_fraction"]
        pairs = fraction[needs][:, None] - fraction[~needs]
        auc = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean().item()
        return auc, (update - y).square().mean().item(), fraction.mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_adaptation_helps_where_it_must(seed):
    """At half of the units on average, a learned score gives them to the tokens in need, and errs less than equal and
    than random widths.
    """
    found = {score: Toy(seed).result(score) for score in ("linear", "const", "random")}
    for score, (auc, error, mean) in found.items():
        print(f"{score}: AUC {auc:.3f}, mean squared error {error:.4f}, mean width {mean:.3f}")
        assert mean == pytest.approx(Toy.BUDGET, abs=0.02)
    assert found["linear"][0] > 0.95
    assert found["linear"][1] < 0.5 * min(found["const"][1], found["random"][1])


def test_a_token_score_of_another_vocabulary_is_refused():
    ffn = {"kind": "dynamic", "score": {"kind": "token", "vocab_size": 60}}
    with pytest.raises(UserError, match=r"model.layers.0.ffn: its vocab_size is 60; must be the model's, 61"):
        config("uniform", ffn=ffn)
    resolved = to_data(config("uniform", ffn={"kind": "dynamic", "score": {"kind": "token", "vocab_size": 61}}))
    with pytest.raises(UserError, match="its vocab_size is 61; must be the model's, 62"):
        parse(ModelConfig, {**resolved, "vocab_size": 62})
