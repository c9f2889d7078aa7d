"""Which parameters Muon and AdamW get, at which rates and decays, and that their steps are those of the formulas."""

import math

import pytest
import torch
from boxes import refusal
from comparing import random
from tiny_runs import tiny_recipe

from widthwise.config_io import parse
from widthwise.model.decoder import build
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig
from widthwise.recipe.optimizers import set_lr
from widthwise.recipe.recipe import Recipe
from widthwise.yaml_io import parse_yaml, to_yaml


def groups_by_parameter(model, optimizer):
    owner = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    assert len(owner) == sum(len(group["params"]) for group in optimizer.param_groups)
    return {name: owner[id(parameter)] for name, parameter in model.named_parameters()}


SLOTS = "model.residual={kind: hyper_connections, slot_width: 8, n_slots: 4, embedding: expand}"


def built(*overrides):
    return build(tiny_recipe("model.init.width_multiplier=8", *overrides).explicit_model, seed=0)


PLAIN_MATRICES = {"w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down"}


def field(name):
    """The last word before `.weight`."""
    return name.split(".")[-2]


MUON = MuonConfig(lr=0.02, weight_decay=0.2, adamw=AdamWConfig(lr=0.004, weight_decay=0.3))


@pytest.mark.parametrize("decaying", [{"embedding", "scales"}, {"gains", "scales"}, {"embedding", "gains"}, set()])
@pytest.mark.parametrize("is_muon", [False, True])
def test_matrices_decay_and_the_embedding_gains_and_scales_if_the_recipe_says_so(is_muon, decaying):
    model = built(SLOTS)
    options = {f"decays_{part}": part in decaying for part in ("embedding", "gains", "scales")}
    adamw = AdamWConfig(lr=0.01, weight_decay=0.3, **options)
    config = MuonConfig(lr=0.02, weight_decay=0.2, adamw=adamw) if is_muon else adamw
    hidden = PLAIN_MATRICES | {"w_expand", "w_reduce"} if is_muon else set()
    parameters = dict(model.named_parameters())
    for name, group in groups_by_parameter(model, config.build(model)).items():
        part = {"embedding": "embedding", "scale": "scales"}.get(field(name))
        part = "gains" if field(name).endswith("norm") else part
        decays = parameters[name].dim() == 2 if part is None else part in decaying
        assert group["weight_decay"] == (0.2 if field(name) in hidden else 0.3 * decays), name


def test_rates_follow_the_schedule_and_those_of_adamw_are_over_the_width_multiplier_inside_the_model():
    model = built(SLOTS)
    for config, inside in ((MUON.adamw, 0.004 / 8), (MUON, 0.02)):
        optimizer = config.build(model)
        set_lr(optimizer, config.lr / 4)
        rates = {name: group["lr"] for name, group in groups_by_parameter(model, optimizer).items()}
        assert rates["layers.1.ffn.w_down.weight"] == rates["exit.reduce.w_reduce.weight"] == pytest.approx(inside / 4)
        for name in ("embedding.weight", "head.weight", "exit.norm.weight"):
            assert rates[name] == pytest.approx(0.004 / 4)
        assert rates["layers.0.ffn_residual.dynamic.weight"] == pytest.approx(0.004 / 4 / 8)


def test_parts_learn_at_a_rate_of_their_own():
    model = built(SLOTS)
    factors = {"w_reduce": 0.25, "w_expand": 3.0, "layers.1.ffn": 2.0, "embedding": 0.5}
    adamw = AdamWConfig(lr=0.004, weight_decay=0.3, lr_factors=factors)
    usual = AdamWConfig(lr=0.004, weight_decay=0.3)
    for of, plain in ((adamw, usual), (MUON.model_copy(update={"adamw": adamw}), MUON)):
        ours, theirs = (groups_by_parameter(model, each.build(model)) for each in (of, plain))
        for name, group in ours.items():
            expected = next((factor for part, factor in factors.items() if f".{part}." in f".{name}."), 1.0)
            assert group["lr_factor"] == pytest.approx(expected * theirs[name]["lr_factor"], rel=1e-12), name
            assert group["weight_decay"] == theirs[name]["weight_decay"], name
        assert {name for name in ours if ours[name]["lr_factor"] != theirs[name]["lr_factor"]} == {
            "embedding.weight",
            "entry.w_expand.weight",
            "exit.reduce.w_reduce.weight",
            *(name for name in ours if name.startswith("layers.1.ffn.")),
        }


