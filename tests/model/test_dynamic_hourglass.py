"""What a dynamic hourglass is equal to. What every feed-forward promises is in test_ffn_contract."""

from dataclasses import replace

import pytest
import torch
from comparing import assert_same, context, norm_site, random
from dynamic_models import model_of
from measured import counted_flops
from thinned import in_turn
from torch import Tensor

from widthwise.analysis.dynamic_width import WidthMeter
from widthwise.config_io import parse, to_data
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.model.ffn.dynamic_hourglass import DynamicHourglassConfig
from widthwise.model.ffn.dynamic_hourglass_module import DynamicHourglass
from widthwise.model.ffn.hourglass import HourglassConfig

pytestmark = pytest.mark.usefixtures("float64")

D_MODEL, D_OUT, D_HIDDEN, N_BLOCKS = 21, 13, 6, 3
CONTEXT = context(3, 7)
SITE = norm_site("pre", D_MODEL, D_OUT)
STATIC = {"n_blocks": N_BLOCKS, "d_hidden": D_HIDDEN}
FORMS = {
    "own norms": {},
    "one norm": {"norm": "shared"},
    "norms behind": {"norm": "reordered"},
    "no norm, shared weights": {"norm": "none", "share_weights": True},
    "no gate": {"gated": False, "activation": "gelu", "block_multiplier": 0.5},
}
TINY = "model.ffn={kind: dynamic_hourglass, n_blocks: 3, d_hidden: 7, min_fraction: 0.2, start: 0.6}"


def filled(module, seed=0):
    """Random weights, so that widths reach from the narrowest to the full one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + noise / 8 if name.endswith("norm.weight") else noise / parameter.shape[-1] ** 0.5)
        if getattr(module, "score", None) is not None and hasattr(module.score, "v"):
            module.score.v.weight.mul_(3)
    return module


def dynamic(**options) -> DynamicHourglass:
    data = {**STATIC, "min_fraction": 0.0, "mask": {"kind": "ste", "temperature": 1.0}, **options}
    return filled(parse(DynamicHourglassConfig, data).build(D_MODEL, D_OUT, SITE))


def stream() -> Tensor:
    return random(3, 7, D_MODEL).requires_grad_()


def depths(module: DynamicHourglass, x: Tensor) -> Tensor:
    """(B, T): how many blocks each token passes."""
    fraction = module(x, CONTEXT)[1]["width_fraction"].detach()
    return module.used_units(N_BLOCKS * fraction) // D_HIDDEN


def static(module: DynamicHourglass, n_blocks: int):
    """An hourglass of the first blocks, with the same weights."""
    options = {key: value for key, value in to_data(module.config).items() if key in HourglassConfig.model_fields}
    config = parse(HourglassConfig, {**options, "kind": "hourglass", "n_blocks": n_blocks})
    found = config.build(D_MODEL, D_OUT if n_blocks == N_BLOCKS else D_MODEL, SITE)
    weights = module.state_dict()
    found.load_state_dict({name: weights[name] for name in found.state_dict()})
    return found


@in_turn(
    ("form", FORMS.values()),
    ("execution", ["masked", "sliced"]),
)
def test_every_token_gets_the_hourglass_of_as_many_blocks_as_it_passes(form, execution):
    module, x = dynamic(**form, execution=execution).eval(), stream()
    found, passed = module(x, CONTEXT)[0], depths(module, x)
    assert passed.unique().numel() >= 3
    assert (found[passed == 0] == 0).all()
    for n_blocks in range(1, N_BLOCKS + 1):
        own = passed == n_blocks
        torch.testing.assert_close(found[own], static(module, n_blocks)(x, CONTEXT)[0][own][..., :D_OUT])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_at_full_width_it_trains_as_the_hourglass_and_with_skipped_blocks_as_with_masked_ones(form):
    module, x, y = dynamic(**form), stream(), stream()
    whole = static(module, N_BLOCKS)
    full = module(x, replace(CONTEXT, width_fraction=torch.ones(())))[0]
    own = [dict(module.named_parameters())[name] for name, _ in whole.named_parameters()]
    assert_same(full, whole(y, CONTEXT)[0], (x, *own), (y, *whole.parameters()), rtol=1e-10)

    fractions = 0.8 * torch.rand(3, 7, generator=torch.Generator().manual_seed(4))  # at most two blocks
    gradients = []
    for execution in ("masked", "sliced"):
        module, x = dynamic(**form, execution=execution), stream()
        module(x, replace(CONTEXT, width_fraction=fractions))[0].square().sum().backward()
        choice = {id(parameter) for parameter in module.choice_parameters()}
        gradients.append([p.grad for p in (x, *module.parameters()) if id(p) not in choice])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert all((p.grad == 0).all() for p in module.stack[2].parameters()) != bool(form.get("share_weights"))


def test_the_gradient_of_a_step_is_that_of_a_sigmoid_around_the_width_in_blocks():
    module, x = dynamic(), stream()
    width = N_BLOCKS * torch.sigmoid(module.score(module.read_by_score(x)) + module.bias())
    total = torch.zeros_like(x)
    for k, block in enumerate(module.blocks):
        soft = torch.sigmoid(width - k - 0.5)
        mask = (width > k + 0.5) + soft - soft.detach()
        update = block(x + total, CONTEXT)[0] * mask[..., None]
        total = total + torch.nn.functional.pad(update, (0, D_MODEL - update.shape[-1]))
    assert_same(module(x, CONTEXT)[0], total[..., :D_OUT], (x, *module.parameters()))


@pytest.mark.parametrize("execution", ["auto", "sliced"])
def test_skipped_blocks_take_no_flops(execution):
    module, x = dynamic(execution=execution).eval(), stream().detach()
    n_units = int((D_HIDDEN * depths(module, x)).sum())
    n_last = int((depths(module, x) == N_BLOCKS).sum())  # of a block that writes fewer coordinates
    expected = n_units * 2 * (2 * D_MODEL + D_MODEL) - n_last * D_HIDDEN * 2 * (D_MODEL - D_OUT)
    of_score = 2 * D_MODEL * x[..., 0].numel()
    assert counted_flops(lambda: module(x, CONTEXT)) == expected + of_score


def test_a_meter_counts_what_is_asked_for_and_what_is_executed():
    model = model_of(TINY, "model.shape={kind: explicit, widths: [16, 16, 16]}").eval()
    meter, tokens = WidthMeter(model), torch.randint(256, (3, 17), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        choices = model.loss(tokens, tokens).choices
    meter.add(choices)
    found, fractions = meter.summary(), [each["width_fraction"].double() for each in choices]
    of_block = 7 * 6 * 16
    passed = sum(((3 * fraction)[..., None] > torch.tensor([0.5, 1.5, 2.5])).sum() for fraction in fractions)
    assert found["flops_per_token"] == pytest.approx(
        {
            "full": 9 * of_block,
            "asked": of_block * sum(3 * float(fraction.mean()) for fraction in fractions),
            "bucketed": of_block * int(passed) / tokens.numel(),
            "executed": of_block * int(passed) / tokens.numel(),
        }
    )
    assert [layer["d_ff"] for layer in found["layers"]] == [21, 21, 21]
    assert [layer.full_flops for layer in dynamic_layers(model.config)] == [3 * of_block] * 3
