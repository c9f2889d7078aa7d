"""Orders that leave the function as it is, and cuts that lose what the model needs least."""

import pytest
import torch
from growth_cases import (
    GPT2,
    GQA,
    HOURGLASS,
    MOE,
    ONE_QK_NORM,
    QK_NORM,
    REORDERED,
    SEQ_LEN,
    SLOTS,
    VOCAB_SIZE,
    shaped,
    small_model,
)
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.growth.choices import NewSizes
from widthwise.growth.need import LayerNeed, covariance, energies_kept, layer_needs, measure, order_of_need
from widthwise.growth.plan import plan_growth
from widthwise.growth.resizing import resized
from widthwise.growth.shrink import (
    LayerSizes,
    Order,
    check_can_shrink,
    cut,
    fold_gains,
    layer_sizes,
    reorder,
    smaller_config,
    sublayers,
    why_not_turned,
)
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build

pytestmark = pytest.mark.usefixtures("float64")

KINDS = {
    "llama": {},
    "gqa": GQA,
    "qwen": {**QK_NORM, "attention": {**QK_NORM["attention"], "head_dim": 2, "kv_group_size": 2}},
    "gpt2": GPT2,
    "reordered": REORDERED,
    "tied": {"tie_embeddings": True},
    "multiplied": {
        "embedding_multiplier": 3.0,
        "logit_multiplier": 0.3,
        "residual": {"kind": "plain", "multiplier": 0.4},
    },
    "one_divisor": {"norm": {"scaling": "depth"}},
}
TURNED = ("llama", "gqa", "qwen", "multiplied", "one_divisor")
TOKENS = torch.arange(3 * (SEQ_LEN + 1)).view(3, -1) * 5 % VOCAB_SIZE


def drawn(config: ModelConfig) -> Decoder:
    """A model whose gains, biases and tables are random too."""
    model = build(config, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@torch.no_grad()
def logits(model: Decoder) -> Tensor:
    return model(TOKENS[:, :-1])


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(4)))[0]


def shuffled(config: ModelConfig) -> Order:
    generator = torch.Generator().manual_seed(3)
    sizes = layer_sizes(config)
    groups, units = ([torch.randperm(n, generator=generator) for n in each] for each in list(zip(*sizes))[1:])
    return Order(torch.randperm(config.d_model, generator=generator), groups, units)


def small_from(model: Decoder, sizes: list[LayerSizes], d_model: int | None = None) -> Decoder:
    """Cut the model as it stands, with the energies of what its layers read."""
    smaller = smaller_config(model.config, sizes, d_model)
    energy = energies_kept(measure(model, [TOKENS]), sizes)
    small = build(smaller, seed=0, dtype=torch.float64)
    small.set_weights(cut(model, smaller, energy))
    return small


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_another_order_compute_the_same(kind: str) -> None:
    model = drawn(small_model(**KINDS[kind]))
    before = logits(model)
    reorder(model, shuffled(model.config))
    assert difference(logits(model), before) < 1e-12


@pytest.mark.parametrize("kind", TURNED)
def test_a_turned_stream_computes_the_same(kind: str) -> None:
    model = drawn(small_model(**KINDS[kind]))
    before, embedding = logits(model), model.embedding.weight.clone()
    fold_gains(model)
    assert difference(logits(model), before) < 1e-12
    reorder(model, Order(orthogonal(model.config.d_model)))
    assert difference(logits(model), before) < 1e-12
    assert not torch.allclose(model.embedding.weight, embedding)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in TURNED])
