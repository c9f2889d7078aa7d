import expansions
import pytest
import torch
from applied_plans import weights_of
from growth_cases import logits_of, shaped, small_model, tokens_for, with_random_weights

from widthwise.config_io import UserError
from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.model.decoder import build


@pytest.mark.parametrize("placement", ["pre", "reordered"])
def test_added_layers_are_drawn_as_those_of_an_untrained_model(placement):
    """By width and by depth, whatever the old weights are; but for what makes them silent."""
    init = {"std": 0.3, "depth_scaled": True, "width_multiplier": 2.0}
    config = shaped([16, 64, 16], d_model=16, norm={"placement": placement}, attention={"bias": True}, init=init)
    plan = plan_growth(config, *expansions.add_layers(config, [2], like=1))
    new, untrained = dict(plan.weights(with_random_weights(config, 0))), weights_of(build(plan.new, 0))
    silent = {"pre": {"attention.w_o", "ffn.w_down"}, "reordered": {"attention.norm", "ffn.norm"}}[placement]
    for name in [name for name in new if name.startswith("layers.2.")]:
        size, usual = (float(weights[name].square().mean().sqrt()) for weights in (new, untrained))
        is_silent = name.removeprefix("layers.2.").removesuffix(".weight") in silent
        assert size == pytest.approx(0 if is_silent else usual, rel=0.1), name


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("placement", ["pre", "reordered"])
@pytest.mark.parametrize("fresh", [None, Constant(1e3)])
def test_added_layers_are_silent_whatever_their_biases_copy(kind, placement, fresh):
    biased = {"attention": {"bias": True, "out_bias": True}, "ffn": {"kind": "mlp", "d_ff": 10, "bias": True}}
    config = small_model(norm={"kind": kind, "placement": placement}, **biased)
    plan = plan_growth(config, *expansions.add_layers(config, [1]), new_layers="drawn" if fresh else "copied")
    weights, tokens = with_random_weights(config, 0), tokens_for(0)[:, :-1]
    new = dict(plan.weights(weights, fresh=fresh))
    assert torch.equal(logits_of(config, weights, tokens), logits_of(plan.new, new, tokens))


def test_a_new_projection_of_the_whole_stream_is_refused():
    """It would replace what the old model had there."""
    config = shaped([16, 16, 16], d_model=16, residual={"kind": "plain", "resize": "full_projection"})
    with pytest.raises(UserError, match="full_projection would replace the whole stream"):
        plan_growth(config, *expansions.widen_layers(config, {1: 24}))
