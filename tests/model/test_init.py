import math

import pytest
import torch
from model_cases import CASES, SLOTS, VARIANTS, config, decoder, random_tokens, template, variant

from widthwise.config_io import parse
from widthwise.model.axes import Linear, RMSNorm
from widthwise.model.decoder import Decoder, build
from widthwise.model.initial_weights import fill
from widthwise.shape.template import ModelTemplate

PAPER = {
    "vocab_size": 997,
    "d_model": 64,
    "n_layers": 5,
    "shape": {"kind": "explicit", "widths": [112, 80, 32, 48, 112]},
    "attention": {"n_heads": 8, "scale": "1/head_dim"},
    "ffn": {"kind": "swiglu", "ratio": 4},
    "residual": {"kind": "plain", "resize": "projection"},
    "init": {"std": 0.1, "width_multiplier": 8},
}


def expected_std(name: str, width: int) -> float:
    """The paper's table, by the names of the weights."""
    if name.startswith(("embedding", "head")):
        return 0.1
    std = 0.1 / math.sqrt(8) * math.sqrt(64 / width)
    return std / math.sqrt(2 * 5) if name.endswith(("w_o.weight", "w_down.weight")) else std


def test_standard_deviations_are_the_papers():
    resolved = parse(ModelTemplate, PAPER).resolve(8)
    model = build(resolved, seed=1)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
            continue
        width = resolved.widths[int(name.split(".")[1])] if name.startswith("layers") else 0
        std, n = expected_std(name, width), parameter.numel()
        assert abs(parameter.std().item() / std - 1) < 5 / math.sqrt(2 * n), name
        assert abs(parameter.mean().item()) < 5 * std / math.sqrt(n), name
        kurtosis = ((parameter / std) ** 4).mean().item()
        assert abs(kurtosis - 3) < 0.25 + 30 / math.sqrt(n), name


@pytest.mark.parametrize("resize", ["projection", "full_projection"])
def test_projections_of_the_release_start_as_torch_starts_them(resize):
    residual = {"kind": "plain", "resize": resize, "projections": "as_released"}
    model = build(parse(ModelTemplate, PAPER | {"residual": residual}).resolve(8), seed=1)
    for layer in (3, 4):
        weight = model.layers[layer].attention_residual.resize.w_widen.weight
        limit = 1 / math.sqrt(PAPER["shape"]["widths"][layer - 1])
        assert 0.99 * limit < weight.abs().max() <= limit
        assert abs(weight.std().item() / (limit / math.sqrt(3)) - 1) < 5 / math.sqrt(weight.numel())


def test_depth_scaling_can_be_turned_off():
    stds = {}
    for depth_scaled in (True, False):
        change = {**PAPER, "init": {"std": 0.1, "width_multiplier": 8, "depth_scaled": depth_scaled}}
        model = build(parse(ModelTemplate, change).resolve(8), seed=1)
        stds[depth_scaled] = model.layers[0].attention.w_o.weight.std()
    torch.testing.assert_close(stds[False], stds[True] * math.sqrt(10))


def cut(**init):
    return parse(ModelTemplate, {**PAPER, "init": {"std": 0.1, "width_multiplier": 8, **init}}).resolve(8)


@pytest.mark.parametrize("truncate_at", [1.5, 3.0])
def test_a_cut_normal_has_no_tails_and_the_std_that_is_left(truncate_at):
    density = math.exp(-(truncate_at**2) / 2) / math.sqrt(2 * math.pi)
    inside = math.erf(truncate_at / math.sqrt(2))
    left = math.sqrt(1 - 2 * truncate_at * density / inside)
    resolved = cut(truncate_at=truncate_at)
    for name, parameter in build(resolved, seed=1).named_parameters():
        if not name.endswith("norm.weight"):
            width = resolved.widths[int(name.split(".")[1])] if name.startswith("layers") else 0
            std = expected_std(name, width)
            assert parameter.abs().max().item() <= truncate_at * std * (1 + 1e-6), name
            assert abs(parameter.std().item() / (left * std) - 1) < 5 / math.sqrt(2 * parameter.numel()), name


def test_a_cut_normal_comes_from_the_seed_alone_and_is_not_the_default():
    torch.manual_seed(1)
    first = build(cut(truncate_at=3.0), seed=3).state_dict()
    torch.manual_seed(2)
    again, other = (build(cut(truncate_at=3.0), seed=seed).state_dict() for seed in (3, 4))
    for name, weight in first.items():
        assert torch.equal(weight, again[name]), name
        assert name.endswith("norm.weight") or not torch.equal(weight, other[name]), name
    assert build(cut(), seed=3).embedding.weight.abs().max() > 3 * 0.1


