import expansions
import pytest
from growth_cases import shaped, small_model

from widthwise.config_io import UserError, parse, to_data
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.growth.target.model import grown_config
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig


def grown(config: ModelConfig, expansion) -> ModelConfig:
    return grown_config(config, *expansion)


def wider_by_recipe(**changes) -> tuple[ModelConfig, ModelConfig]:
    """A model, and the one that the same recipe gives at another width."""
    return small_model(**changes), small_model(**{**changes, "d_model": 20})


def test_sizes_are_those_of_the_recipe_and_constants_those_of_the_model():
    old, wanted = wider_by_recipe()
    assert wanted.final_norm.norm_dim == 20
    new = grown_config(old, wanted, Correspondence((0, 1, 2)))
    assert new.d_model == new.final_norm_width == 20
    assert new.final_norm == old.final_norm
    for before, asked, after in zip(old.layers, wanted.layers, new.layers):
        assert (after.attention_norm, after.ffn_norm) == (before.attention_norm, before.ffn_norm)
        assert after.attention.n_heads == asked.attention.n_heads == 5


def test_the_same_config_is_its_own_growth():
    for config in (small_model(), shaped([20, 8, 16]), small_model(norm={"kind": "layer"})):
        assert grown_config(config, config, Correspondence((0, 1, 2))) == config


def test_growing_in_two_steps_or_one_gives_one_config():
    config = small_model(attention={"qk_norm": {"over": "head"}})
    keys = grown(config, expansions.widen_keys(config, [0], 8))
    both = grown(keys, expansions.widen_stream(keys, 4))
    wanted = expansions.widen_stream(expansions.widen_keys(config, [0], 8)[0], 4)
    assert grown(config, wanted) == both


def test_an_attention_keeps_its_scale_and_the_divisors_of_its_norms():
    config = small_model(attention={"qk_norm": {"over": "head"}})
    attention = grown(config, expansions.widen_keys(config, [0], 12)).layers[0].attention
    assert attention.scale == config.layers[0].attention.scale == 0.5
    assert attention.qk_norm is not None
    # Queries get two turned copies, which multiply the sum of squares by 3, and new keys are 0.
    assert (attention.qk_norm.q_norm_dim, attention.qk_norm.k_norm_dim) == (12, 4)
    again = grown(config, expansions.widen_keys(config, [0], 8))
    twice = grown(again, expansions.widen_keys(again, [0], 16)).layers[0].attention.qk_norm
    assert twice is not None
    assert (twice.q_norm_dim, twice.k_norm_dim) == (16, 4)


def test_new_pairs_continue_the_old_frequencies():
    config = small_model(attention={"rope_base": 10000.0})
    attention = grown(config, expansions.widen_keys(config, [0], 8 - 2)).layers[0].attention
    assert attention.rope_frequencies == pytest.approx((1.0, 0.01, 0.0001), rel=1e-12)
    doubled = grown(config, expansions.widen_keys(config, [0], 8)).layers[0].attention
    assert doubled.rope_frequencies is None
    one_pair = small_model(attention={"head_dim": 2})
    attention = grown(one_pair, expansions.widen_keys(one_pair, [0], 2 + 4)).layers[0].attention
    assert attention.rope is not None
    assert attention.rope.pair_frequencies[0] == 1.0
    assert len(set(attention.rope.pair_frequencies)) == 3


def test_units_remember_what_there_were():
    config = small_model(ffn={"kind": "dynamic", "d_ff": 8, "mask": {"kind": "soft", "temperature": 2.0}})
    once = grown(config, expansions.widen_ffn(config, [0], 11))
    twice = grown(once, expansions.widen_ffn(once, [0, 1], 14))
    ffns = [layer.ffn for layer in twice.layers]
    assert [ffn.grown_from for ffn in ffns if isinstance(ffn, DynamicConfig)] == [(8, 11), (8,), ()]
    assert ffns[0].mask == config.layers[0].ffn.mask


def test_units_that_a_recipe_claims_there_were_are_not_believed():
    config = small_model(ffn={"kind": "dynamic", "d_ff": 8})
    data = to_data(config)
    data["layers"][0]["ffn"] |= {"d_ff": 12, "grown_from": [5], "mask": {"kind": "ste", "temperature": 1.0}}
    ffn = grown_config(config, parse(ModelConfig, data, "model"), Correspondence((0, 1, 2))).layers[0].ffn
    assert isinstance(ffn, DynamicConfig)
    assert ffn.grown_from == (8,)


