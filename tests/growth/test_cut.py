"""Orders that leave the function as it is, and cuts that lose what the model needs least."""

from functools import partial

import growth_cases as cases
import pytest
import torch
from boxes import refusal
from growth_cases import SEQ_LEN, VOCAB_SIZE, difference, drawn, shaped, small_model
from torch import Tensor

from widthwise.growth.need import LayerNeed, covariance, energies_kept, layer_needs, measure, order_of_need
from widthwise.growth.shrink import (
    REMOVED,
    LayerSizes,
    Order,
    check_can_shrink,
    cut,
    fold_gains,
    layer_sizes,
    reorder,
    smaller_config,
)
from widthwise.model.axes import Norm, Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build

pytestmark = pytest.mark.usefixtures("float64")

KINDS = {
    "llama": {},
    "gqa": cases.GQA,
    "qwen": {**cases.QK_NORM, "attention": {**cases.QK_NORM["attention"], "head_dim": 2, "kv_group_size": 2}},
    "gpt2": cases.GPT2,
    "reordered": cases.REORDERED,
    "gemma3": cases.GEMMA,
    "gemma2": cases.GEMMA2,
    "offset_gains": {"norm": {"gain_offset": 1.0}},
    "multiplied": {"embedding_multiplier": 3.0, "residual": {"kind": "plain", "multiplier": 0.4}},
    "mixture": cases.MOE,
    "mixture_reordered": {**cases.MOE, **cases.REORDERED},
    "mixture_between_norms": {**cases.MOE, **cases.BETWEEN},
    "narrow": cases.NARROW,
}
NOT_TURNED = {
    "gpt2": "tie_embeddings: ",
    "reordered": "layers.0.norm_placement: ",
    "gemma3": "tie_embeddings: ",
    "gemma2": "tie_embeddings: ",
    "mixture_between_norms": "layers.0.norm_placement: ",
    "mixture_reordered": "layers.0.norm_placement: ",
    "narrow": "layers.0.d_model: got 16",
}
"""Kinds whose stream stays as it is, and why."""
TOKENS = torch.arange(3 * (SEQ_LEN + 1)).view(3, -1) * 5 % VOCAB_SIZE


@torch.no_grad()
def logits(model: Decoder) -> Tensor:
    return model(TOKENS[:, :-1])


def shuffled(config: ModelConfig) -> Order:
    """Another order of everything, in every expert one of its own; of the stream where all layers own all of it."""
    permutation, sizes = partial(torch.randperm, generator=torch.Generator().manual_seed(3)), layer_sizes(config)
    units = [torch.stack([permutation(each.n_hidden) for _ in range(each.n_experts)]) for each in sizes]
    groups, experts = ([permutation(getattr(each, name)) for each in sizes] for name in ("n_kv_heads", "n_experts"))
    stream = permutation(config.d_model) if set(config.widths) == {config.d_model} else None
    return Order(stream, groups, experts, units)


def small_from(model: Decoder, sizes: list[LayerSizes], d_model: int | None = None) -> Decoder:
    """Cut the model as it stands, with the energies of what its layers read."""
    smaller = smaller_config(model.config, sizes, d_model)
    energy = energies_kept(measure(model, [TOKENS]), smaller, sizes)
    small = build(smaller, seed=0, dtype=torch.float64)
    small.set_weights(cut(model, smaller, sizes, energy))
    return small


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_another_order_and_a_turned_stream_compute_the_same_and_cutting_nothing_is_exact(kind: str) -> None:
    """What cannot be turned says why."""
    model = drawn(small_model(**KINDS[kind]))
    sizes, before = layer_sizes(model.config), logits(model)
    assert smaller_config(model.config, sizes) == model.config
    whole = small_from(model, sizes).state_dict()
    assert all(torch.equal(whole[name], weight) for name, weight in model.state_dict().items())
    if kind in NOT_TURNED:
        assert NOT_TURNED[kind] in refusal(fold_gains, model)
    else:
        fold_gains(model)
        reorder(model, Order(torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(4)))[0]))
        assert difference(logits(model), before) < 1e-12
        assert not torch.allclose(model.embedding.weight, whole["embedding.weight"])
    reorder(model, shuffled(model.config))
    assert difference(logits(model), before) < 1e-12


def test_the_covariance_is_diagonal_and_falls_after_turning_to_its_axes() -> None:
    model = drawn(small_model(**cases.GQA))
    fold_gains(model)
    before = covariance(model, [TOKENS])
    reorder(model, Order(torch.linalg.eigh(before).eigenvectors.flip(-1)))
    turned = covariance(model, [TOKENS])
    energy = turned.diag()
    assert difference(turned, energy.diag()) < 1e-12
    assert (energy.diff() <= 0).all()
    assert float(energy.sum()) == pytest.approx(float(before.diag().sum()))


