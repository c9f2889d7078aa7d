"""The norms alone: what they compute, and what they cost."""

import pytest
import torch
from measured import kept_bytes
from model_cases import config, decoder, random_tokens

from widthwise.config_io import UserError, parse, to_data
from widthwise.model.axes import LayerNorm, RMSNorm
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.norm import NormConfig, NormSite

WIDTH = 13
KINDS = [
    {"kind": "rms", "norm_dim": WIDTH},
    {"kind": "rms", "norm_dim": 7},
    {"kind": "rms", "norm_dim": 5, "stat_width": 5},
    {"kind": "layer", "norm_dim": WIDTH},
    {"kind": "layer", "norm_dim": 7},
    {"kind": "rms", "norm_dim": 7, "output_multiplier": 0.3},
    {"kind": "rms", "norm_dim": 5, "stat_width": 5, "output_multiplier": 0.3},
    {"kind": "layer", "norm_dim": 7, "output_multiplier": 0.3},
]


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def built(options: dict, dtype: torch.dtype = torch.float64):
    """A norm with random gains and bias, and a large eps."""
    norm = NormConfig(eps=0.3, **options).build({"d_model": WIDTH}).to(dtype)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter.copy_(random(WIDTH, seed=10 + seed))
    return norm


def formula(norm, x: torch.Tensor) -> torch.Tensor:
    """Number by number."""
    rows = []
    for row in x:
        mean = sum(row) / WIDTH if isinstance(norm, LayerNorm) else 0.0
        measured = row[: norm.stat_width or WIDTH]
        size = (sum((value - mean) ** 2 for value in measured) / norm.norm_dim + norm.eps) ** 0.5
        bias = norm.bias.weight if isinstance(norm, LayerNorm) else 0.0
        rows.append(((row - mean) / size * norm.weight + bias) * norm.output_multiplier)
    return torch.stack(rows)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_norm_and_its_gradients_are_the_formula(options):
    norm, x = built(options), (2 * random(4, WIDTH) + 0.7).requires_grad_()
    weights, inputs = random(4, WIDTH, seed=3), (x, *norm.parameters())
    torch.testing.assert_close(norm(x), formula(norm, x), rtol=1e-12, atol=1e-12)
    losses = [(y * weights).sum() for y in (norm(x), formula(norm, x))]
    for ours, truth in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-12)


def test_a_layer_norm_with_the_usual_divisor_is_torchs():
    norm, x = built({"kind": "layer", "norm_dim": WIDTH}), random(2, 3, WIDTH)
    expected = torch.nn.functional.layer_norm(x, (WIDTH,), norm.weight, norm.bias.weight, norm.eps)
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_under_autocast_the_statistics_are_fp32_and_the_output_is_not(options):
    norm, x = built(options, torch.float32), random(5, WIDTH, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = norm(x)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded, norm(x).to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("is_read", [True, False])
def test_cost_is_the_parameters_and_what_autograd_keeps(options, is_read):
    norm, w = built(options, torch.float32), random(1, WIDTH, dtype=torch.float32)
    cost = NormConfig(**options).cost(WIDTH, n_vectors=3, is_read=is_read)
    assert cost.params == cost.active_params == sum(p.numel() for p in norm.parameters())
    # A matrix product keeps what it reads, for the gradient of its weight.
    w.requires_grad_(is_read)

    def kept(n_tokens: int) -> int:
        x = random(n_tokens, 3, WIDTH, dtype=torch.float32).requires_grad_()
        return kept_bytes(lambda: torch.nn.functional.linear(norm(x), w))

    assert kept(9) - kept(4) == 5 * cost.activation_bytes(bytes_per_element=4)


def test_only_an_rms_norm_measures_a_part():
    with pytest.raises(UserError, match="stat_width: got 5; only an rms norm has one"):
        parse(NormConfig, {"kind": "layer", "norm_dim": 7, "stat_width": 5})


@pytest.mark.parametrize("placement", ["pre", "reordered"])
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_placed_norm_is_that_norm(placement, options):
    norm = built(options)
    placed = NormSite(placement, NormConfig(eps=0.3, **options)).build(WIDTH, WIDTH).to(torch.float64)
    placed.load_state_dict(norm.state_dict())
    x = random(4, WIDTH)
    expected = (norm(x), x) if placement == "pre" else (x, norm(x))
    assert all(torch.equal(a, b) for a, b in zip((placed.before(x), placed.after(x)), expected, strict=True))


def other_divisors(data, factor: int):
    """The config with every divisor times the factor and every eps over it."""
    if isinstance(data, list):
        return [other_divisors(each, factor) for each in data]
    if not isinstance(data, dict):
        return data
    changed = {key: other_divisors(value, factor) for key, value in data.items()}
    if "norm_dim" in data or "eps" in data:
        changed["eps"] = data["eps"] / factor
    if "norm_dim" in data:
        changed["norm_dim"] = data["norm_dim"] * factor
    if data.get("kind") == "hyper_connections":
        changed |= {"slot_norm_dim": data["slot_width"] * factor, "group_norm_dim": 20 * factor}
    return changed


@torch.no_grad()
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("endpoints", ["slim", "full"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize(
    "residual",
    [
        {"kind": "plain"},
        {"kind": "hyper_connections", "slot_width": 4, "n_slots": 15, "eps": 0.2, "group_norm": "rms"},
        {"kind": "hyper_connections", "slot_width": 4, "n_slots": 15, "eps": 0.2, "group_norm": "layer"},
    ],
)
def test_every_norm_of_a_model_divides_by_what_its_config_says(residual, kind, endpoints):
    """With f times the divisors, eps over f and gains over sqrt(f) it is the same model: g / sqrt(S / n + eps) =
    g / sqrt(f) / sqrt(S / (f n) + eps / f). The coefficients of slots need no other gain, as the root of the divisor
    divides them too.
    """
    factor, norm = 9, {"kind": kind, "eps": 0.3}
    resolved = config("x", endpoints, norm=norm, residual=residual, mtp={"n_depths": 2})
    model = decoder(resolved)
    other = Decoder(parse(ModelConfig, other_divisors(to_data(resolved), factor))).to(torch.float64)
    assert other.config != resolved
    other.load_state_dict(model.state_dict())
    for name, module in other.named_modules():
        if isinstance(module, (RMSNorm, LayerNorm)) and not name.endswith("_residual.norm"):
            module.weight /= factor**0.5
    tokens, targets = random_tokens(2, 8), random_tokens(2, 8, seed=1)
    ours, truth = (each.loss(tokens, targets) for each in (other, model))
    torch.testing.assert_close(ours.losses, truth.losses, rtol=1e-10, atol=1e-10)
    for a, b in zip(ours.mtp_losses, truth.mtp_losses, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_the_kind_of_the_recipe_reaches_every_norm():
    for kind, other in ((LayerNorm, RMSNorm), (RMSNorm, LayerNorm)):
        norm = {"kind": "layer" if kind is LayerNorm else "rms", "eps": 1e-3}
        model = decoder(config("x", norm=norm, mtp={"n_depths": 1}))
        norms = [module for module in model.modules() if isinstance(module, (RMSNorm, LayerNorm))]
        assert len(norms) == 2 * 5 + 1 + (2 + 2 + 1)  # of layers, before the head, of a further head
        assert not any(isinstance(module, other) for module in norms)
        assert {module.eps for module in norms} == {1e-3}
