"""A grown model is baked into one whose constants follow from its sizes, which computes and trains the same."""

import math

import expansions
import pytest
from boxes import refusal
from growth_cases import applied, difference, grown, step
from model_cases import KINDS, OVER_WIDTH, VARIANTS, WIDTHS, config, decoder, random_tokens, variant
from thinned import in_turn

from widthwise.config_io import parse, to_data
from widthwise.growth.bake import bake_plan
from widthwise.growth.plan import grown_factors, grown_states
from widthwise.model.axes import Norm
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig
from widthwise.recipe.optimizers import set_lr
from widthwise.training.growth_step import set_optimizer_state, state_by_name
from widthwise.yaml_io import merge

pytestmark = pytest.mark.usefixtures("float64")


def wider(n):
    return lambda c: expansions.widen_stream(c, n)


def longer_keys(head_dim, layers=(0, 2)):
    return lambda c: expansions.widen_keys(c, layers, head_dim)


def norms(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, Norm)}


def assert_same_function(a, b):
    tokens = random_tokens(2, 11)
    assert difference(b(tokens), a(tokens)) <= 1e-12
    losses = [model.loss(tokens[:, :-1], tokens[:, 1:]).objective.item() for model in (a, b)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


GIVEN_CONSTANTS = ("biases", "qk_norm_with_divisors", "values_of_other_sizes_unrotated")
"""Recipes that give single layers other divisors or head sizes than follow from their rules."""


def test_a_model_that_never_grew_stays_bit_by_bit():
    """Slim ends too, whose norms divide by another number than they read. Formats with one eps have one scale too."""
    for shape, name in KINDS:
        if name not in GIVEN_CONSTANTS:
            before = variant(shape, name)
            plan = bake_plan(before, one_eps=False)
            assert plan.new == before, name
            assert all(tensor.scale == 1 for tensor in plan.tensors.values()), name
    for name in ("gqa", "gpt2", "reordered", "moe"):
        before = variant("uniform", name)
        assert bake_plan(before, one_eps=True).new == before, name


WIDENED = [
    ("x", "gqa"), ("x", "gemma3"), ("uniform", "layer_norm_moe"), ("x", "moe_reordered"), ("x", "slots_further_heads"),
    ("uniform", "2_of_6_in_turn"), ("uniform", "gpt2"),
]  # fmt: skip
"""Every place of a norm: before and after sublayers, on queries, in slots and groups, of further heads."""


@pytest.mark.parametrize(("shape", "name"), WIDENED)
def test_a_widened_model_computes_the_same_with_norms_that_divide_by_their_width(shape, name):
    model = grown(decoder(variant(shape, name)), wider(20))
    plan = bake_plan(model.config)
    baked = applied(plan, model)
    assert_same_function(baked, model)
    assert plan.new != model.config
    changes = {**VARIANTS, **OVER_WIDTH}[name]
    widths = [width + 20 for width in WIDTHS[shape]]
    if "slot_width" in changes.get("residual", {}):  # 4 before
        changes = merge(changes, {"residual": {"slot_width": 8}})
        widths = [2 * width for width in WIDTHS[shape]]
    usual = norms(blueprint(config(widths, d_model=40, **changes)))
    for path, norm in norms(baked).items():
        covers_heads = "attention.q_" in path or "attention.k_" in path
        assert norm.norm_dim == (len(norm.weight) if covers_heads else usual[path].norm_dim), path


def with_divisor(before, norm_dim):
    """The same sizes with norms that divide by another number, as they do in a model grown from that width."""
    data = to_data(before)
    for layer in data["layers"]:
        for norm in ("attention_norm", "ffn_norm"):
            layer[norm]["norm_dim"] = norm_dim
    data["final_norm"]["norm_dim"] = norm_dim
    return parse(ModelConfig, data)


ONE_EPS = {
    **{
        name: VARIANTS[name]
        for name in (
            *("gqa", "moe_reordered", "gpt2", "qk_norm", "qk_norm_all_heads", "released_recipe", "gemma3"),
            "layer_norms_before_and_after",
        )
    },
    "tied_reordered": {**VARIANTS["reordered"], "tie_embeddings": True},
    "gpt2_untied": {**VARIANTS["gpt2"], "tie_embeddings": False},
    "layer_norm_reordered": {**VARIANTS["layer_norm_reordered"], "tie_embeddings": True},
    "biases_reordered": {
        **VARIANTS["reordered"],
        "attention": {"bias": True, "out_bias": True, "qk_norm": {"over": "all_heads"}},
        "ffn": {"kind": "mlp", "bias": True},
    },
}


@pytest.mark.parametrize("name", ONE_EPS)
def test_with_one_eps_the_stream_is_scaled_and_no_eps_changes(name):
    model = decoder(with_divisor(config("uniform", **ONE_EPS[name]), 7))
    plan = bake_plan(model.config, one_eps=True)
    baked = applied(plan, model)
    assert_same_function(baked, model)
    assert {path: norm.eps for path, norm in norms(baked).items()} == {n: m.eps for n, m in norms(model).items()}
    assert all(norm.norm_dim == len(norm.weight) for norm in norms(baked).values())
    assert plan.tensors["embedding.weight"].scale == pytest.approx(math.sqrt(20 / 7))
    usual = {layer.attention.head_dim**-0.5 for layer in plan.new.layers}
    assert {layer.attention.scale for layer in plan.new.layers} == usual


@in_turn(("one_eps", [False, True]), ("name", ["tied", "reordered", "gpt2", "biases", "gemma3"]))
def test_a_model_that_grew_in_all_directions_computes_the_same(name, one_eps):
    before = decoder(variant("uniform", name))
    head_dim = 3 * before.config.layers[0].attention.head_dim
    model = grown(before, wider(6), longer_keys(head_dim), lambda c: expansions.add_heads(c, [1], 4, 4))
    baked = applied(bake_plan(model.config, one_eps), model)
    assert_same_function(baked, model)
    assert baked.config.layers[0].attention.scale == head_dim**-0.5


REFUSED = [
    ("x", {}, "d_model: got widths [8, 16, 20, 24, 28, 36]; one eps needs layers that are all equally wide"),
    ("uniform", {"mtp": {"n_depths": 1}}, "mtp: "),
    ("uniform", VARIANTS["slots"], "residual.kind: got hyper_connections"),
    ("uniform", VARIANTS["hourglass"], "layers.0.ffn.kind: got hourglass"),
    ("uniform", VARIANTS["dynamic"], "layers.0.ffn.kind: got dynamic"),
    ("uniform", {"layers": {2: {"ffn_norm": {"stat_width": 9}}}}, "layers.2.ffn_norm.stat_width: got 9; one eps needs"),
]


def test_one_eps_is_refused_with_the_reason():
    for name, changes, message in REFUSED:
        assert refusal(bake_plan, with_divisor(config(name, **changes), 7), True).startswith(message)


def test_a_base_is_found_for_frequencies_that_it_gives():
    before = decoder(config("uniform", attention={"n_heads": 5}))
    model = grown(before, longer_keys(6, [0]), longer_keys(8, [1]))
    plan = bake_plan(model.config)
    attentions = [layer.attention for layer in plan.new.layers]
    assert model.config.layers[0].attention.rope_frequencies is not None
    assert (attentions[0].rope_base, attentions[0].rope_frequencies) == (10000.0 ** (6 / 4), None)
    assert (attentions[1].rope_base, attentions[1].rope_frequencies) == (10000.0, None)
    assert_same_function(applied(plan, model), model)


def test_what_has_no_standard_form_stays():
    dynamic = {"kind": "dynamic", "d_ff": 11, "mask": {"kind": "hard"}}
    changes = {0: {"attention": {"rope_frequencies": [0.9, 0.01]}}, 1: {"ffn": dynamic}}
    before = decoder(config("x", attention={"n_heads": None, "head_dim": 4}, layers=changes))
    model = grown(before, lambda c: expansions.widen_layers(c, {2: 16}), lambda c: expansions.widen_ffn(c, [1], 17))
    plan = bake_plan(model.config)
    assert_same_function(applied(plan, model), model)
    layers = plan.new.layers
    assert layers[0].attention.rope_frequencies == (0.9, 0.01)
    assert layers[1].ffn.grown_from == (11,)
    assert (layers[2].attention_norm.stat_width, layers[2].attention_norm.norm_dim) == (8, 8)


ADAMW = AdamWConfig(lr=0.004, eps=1e-3, weight_decay=0.3, decays_gains=True)
"""eps and decay large enough to matter."""


@pytest.mark.parametrize(
    ("optimizer", "head_dim", "more", "one_eps"),
    [
        (ADAMW, 6, 10, False),
        # Muon makes matrices orthogonal in bf16, where only a factor of 2, 4, ... leaves the rounding as it was.
        (MuonConfig(lr=0.02, weight_decay=0.3, adamw=ADAMW), 16, 60, True),
    ],
)
def test_a_baked_model_trains_as_it_would_have(optimizer, head_dim, more, one_eps):
    """Losses of 8 steps of a grown model, and of what it is baked to after three others."""

    def built(optimizer, model):
        made = optimizer.build(model)
        set_lr(made, optimizer.lr)
        return made

    def trained(model, optimizer, n_steps):
        return [step(model, optimizer, random_tokens(2, 9, seed=i)) for i in range(n_steps)]

    before = decoder(config("uniform", attention={"n_heads": 5}, init={"std": 0.1}))
    model = grown(before, longer_keys(head_dim), wider(more))
    running = built(optimizer, model)
    trained(model, running, 3)
    plan = bake_plan(model.config, one_eps)
    baked = applied(plan, model)
    continued = built(optimizer.with_scaled(grown_factors(plan, {})), baked)
    set_optimizer_state(continued, baked, grown_states(plan, state_by_name(model, running)))
    assert trained(baked, continued, 8) == pytest.approx(trained(model, running, 8), rel=1e-12)