def check_cut_by_need(model: Decoder, sizes: list[LayerSizes]) -> None:
    before = logits(model)
    reorder(model, order_of_need(layer_needs(model, measure(model, [TOKENS]))))
    small = small_from(model, sizes)
    assert difference(logits(small), before) < 1e-12
    assert sum(p.numel() for p in small.parameters()) == small.config.cost().params < model.config.cost().params


@pytest.mark.parametrize("kind", ["llama", "gqa", "qwen", "gpt2"])
def test_units_and_groups_that_write_nothing_come_last_and_are_cut_exactly(kind: str) -> None:
    model = drawn(small_model(**KINDS[kind]))
    whole = layer_sizes(model.config)
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            layer.ffn.w_down.weight[:, [1, 4, 7]] = 0
            layer.attention.w_o.weight.view(model.config.d_model, whole[i].n_kv_heads, -1)[:, 0] = 0
    sizes = [LayerSizes(each.d_model, each.n_kv_heads - 1, each.n_hidden - 3) for each in whole]
    check_cut_by_need(model, sizes)


def test_experts_that_no_token_chooses_and_units_that_write_nothing_come_last_and_are_cut_exactly() -> None:
    """Of 2 of the logits x, -x, y, -y and 0, 0 is never chosen; in each other expert other units write nothing."""
    mixture = {"kind": "moe", "n_experts": 5, "top_k": 2, "d_expert": 4, "n_shared_experts": 1}
    model = drawn(small_model(ffn=mixture))
    with torch.no_grad():
        for layer in model.layers:
            router = layer.ffn.w_router.weight
            router[2:4] = -router[:2]
            router[4] = 0
            for expert, matrix in enumerate(layer.ffn.w_down.weight.unflatten(0, (5, -1))):
                matrix[:, [expert % 4, (expert + 1) % 4]] = 0
    sizes = [each._replace(n_experts=4, n_hidden=2) for each in layer_sizes(model.config)]
    check_cut_by_need(model, sizes)


def test_a_layer_that_writes_nothing_is_left_out_exactly() -> None:
    model = drawn(small_model())
    with torch.no_grad():
        for part in (model.layers[1].attention.w_o, model.layers[1].ffn.w_down):
            part.weight.zero_()
    before, (first, _, last) = logits(model), layer_sizes(model.config)
    small = small_from(model, [first, REMOVED, last])
    assert small.config.layers == (model.config.layers[0], model.config.layers[2])
    assert difference(logits(small), before) < 1e-12


@pytest.mark.parametrize("endpoints", ["slim", "full"])
def test_the_whole_stream_is_cut_where_layers_are_wider_than_it(endpoints: str) -> None:
    """Coordinates that the embedding leaves 0 and no layer writes: cut, they leave the function as it is.

    But for the eps of the norms, which stays as it is where the mean is over fewer squares.
    """
    model, n_left = drawn(shaped([16, 8, 16], endpoints, norm={"eps": 1e-18})), 10
    with torch.no_grad():
        for owner in model.modules():
            if isinstance(owner, Weight) and not isinstance(owner, Norm):
                for dim, axes in enumerate(owner.dimensions):
                    if "d_model" in axes and (owner is model.embedding or axes is owner.out_axes):
                        owner.weight.movedim(dim, -1)[..., n_left:] = 0
    sizes = [each._replace(d_model=min(each.d_model, n_left)) for each in layer_sizes(model.config)]
    small = small_from(model, sizes, n_left)
    assert {width for layer in small.config.layers for width in layer.widths} == {8, n_left}
    assert (small.config.d_model, small.config.final_norm_width) == (n_left, n_left)
    assert difference(logits(small), logits(model)) < 1e-12


NORMS = [*((kind, "norm") for kind in ("llama", "reordered", "offset_gains", "gemma3")), ("gemma3", "norm.post")]


@pytest.mark.parametrize(("kind", "name"), NORMS)
def test_a_narrow_layer_hears_as_much_as_before_and_the_rest_is_carried_past_it(kind: str, name: str) -> None:
    """The first layer is whole, so that the second reads the same, in its first 8 coordinates."""
    model = drawn(small_model(**KINDS[kind]))
    sizes = layer_sizes(model.config)
    sizes[1] = sizes[1]._replace(d_model=8)
    small = small_from(model, sizes)
    assert small.config.widths == [12, 8, 12]
    assert small.embedding.weight.shape == model.embedding.weight.shape
    measured: list[Tensor] = []
    norm, cut_norm = (each.layers[1].attention.get_submodule(name) for each in (model, small))
    hook = norm.register_forward_pre_hook(lambda _, inputs: measured.append(inputs[0].detach()))
    logits(model)
    hook.remove()
    (x,) = measured
    kept = (x / x.square().mean(dim=-1, keepdim=True).sqrt())[..., :8].square().sum() / x[..., 0].numel() / 12
    gains = [norm.gain_offset + norm.weight for norm in (norm, cut_norm)]
    assert torch.allclose(gains[1], gains[0][:8] * (float(kept) * 12 / 8) ** 0.5, rtol=1e-9)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mixture", "mixture_reordered", "mixture_between_norms"])
