from contextlib import nullcontext
from itertools import cycle

import pytest
import torch
from measured import counted_flops, kept_bytes, on_meta
from model_cases import config, decoder, random_tokens
from torch.nn.attention import SDPBackend, sdpa_kernel

from widthwise.config_io import UserError, parse, to_data
from widthwise.kernels.attention import sdpa
from widthwise.model.attention import AttentionConfig, AttentionTemplate, QKNormConfig
from widthwise.model.context import PassContext
from widthwise.model.norm import NormConfig, NormSite
from widthwise.model.rope import rope_table

SITE = NormSite("none", NormConfig(norm_dim=7))
SIZES = [(6, 6), (6, 3), (6, 9), (2, 8), (5, 2)]
"""Size of the heads of queries and keys, and of those of values."""
HEADS = [(3, 3), (4, 2), (6, 1)]


def heads(head_dim, v_head_dim, n_heads=4, n_kv_heads=2, length=9, dtype=torch.float64):
    """Queries, keys and values, as attention takes them."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(n_heads, head_dim), (n_kv_heads, head_dim), (n_kv_heads, v_head_dim)]
    drawn = (torch.randn(2, n, length, size, generator=generator, dtype=torch.float64) for n, size in shapes)
    return [x.to(dtype).requires_grad_() for x in drawn]


def written_out(queries, keys, values, mask, scale):
    """One query head after the other."""
    group = queries.shape[1] // keys.shape[1]
    found = []
    for head in range(queries.shape[1]):
        scores = scale * queries[:, head] @ keys[:, head // group].transpose(1, 2)
        found.append(scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values[:, head // group])
    return torch.stack(found, dim=1)


@pytest.mark.parametrize(
    ("head_dim", "v_head_dim", "n_heads", "n_kv_heads"), [s + h for s, h in zip(SIZES, cycle(HEADS))]
)
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("backend", [None, SDPBackend.MATH])
def test_values_of_any_size_are_weighted_by_the_softmax(head_dim, v_head_dim, n_heads, n_kv_heads, is_masked, backend):
    inputs = heads(head_dim, v_head_dim, n_heads, n_kv_heads)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    if is_masked:
        mask[5:, 2] = False
    with nullcontext() if backend is None else sdpa_kernel(backend):
        ours = sdpa.attention(*inputs, 0.7, mask=mask[None, None] if is_masked else None)
    truth = written_out(*inputs, mask, 0.7)
    assert ours.shape == (2, n_heads, 9, v_head_dim)
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-12)
    direction = torch.randn(truth.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = [torch.autograd.grad((out * direction).sum(), inputs) for out in (ours, truth)]
    for gradient, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("head_dim", "v_head_dim"), SIZES)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_so_they_are_in_fewer_bits(head_dim, v_head_dim, dtype, bound):
    inputs = heads(head_dim, v_head_dim, dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    ours = sdpa.attention(*inputs, 0.7)
    truth = written_out(*exact, torch.ones(9, 9, dtype=torch.bool).tril(), 0.7)
    assert ours.dtype == dtype
    assert (ours - truth).norm() < bound * truth.norm()
    gradients = [torch.autograd.grad(out.square().sum(), of) for out, of in ((ours, inputs), (truth, exact))]
    for gradient, expected in zip(*gradients, strict=True):
        assert (gradient - expected).norm() < bound * expected.norm()


@pytest.mark.parametrize(("head_dim", "v_head_dim"), SIZES)
def test_what_autograd_keeps_grows_with_the_length_and_not_with_its_square(head_dim, v_head_dim):
    kept = [kept_bytes(lambda n=n: sdpa.attention(*heads(head_dim, v_head_dim, length=n), 0.7)) for n in (32, 64)]
    assert kept[1] == 2 * kept[0]


def attention_configs():
    heads = cycle(HEADS)
    for head_dim, v_head_dim in SIZES:
        for rope_base in (50.0, None):
            n_heads, n_kv_heads = next(heads)
            for qk_norm in (None, QKNormConfig(), QKNormConfig(over="all_heads", q_norm_dim=3)):
                if rope_base is None or head_dim % 2 == 0:
                    yield AttentionConfig(
                        n_heads=n_heads,
                        n_kv_heads=n_kv_heads,
                        head_dim=head_dim,
                        v_head_dim=None if v_head_dim == head_dim else v_head_dim,
                        scale=0.6,
                        rope_base=rope_base,
                        bias=v_head_dim != 3,
                        out_bias=n_heads != 4,
                        qk_norm=qk_norm,
                    )


def context(resolved, batch, length, device="cpu"):
    rope, tokens = resolved.rope, torch.zeros(batch, length, device=device)
    places = torch.arange(length, device=device)[None]
    tables = {} if rope is None else {rope: rope_table(places, rope)}
    return PassContext(tokens, tables, mask=None, progress=torch.ones(()))


@pytest.mark.parametrize("resolved", list(attention_configs()), ids=str)
def test_cost_equals_sizes_flops_and_what_autograd_keeps(resolved):
    d_model, d_in, n = 11, 7, 9
    cost = resolved.cost(d_model, d_in)
    module = on_meta(lambda: resolved.build(d_model, d_in, SITE))
    inside = [p.numel() for name, p in module.named_parameters() if "norm" not in name]
    assert cost.params == cost.active_params == sum(inside)
    x = torch.zeros(1, n, d_in, device="meta")
    assert cost.forward_flops(n) * n == counted_flops(lambda: module(x, context(resolved, 1, n, "meta")))

    module = resolved.build(d_model, d_in, SITE)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, mean=1.0, std=0.1)

    def measured(batch: int) -> int:
        return kept_bytes(lambda: module(torch.ones(batch, n, d_in, requires_grad=True), context(resolved, batch, n)))

    whole = cost + resolved.norm_cost(d_model, d_in, SITE)
    assert measured(3) - measured(1) == 2 * n * whole.activation_bytes(bytes_per_element=4)


def test_axes_of_the_matrices_have_names_and_sizes():
    layer = config("x", layers={0: {"attention": {"n_heads": 4, "head_dim": 6, "v_head_dim": 5}}}).layers[0]
    module = on_meta(lambda: layer.attention.build(36, 20, SITE))
    kv_heads = layer.attention.n_kv_heads
    assert module.w_q.out_axes == {"n_heads": 4, "head_dim": 6}
    assert module.w_k.out_axes == {"n_kv_heads": kv_heads, "head_dim": 6}
    assert module.w_v.out_axes == {"n_kv_heads": kv_heads, "v_head_dim": 5}
    assert module.w_o.in_axes == {"n_heads": 4, "v_head_dim": 5}


@pytest.mark.parametrize("over", ["head", "all_heads"])
def test_a_norm_of_queries_divides_by_what_it_is_told(over):
    """Four times the divisor and a quarter of eps is twice the output."""
    plain = QKNormConfig(over=over, eps=0.4).build({"n_heads": 3, "head_dim": 5}, None)
    n = 5 if over == "head" else 15
    told = QKNormConfig(over=over, eps=0.1).build({"n_heads": 3, "head_dim": 5}, 4 * n)
    assert plain.norm_dim == n
    x = torch.randn(2, n, generator=torch.Generator().manual_seed(0))
    for norm in (plain, told):
        torch.nn.init.ones_(norm.weight)
    torch.testing.assert_close(told(x), 2 * plain(x))


@pytest.mark.parametrize(("rope_base", "matters"), [(None, False), (10.0, True)])
def test_without_rotation_the_order_of_earlier_tokens_does_not_matter(rope_base, matters):
    resolved = AttentionConfig(n_heads=2, n_kv_heads=1, head_dim=4, scale=1.0, rope_base=rope_base)
    module = resolved.build(7, 7, SITE).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x = torch.randn(1, 6, 7, generator=generator, dtype=torch.float64)
    last = [module(each, context(resolved, 1, 6))[:, -1] for each in (x, x[:, [3, 0, 4, 2, 1, 5]])]
    assert ((last[0] - last[1]).abs().max() > 1e-3) == matters
    if not matters:
        torch.testing.assert_close(*last)


@pytest.mark.usefixtures("float64")
def test_a_model_with_its_frequencies_written_out_is_the_same_to_the_bit():
    resolved = config("x", attention={"n_heads": None, "head_dim": 4, "rope_base": 700.0})
    layers = tuple(
        layer.model_copy(
            update={
                "attention": layer.attention.model_copy(
                    update={"rope_frequencies": layer.attention.rope.pair_frequencies, "rope_base": 3.0}
                )
            }
        )
        for layer in resolved.layers
    )
    tokens = random_tokens(2, 9)
    written = decoder(resolved.model_copy(update={"layers": layers}))
    assert torch.equal(written(tokens), decoder(resolved)(tokens))


def test_frequencies_survive_plain_data_to_the_bit():
    resolved = AttentionConfig(
        n_heads=2, n_kv_heads=1, head_dim=4, scale=1.0, rope_frequencies=(1 / 3, 0.1 + 1e-17), v_head_dim=3
    )
    assert parse(AttentionConfig, to_data(resolved), "attention") == resolved


SMALL = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 6, "scale": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 3}, "head_dim: got 3; rotary positions rotate pairs, so it must be even"),
        ({"rope_frequencies": [1.0, 0.1]}, "rope_frequencies: got 2 numbers; must be head_dim / 2 = 3"),
        ({"rope_frequencies": [1.0, 0.1, 0.0]}, "rope_frequencies.2: got 0.0"),
        ({"rope_frequencies": [1.0, 0.1, 0.2], "rope_base": None}, "rope_frequencies: conflicts with rope_base: null"),
        ({"v_head_dim": 0}, "v_head_dim: got 0"),
        ({"n_heads": 3, "n_kv_heads": 2}, "n_kv_heads: got 2; must divide n_heads = 3"),
        ({"qk_norm": {"q_norm_dim": 0}}, "qk_norm.q_norm_dim: got 0"),
    ],
)
def test_mistakes_are_named_in_one_line(changes, message):
    with pytest.raises(UserError) as caught:
        parse(AttentionConfig, SMALL | changes, "attention")
    assert f"attention.{message}" in str(caught.value).replace("attention: ", "attention.")
    assert len(str(caught.value).splitlines()) == 1


class TestTemplate:
    def test_heads_that_do_not_turn_may_be_of_an_odd_size(self):
        assert AttentionTemplate(n_heads=4, rope_base=None).quantum == 4
        assert AttentionTemplate(n_heads=4, rope_base=None).at_width(12).head_dim == 3
        assert parse(AttentionTemplate, {"head_dim": 5, "rope_base": None}, "attention").at_width(15).n_heads == 3
        with pytest.raises(ValueError, match=r"d_model: got 14; attention needs a multiple of 4 \(n_heads\)"):
            AttentionTemplate(n_heads=4, rope_base=None).at_width(14)

    @pytest.mark.parametrize("options", [{}, {"bias": True}, {"bias": True, "out_bias": True, "rope_base": None}])
    @pytest.mark.parametrize("heads", [{"n_heads": 4}, {"head_dim": 6, "kv_group_size": 2}])
    def test_it_costs_what_it_becomes(self, options, heads):
        template = parse(AttentionTemplate, heads | options, "attention")
        assert template.cost(24, 20) == template.at_width(24).cost(24, 20)

    def test_its_options_are_those_of_every_width(self):
        options = {"bias": True, "out_bias": True, "rope_base": 70.0}
        resolved = parse(AttentionTemplate, {"head_dim": 6, **options}, "attention").at_width(12)
        assert {name: getattr(resolved, name) for name in options} == options
        assert (resolved.v_head_dim, resolved.rope_frequencies) == (None, None)


@pytest.mark.parametrize("ratio", [0.004, 0.01, 0.0123])
def test_a_ratio_that_no_small_fraction_meets_is_refused(ratio: float) -> None:
    with pytest.raises(UserError, match=r"ratio: got .*; must be a fraction of whole numbers up to 64"):
        parse(AttentionTemplate, {"n_heads": 2, "ratio": ratio}, "attention")