def test_slots_keep_their_divisors():
    config = small_model(residual={"kind": "hyper_connections", "slot_width": 4, "n_slots": 6, "group_norm": "rms"})
    residual = grown(config, expansions.widen_stream(config, 6)).residual
    assert isinstance(residual, HyperConnectionsConfig)
    assert (residual.slot_width, residual.slot_norm_dim, residual.group_norm_dim) == (6, 4, 12)


def test_narrow_layers_measure_a_part_and_then_the_same_part():
    config = shaped([20, 8, 16])
    once = grown(config, expansions.widen_layers(config, {1: 12}))
    twice = grown(once, expansions.widen_layers(once, {1: 16}))
    wider = grown(twice, expansions.widen_stream(twice, 3))
    assert [model.layers[1].ffn_norm.stat_width for model in (config, once, twice, wider)] == [None, 8, 8, 8]
    assert wider.layers[0].ffn_norm.stat_width is None


def test_a_feed_forward_with_norms_of_its_own_measures_what_they_did():
    """Blocks with norms before them, in a layer whose norms stand behind its sublayers."""
    hourglass = {"kind": "hourglass", "n_blocks": 2, "d_hidden": 3, "norm": "pre"}
    config = shaped([20, 8, 16], ffn=hourglass, norm={"placement": "reordered"})
    layer = grown(config, expansions.widen_layers(config, {1: 12})).layers[1]
    assert (layer.attention_norm.stat_width, layer.ffn_norm.stat_width) == (None, 8)


def test_a_norm_whose_divisor_follows_from_its_place_is_refused():
    """The last layer writes 12 of 16 coordinates; inner blocks write them all, and divide by 4 more."""
    hourglass = {"kind": "hourglass", "n_blocks": 2, "d_hidden": 3}
    config = shaped([20, 8, 16], ffn=hourglass, norm={"placement": "reordered"})
    with pytest.raises(UserError, match=r"layers\.2\.ffn\.blocks\.0\.norm: would divide by 20 where it divides by 16"):
        plan_growth(config, *expansions.widen_layers(config, {2: 20}))


@pytest.mark.parametrize(
    ("changes", "slots", "message"),
    [
        ({"residual": {"kind": "plain", "resize": "zero"}}, (4, 6), "residual.resize: got zero; slots carry"),
        ({"mtp": {"n_depths": 1}}, (4, 6), "residual.slot_width: got 4; further heads"),
    ],
)
def test_streams_that_are_no_slots_are_refused(changes, slots, message):
    config = shaped([12, 16, 12], **changes)
    with pytest.raises(UserError, match=message):
        grown(config, expansions.to_slots(config, *slots))


@pytest.mark.parametrize("last", [8, 16])
def test_a_final_norm_as_wide_as_the_last_layer_is_none_of_slots(last):
    """With slots it has the width of the head, and would measure other coordinates."""
    slots = {"kind": "hyper_connections", "slot_width": 4, "embedding": "pad"}
    config, wanted = (shaped([12, last], "full", **changes) for changes in ({}, {"residual": slots}))
    with pytest.raises(UserError, match="final_norm_width"):
        plan_growth(config, wanted)


@pytest.mark.parametrize("embedding", ["expand", "slot"])
def test_slots_that_start_at_zero_cannot_be_filled(embedding):
    config = shaped([12, 16, 12], tie_embeddings=True)
    with pytest.raises(UserError, match=f"residual.embedding: got {embedding}, which fills coordinates 12 to 16"):
        grown(config, expansions.to_slots(config, 4, 4, embedding=embedding))
    grown(config, expansions.to_slots(config, 4, 4, embedding="pad"))


@pytest.mark.parametrize(("widths", "position", "like"), [([12, 8], 1, None), ([8, 12], 1, 1), ([12, 12], 2, 0)])
def test_layers_between_the_widths_beside_them_can_be_added_whatever_resizing_does(widths, position, like):
    config = shaped(widths, residual={"kind": "plain", "resize": "zero"})
    plan_growth(config, *expansions.add_layers(config, [position], like))


@pytest.mark.parametrize("resize", ["zero", "projection", "full_projection"])
@pytest.mark.parametrize(("widths", "position", "like"), [([8, 12, 12], 2, 0), ([12, 8, 8], 2, 0), ([12, 8], 2, 0)])
def test_layers_that_would_resize_otherwise_are_refused(resize, widths, position, like):
    config = shaped(widths, residual={"kind": "plain", "resize": resize}, d_model=widths[0])
    with pytest.raises(UserError, match=r"d_model: got .* for an added layer; with residual.resize"):
        plan_growth(config, *expansions.add_layers(config, [position], like))