def test_taylor_is_the_slope_of_the_loss_along_each_unit(kind: str) -> None:
    """Against central differences: the loss where one hidden unit of one layer is scaled by 1 + e and 1 - e."""
    model = drawn(small_model(**KINDS[kind]))
    needs = layer_needs(model, measure(model, [TOKENS]))
    written, step = model.layers[1].ffn.w_down.weight, 1e-5
    columns = [column for matrix in written.unflatten(0, (len(needs[1].units), -1)) for column in matrix.unbind(dim=1)]

    @torch.no_grad()
    def loss(column: Tensor, factor: float) -> float:
        kept = column.clone()
        column *= factor
        found = model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).objective
        column.copy_(kept)
        return float(found)

    slopes = [abs(loss(column, 1 + step) - loss(column, 1 - step)) / (2 * step) for column in columns]
    assert needs[1].units.flatten().tolist() == pytest.approx(slopes, rel=1e-5)


@pytest.mark.parametrize(("kind", "n_rows"), [("gqa", 4), ("mixture", 1)])
def test_need_does_not_depend_on_how_a_batch_is_split(kind: str, n_rows: int) -> None:
    model = drawn(small_model(**KINDS[kind]))
    batches = [torch.arange(8 * (SEQ_LEN + 1)).view(8, -1) * factor % VOCAB_SIZE for factor in (5, 7)]
    whole, split = (layer_needs(model, measure(model, batches, n_rows=n)) for n in (None, n_rows))
    for one, other in zip(whole, split, strict=True):
        torch.testing.assert_close(vars(one), vars(other), rtol=1e-9, atol=1e-12)


def test_measuring_leaves_the_model_as_it_was() -> None:
    model = drawn(small_model())
    model.embedding.weight.requires_grad_(False)
    before = logits(model)
    covariance(model, [TOKENS])
    measure(model, [TOKENS, TOKENS])
    assert torch.equal(logits(model), before)
    assert [name for name, weight in model.named_parameters() if not weight.requires_grad] == ["embedding.weight"]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_what_is_lost_is_all_that_lies_behind_the_cut() -> None:
    units = torch.tensor([[7.0, 2.0, 0.5], [4.0, 1.0, 0.25]])
    need = LayerNeed(torch.arange(5.0), torch.tensor([3.0, 1.0]), units)
    assert need.lost(LayerSizes(5, 2, 3, 2)) == 0
    assert need.lost(LayerSizes(3, 1, 1, 2)) == (3 + 4) + 1 + (2.5 + 1.25)
    assert need.lost(LayerSizes(5, 2, 2, 1)) == 0.5 + 5.25
    assert need.lost(REMOVED) == (3 + 1) + (9.5 + 5.25)


CUT_IN_ORDER = "; can be cut: feed-forwards with one row of units in any order"
UNCUT = [
    (cases.SLOTS, {}, "residual.kind: got hyper_connections; needs a plain residual"),
    (cases.HOURGLASS, {}, f"layers.0.ffn.kind: got hourglass{CUT_IN_ORDER}"),
    (cases.DYNAMIC, {}, f"layers.0.ffn.kind: got dynamic{CUT_IN_ORDER}"),
    (cases.ONE_QK_NORM, {}, "layers.0.attention.qk_norm.over: got all_heads; that norm changes if heads are cut"),
    (cases.MTP, {}, "mtp: MTP heads cannot be cut"),
    (cases.MOE, {"n_experts": 1}, "layers.0.ffn.top_k: got 2; must be at most n_experts = 1"),
    ({}, {"n_hidden": 11}, "layers.0.n_hidden: got 11 where there are 10"),
]


@pytest.mark.parametrize(("changes", "size", "reason"), UNCUT)
def test_what_cannot_be_cut_is_refused_with_the_reason(changes: dict, size: dict, reason: str) -> None:
    model = small_model(**changes)
    if size:
        sizes = [each._replace(**size) for each in layer_sizes(model)]
        assert refusal(smaller_config, model, sizes).startswith(reason)
    else:
        assert refusal(check_can_shrink, model).startswith(reason)