def test_what_cannot_be_turned_says_why_and_is_left_alone(kind: str) -> None:
    model = drawn(small_model(**KINDS[kind]))
    before = model.state_dict()
    assert why_not_turned(model.config)
    with pytest.raises(UserError):
        fold_gains(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_layers_that_own_part_of_the_stream_are_not_turned() -> None:
    assert "layers.1.d_model: got 8" in (why_not_turned(shaped([12, 8, 12])) or "")


def test_the_covariance_is_diagonal_and_falls_after_turning_to_its_axes() -> None:
    model = drawn(small_model(**GQA))
    fold_gains(model)
    before = covariance(model, [TOKENS])
    reorder(model, Order(torch.linalg.eigh(before).eigenvectors.flip(-1)))
    turned = covariance(model, [TOKENS])
    energy = turned.diag()
    assert difference(turned, energy.diag()) < 1e-12
    assert (energy.diff() <= 0).all()
    assert float(energy.sum()) == pytest.approx(float(before.diag().sum()))


@pytest.mark.parametrize("kind", KINDS)
def test_cutting_nothing_is_exact(kind: str) -> None:
    model = drawn(small_model(**KINDS[kind]))
    sizes = layer_sizes(model.config)
    assert smaller_config(model.config, sizes) == model.config
    assert torch.equal(logits(small_from(model, sizes)), logits(model))


@pytest.mark.parametrize("kind", ["llama", "gqa", "qwen", "gpt2"])
@pytest.mark.parametrize("score", ["taylor", "activation", "magnitude"])
def test_units_and_groups_that_write_nothing_come_last_and_are_cut_exactly(kind: str, score: str) -> None:
    model = drawn(small_model(**KINDS[kind]))
    whole = layer_sizes(model.config)
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            layer.ffn.w_down.weight[:, [1, 4, 7]] = 0
            layer.attention.w_o.weight.view(model.config.d_model, whole[i].n_kv_heads, -1)[:, 0] = 0
    before = logits(model)
    reorder(model, order_of_need(layer_needs(model, measure(model, [TOKENS]), score)))
    sizes = [LayerSizes(each.d_model, each.n_kv_heads - 1, each.n_hidden - 3) for each in whole]
    small = small_from(model, sizes)
    assert difference(logits(small), before) < 1e-12
    assert sum(p.numel() for p in small.parameters()) == small.config.cost().params < model.config.cost().params


@pytest.mark.parametrize("kind", ["llama", "gqa", "gpt2"])
def test_growth_is_undone_by_the_cut(kind: str) -> None:
    """The grown model has random values wherever they are free; what it grew is what it needs least."""
    old = drawn(small_model(**KINDS[kind]))
    group = old.config.layers[0].attention.n_heads // old.config.layers[0].attention.n_kv_heads
    n_heads = old.config.layers[0].attention.n_heads + group
    wider = {} if kind == "gpt2" else {"d_model": 16}
    plan = plan_growth(old.config, resized(old.config, NewSizes(d_ff=14, n_heads=n_heads, **wider)))
    grown = build(plan.new, seed=0, dtype=torch.float64)
    grown.set_weights(plan.weights(dict(old.named_parameters())))
    need = measure(grown, [TOKENS])
    energy = sum(torch.as_tensor(each.energy) for each in need.read.values())
    stream = None if kind == "gpt2" else torch.as_tensor(energy).argsort(descending=True, stable=True)
    reorder(grown, order_of_need(layer_needs(grown, need, "taylor"))._replace(stream=stream))
    small = small_from(grown, layer_sizes(old.config), old.config.d_model)
    assert [p.shape for p in small.parameters()] == [p.shape for p in old.parameters()]
    assert difference(logits(small), logits(old)) < 1e-12


@pytest.mark.parametrize("kind", ["llama", "tied", "reordered"])
def test_a_narrow_layer_hears_as_much_as_before_and_the_rest_is_carried_past_it(kind: str) -> None:
    """The first layer is whole, so that the second reads the same, in its first 8 coordinates."""
    model = drawn(small_model(**KINDS[kind]))
    sizes = layer_sizes(model.config)
    sizes[1] = sizes[1]._replace(d_model=8)
    small = small_from(model, sizes)
    assert small.config.widths == [12, 8, 12]
    assert small.embedding.weight.shape == model.embedding.weight.shape
    measured: list[Tensor] = []
    norm = model.layers[1].attention.norm
    hook = norm.register_forward_pre_hook(lambda _, inputs: measured.append(inputs[0].detach()))
    logits(model)
    hook.remove()
    (x,) = measured
    kept = (x / x.square().mean(dim=-1, keepdim=True).sqrt())[..., :8].square().sum() / x[..., 0].numel() / 12
    expected = norm.weight[:8] * (float(kept) * 12 / 8) ** 0.5
    assert torch.allclose(small.layers[1].attention.norm.weight, expected, rtol=1e-9)


def test_taylor_is_the_slope_of_the_loss_along_each_unit() -> None:
    """Against central differences: the loss where one hidden unit of one layer is scaled by 1 + e and 1 - e."""
    model = drawn(small_model())
    needs = layer_needs(model, measure(model, [TOKENS]), "taylor")
    column, step = model.layers[2].ffn.w_down.weight, 1e-5

    @torch.no_grad()
    def loss(unit: int, factor: float) -> float:
        kept = column[:, unit].clone()
        column[:, unit] *= factor
        found = model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).objective
        column[:, unit] = kept
        return float(found)

    slopes = [abs(loss(unit, 1 + step) - loss(unit, 1 - step)) / (2 * step) for unit in range(column.shape[1])]
    assert needs[2].units.tolist() == pytest.approx(slopes, rel=1e-6)


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = drawn(small_model())
    model.embedding.weight.requires_grad_(False)
    before, asked = logits(model), [parameter.requires_grad for parameter in model.parameters()]
    covariance(model, [TOKENS])
    measure(model, [TOKENS, TOKENS])
    assert torch.equal(logits(model), before)
    assert [parameter.requires_grad for parameter in model.parameters()] == asked
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_what_is_lost_is_all_that_lies_behind_the_cut() -> None:
    need = LayerNeed(torch.arange(5.0), torch.tensor([3.0, 1.0]), torch.tensor([7.0, 2.0, 0.5]))
    assert need.lost(LayerSizes(5, 2, 3)) == 0
    assert need.lost(LayerSizes(3, 1, 1)) == (3 + 4) + 1 + 2.5


@pytest.mark.parametrize("changes", [SLOTS, HOURGLASS, MOE, ONE_QK_NORM, {"mtp": {"n_depths": 1}}])
def test_what_cannot_be_cut_is_refused(changes: dict) -> None:
    with pytest.raises(UserError, match=r"got|mtp"):
        check_can_shrink(small_model(**changes))


def test_a_cut_adds_nothing() -> None:
    config = small_model()
    sizes = [each._replace(n_hidden=11) for each in layer_sizes(config)]
    with pytest.raises(UserError, match=r"layers.0.n_hidden: got 11 where there are 10"):
        smaller_config(config, sizes)


def test_sublayers_are_named_as_in_the_model() -> None:
    model = drawn(small_model())
    assert all(model.get_submodule(name) is part for name, part in sublayers(model).items())
    assert len(sublayers(model)) == 2 * model.config.n_layers