def test_the_rate_or_scale_of_what_is_no_part_and_two_rates_of_one_are_refused():
    model = built()
    for options, message in (
        ({"lr_factors": {"w_reduce": 0.1}}, "lr_factors: got 'w_reduce'; must be part of the model"),
        ({"lr_factors": {"layers.0": 0.1, "w_q": 3.0}}, "lr_factors: got 'w_q'; layers.0.attention.w_q.weight is in"),
        ({"scaled": {"layers.9.attention.w_k.weight": 2.0}}, "scaled: got 'layers.9.attention.w_k.weight'; must be "),
    ):
        adamw = AdamWConfig(lr=0.01, **options)
        assert refusal(adamw.build, model).startswith(f"optimizer.{message}")
        assert refusal(MuonConfig(lr=0.02, adamw=adamw).build, model).startswith(f"optimizer.adamw.{message}")


def orthogonalised(matrix):
    """What five iterations of Newton and Schulz make of a matrix, by its singular values."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ s.diag() @ v


@pytest.mark.parametrize(("nesterov", "adjust_lr"), [(False, "original"), (True, "match_rms_adamw")])
def test_steps_are_muons_and_adamws_by_the_formulas(nesterov, adjust_lr):
    model = build(tiny_recipe("model.ffn={kind: swiglu, d_ff: 37}").explicit_model, seed=0)
    adamw = AdamWConfig(lr=0.004, weight_decay=0.3, betas=(0.6, 0.8), eps=1e-3, decays_gains=True)
    config = MuonConfig(lr=0.02, momentum=0.7, nesterov=nesterov, weight_decay=10.0, adjust_lr=adjust_lr, adamw=adamw)
    optimizer = config.build(model)
    hidden = {name for name, _ in model.named_parameters() if field(name) in PLAIN_MATRICES}
    expected = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    before = dict(expected)
    momenta = {name: torch.zeros_like(value) for name, value in expected.items()}
    squares = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step, fraction in enumerate((1.0, 0.5), start=1):
        set_lr(optimizer, config.lr * fraction)
        for index, (name, parameter) in enumerate(model.named_parameters()):
            parameter.grad = random(*parameter.shape, seed=100 * step + index, dtype=torch.float32)
            grad, momentum = parameter.grad.double(), momenta[name]
            if name in hidden:
                n_out, n_in = grad.shape
                is_original = adjust_lr == "original"
                factor = math.sqrt(max(1, n_out / n_in)) if is_original else 0.2 * math.sqrt(max(n_out, n_in))
                momentum.mul_(0.7).add_(0.3 * grad)
                ahead = 0.3 * grad + 0.7 * momentum if nesterov else momentum
                lr, decay, direction = 0.02 * fraction, 10.0, factor * orthogonalised(ahead)
            else:
                momentum.mul_(0.6).add_(0.4 * grad)
                squares[name].mul_(0.8).add_(0.2 * grad**2)
                root = (squares[name] / (1 - 0.8**step)).sqrt()
                lr, decay, direction = 0.004 * fraction, 0.3, momentum / (1 - 0.6**step) / (root + 1e-3)
            expected[name] = expected[name] * (1 - lr * decay) - lr * direction
        optimizer.step()
    for name, parameter in model.named_parameters():
        if name in hidden:  # torch makes matrices orthogonal in bf16
            error, step = parameter.detach().double() - expected[name], expected[name] - before[name]
            assert error.norm() < 0.05 * step.norm(), name
        else:
            torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)


def test_a_recipe_without_a_kind_means_adamw_and_muon_reads_back_equal():
    assert tiny_recipe("optimizer={lr: 0.03}").optimizer == AdamWConfig(lr=0.03)
    adamw = AdamWConfig(lr=0.01, scaled={"embedding.weight": 2.0})
    options = "kind: muon, lr: 0.02, adjust_lr: match_rms_adamw, adamw: {lr: 0.01, scaled: {embedding.weight: 2}}"
    recipe = tiny_recipe(f"optimizer={{{options}}}")
    assert recipe.optimizer == MuonConfig(lr=0.02, adjust_lr="match_rms_adamw", adamw=adamw)
    assert parse(Recipe, parse_yaml(to_yaml(recipe), "recipe")) == recipe