def test_all_weights_are_filled_from_the_seed_alone():
    resolved = config("x", **VARIANTS["qk_norm_all_heads"], residual={"kind": "plain", "resize": "projection"})
    torch.manual_seed(1)
    first = build(resolved, seed=3).state_dict()
    torch.manual_seed(2)
    again, other = (build(resolved, seed=seed).state_dict() for seed in (3, 4))
    for name, weight in first.items():
        assert torch.equal(weight, again[name]), name
        assert name.endswith("norm.weight") or not torch.equal(weight, other[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_seed_gives_the_same_weights_in_every_dtype(dtype):
    resolved = config("x")
    for a, b in zip(build(resolved, 3).parameters(), build(resolved, 3, dtype=dtype).parameters(), strict=True):
        assert b.dtype == dtype
        assert torch.equal(a.to(dtype), b)


@pytest.mark.parametrize(("shape", "name"), CASES)
def test_building_on_meta_equals_building_directly(shape, name):
    resolved = variant(shape, name)
    direct = Decoder(resolved)
    direct.init_weights(7)
    built = build(resolved, 7)
    assert list(built.state_dict()) == list(direct.state_dict())
    for a, b in zip(built.parameters(), direct.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not any(p.is_meta for p in built.parameters())


def started(start, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix, whatever its memory held before, and what the generator gives after it."""
    module = Linear({"d_in": 4}, {"d_out": 6}, start=start).to(dtype)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        module.weight.fill_(math.nan)
    fill(module, 0.5, generator)
    return module.weight.detach(), torch.rand((), generator=generator)


def test_a_weight_starts_at_a_number_or_as_a_function_fills_it_or_is_drawn():
    def doubled(weight, generator):
        weight.normal_(0.0, 1.0, generator=generator).mul_(2)

    assert (started(0.25)[0] == 0.25).all()
    drawn = torch.empty(6, 4).normal_(0.0, 1.0, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(started(doubled)[0], 2 * drawn)
    torch.testing.assert_close(started(None)[0], 0.5 * drawn)


def test_a_function_fills_the_same_values_in_every_dtype():
    def uniform(weight, generator):
        assert (weight.dtype, weight.device.type) == (torch.float32, "cpu")
        weight.uniform_(generator=generator)

    single = started(uniform)[0]
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(started(uniform, dtype)[0], single.to(dtype))


def test_what_does_not_draw_leaves_the_other_weights_as_they_were():
    """So that variants differ in what they add alone."""
    untouched = torch.rand((), generator=torch.Generator().manual_seed(3))
    assert started(0.25)[1] == started(lambda weight, generator: weight.fill_(1.0))[1] == untouched
    plain = build(config("x"), seed=3).state_dict()
    slots = build(config("x", residual={**SLOTS, "embedding": "expand"}, mtp={"n_depths": 1}), seed=3).state_dict()
    assert all(torch.equal(weight, slots[name]) for name, weight in plain.items())


def test_a_tied_head_is_the_embedding_before_and_after_init():
    model = build(config("x", tie_embeddings=True), 3)
    assert model.head.weight is model.embedding.weight
    assert abs(model.embedding.weight.std().item() - 0.3) < 0.02
    untied = build(config("x"), 3)
    assert untied.head.weight is not untied.embedding.weight
    n_tied, n_untied = (sum(p.numel() for p in m.parameters()) for m in (model, untied))
    assert n_untied - n_tied == model.embedding.weight.numel()
    model.loss(random_tokens(2, 5), random_tokens(2, 5, seed=1))[0].backward()
    assert (model.embedding.weight.grad != 0).all()  # the head reaches every row


def test_every_parameter_belongs_to_a_module_with_named_axes():
    model = decoder(
        config("zigzag", **VARIANTS["qk_norm_all_heads"], residual={"kind": "plain", "resize": "projection"})
    )
    for name, parameter in model.named_parameters():
        owner = model.get_submodule(name.rpartition(".")[0])
        sizes = [math.prod(axes.values()) for axes in (owner.out_axes, owner.in_axes)]
        expected = {"embedding": sizes[::-1]}.get(
            name.split(".")[0], sizes[:1] if isinstance(owner, RMSNorm) else sizes
        )
        assert list(parameter.shape) == expected, name
        assert isinstance(owner, (Linear, RMSNorm)) or name == "embedding.weight"


def test_only_w_o_and_w_down_write_the_stream():
    model = build(template("x", residual={"kind": "plain", "resize": "projection"}).resolve(8), 0)
    scaled = {
        name.split(".")[-1]
        for name, module in model.named_modules()
        if isinstance(module, Linear) and "d_model" in module.out_axes and "d_model" not in module.in_axes
    }
    assert scaled == {"w_o", "w_down"}
