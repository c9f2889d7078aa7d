import math

import pytest
import torch
from model_cases import VARIANTS, config, decoder, random_tokens

from widthwise.config_io import parse
from widthwise.model.axes import RMSNorm
from widthwise.model.decoder import Decoder, build
from widthwise.model.mup import coordinate_check, coordinate_sizes, parameter_groups
from widthwise.shape.template import ModelTemplate

RECIPE = {"init": {"width_multiplier": 8}}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("by_layer", [False, True])
def test_every_parameter_is_in_exactly_one_group(variant, by_layer):
    model = build(
        config(
            "zigzag",
            **VARIANTS[variant],
            **({} if variant == "released_recipe" else {"residual": {"resize": "projection"}}),
        ),
        0,
    )
    groups = parameter_groups(model, lr_follows_layer_width=by_layer)
    names = [name for group in groups for name in group.names]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    identities = [id(p) for group in groups for p in group.parameters]
    assert len(set(identities)) == len(identities) == len(list(model.parameters()))
    by_name = dict(model.named_parameters())
    assert all(by_name[n] is p for group in groups for n, p in zip(group.names, group.parameters, strict=True))


def test_groups_are_the_papers():
    model = build(config("x", **VARIANTS["qk_norm_all_heads"], **RECIPE), 0)
    groups = {group.name: group for group in parameter_groups(model)}
    assert set(groups) == {"tables", "matrices", "gains"}
    assert set(groups["tables"].names) == {"embedding.weight", "head.weight"}
    assert (groups["tables"].lr_factor, groups["tables"].decays) == (1, True)
    assert (groups["matrices"].lr_factor, groups["matrices"].decays) == (1 / 8, True)
    assert (groups["gains"].lr_factor, groups["gains"].decays) == (1, False)
    gains = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, RMSNorm)}
    assert set(groups["gains"].names) == gains
    assert all(name.startswith("layers.") for name in groups["matrices"].names)


def test_a_tied_head_is_in_the_group_of_the_embedding():
    groups = {group.name: group for group in parameter_groups(build(config("x", tie_embeddings=True), 0))}
    assert groups["tables"].names == ("embedding.weight",)


def test_rate_follows_the_layer_width_when_asked():
    model = build(config("x", **RECIPE), 0)
    widths, d_model = model.config.widths, model.config.d_model
    for group in parameter_groups(model, lr_follows_layer_width=True):
        for name in group.names:
            is_matrix = name.startswith("layers.") and not name.endswith("norm.weight")
            expected = d_model / widths[int(name.split(".")[1])] / 8 if is_matrix else 1
            assert group.lr_factor == pytest.approx(expected, rel=1e-12), name


def test_groups_are_in_the_order_of_their_first_parameter():
    model = build(config("x"), 0)
    order = [name for name, _ in model.named_parameters()]
    firsts = [order.index(group.names[0]) for group in parameter_groups(model, lr_follows_layer_width=True)]
    assert firsts == sorted(firsts)


def test_coordinate_sizes_measure_updates_and_logits():
    model, tokens = decoder(config("x")), random_tokens(2, 5)
    sizes = coordinate_sizes(model, tokens)
    assert set(sizes) == {f"layers.{i}.{part}" for i in range(5) for part in ("attention", "ffn")} | {"logits"}
    assert sizes["logits"] == pytest.approx(model(tokens).square().mean().sqrt().item(), rel=1e-5)
    assert not any(module._forward_hooks for module in model.modules())


def of_width(width_multiplier):
    """Builds models of one form whose width multiplier is a function of the width."""

    def build_at(width: int) -> Decoder:
        data = {
            "vocab_size": 61,
            "d_model": width,
            "n_layers": 2,
            "shape": {"kind": "explicit", "widths": [width, width * 3 // 4]},
            "attention": {"n_heads": 4, "scale": "1/head_dim"},
            "init": {"std": 0.1, "width_multiplier": width_multiplier(width)},
            "logit_multiplier": 32 / width,
        }
        return build(parse(ModelTemplate, data).resolve(8), 0)

    return build_at


def slope(sizes: dict[int, dict[str, float]], name: str) -> float:
    """Exponent of the growth with width."""
    widths = sorted(sizes)
    x = torch.tensor([math.log(width) for width in widths])
    y = torch.tensor([math.log(sizes[width][name]) for width in widths])
    x = x - x.mean()
    return ((x * y).sum() / (x * x).sum()).item()


def test_coordinates_keep_their_size_when_the_multiplier_follows_the_width():
    tokens = random_tokens(4, 17)
    widths = (32, 64, 128, 256)
    mup, standard = (
        coordinate_check(of_width(multiplier), widths, tokens, lr=0.01, n_steps=4)
        for multiplier in (lambda width: width / 32, lambda width: 1.0)
    )
    for name in mup[32]:
        assert abs(slope(mup, name)) < 0.3, name
    assert max(slope(standard, name) for name in standard[32]) > 0.6


def test_coordinate_check_is_reproducible_and_leaves_the_global_generator_alone():
    tokens = random_tokens(2, 5)
    before = torch.get_rng_state()
    first, again = (
        coordinate_check(of_width(lambda w: w / 32), (32, 64), tokens, lr=0.01, n_steps=2) for _ in range(2)
    )
    assert first == again
    assert torch.equal(before, torch.get_rng_state())
