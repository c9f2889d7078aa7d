"""What an hourglass is equal to, and what its options do. What every feed-forward promises is in test_ffn_contract."""

import math
from itertools import pairwise

import pytest
import torch
from literal_decoder import literal_logits
from model_cases import SEQ_LEN, WIDTHS, config, decoder, random_tokens, template
from torch.nn.functional import gelu, relu
from torch.utils.checkpoint import checkpoint

from widthwise.config_io import UserError, parse
from widthwise.model.axes import RMSNorm
from widthwise.model.context import PassContext
from widthwise.model.decoder import Decoder, build
from widthwise.model.ffn.hourglass import HourglassConfig, HourglassTemplate
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig, SwiGLUTemplate
from widthwise.model.norm import NormConfig, NormSite
from widthwise.shape.kinds import ExplicitShape
from widthwise.shape.template import ModelTemplate

pytestmark = pytest.mark.usefixtures("float64")

D_MODEL, D_OUT = 21, 13
PLACEMENTS = ("pre", "reordered")
BLOCK_NORMS = (*PLACEMENTS, "shared", "none")
RESIZED_SHAPES = [("x", "slim", "carry"), ("zigzag", "full", "zero"), ("zigzag", "slim", "projection")]
TIGHT = {"rtol": 1e-10, "atol": 1e-12}
SHARED = {"n_blocks": 3, "d_hidden": 7}
CONTEXT = PassContext(torch.zeros(2, 5, dtype=torch.long), rope={}, mask=None, progress=torch.ones(()))


def norm_site(placement, d_model=D_MODEL, d_out=D_MODEL, n_more=0):
    width = d_model if placement == "pre" else d_out
    return NormSite(placement, NormConfig(eps=1e-5, norm_dim=width + n_more))


def filled(module, seed=0):
    """Random weights that keep the size of what they multiply, gains around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for owner in module.modules():
            for parameter in owner.parameters(recurse=False):
                noise = torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[-1])
                parameter.copy_(noise + isinstance(owner, RMSNorm))
    return module


def hourglass(placement="pre", d_model=D_MODEL, d_out=None, **options):
    d_out = d_out or d_model
    return filled(HourglassConfig(**options).build(d_model, d_out, norm_site(placement, d_model, d_out)))


def update(module, x):
    return module(x, CONTEXT)[0]


def stream(d_model=D_MODEL, seed=1):
    return torch.randn(2, 5, d_model, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def gradients(output, inputs):
    """Gradients of a fixed random combination of the output's entries."""
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    return torch.autograd.grad((output * direction).sum(), inputs)


class TestOneBlock:
    @pytest.mark.parametrize("placement", PLACEMENTS)
    @pytest.mark.parametrize("d_out", [D_MODEL, D_OUT])
    def test_is_the_conventional_feed_forward_bitwise(self, placement, d_out):
        conventional = filled(SwiGLUConfig(d_ff=9).build(D_MODEL, d_out, norm_site(placement, d_out=d_out)))
        one = hourglass(placement, d_out=d_out, n_blocks=1, d_hidden=9)
        one.load_state_dict({f"blocks.0.{name}": weight for name, weight in conventional.state_dict().items()})
        x, y = stream(), stream()
        ours, theirs = update(one, x), update(conventional, y)
        assert torch.equal(ours, theirs)
        found, expected = gradients(ours, (x, *one.parameters())), gradients(theirs, (y, *conventional.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

    @pytest.mark.parametrize("activation", ["gelu", "relu2", "silu"])
    def test_without_a_gate_is_the_mlp_bitwise(self, activation):
        conventional = filled(MLPConfig(d_ff=9, activation=activation).build(D_MODEL, D_OUT, norm_site("pre")))
        one = hourglass(d_out=D_OUT, n_blocks=1, d_hidden=9, gated=False, activation=activation)
        one.load_state_dict({f"blocks.0.{name}": weight for name, weight in conventional.state_dict().items()})
        x = stream()
        assert torch.equal(update(one, x), update(conventional, x))

    @pytest.mark.parametrize("activation", ["gelu", "relu", "relu2"])
    def test_with_another_activation_multiplies_it_with_what_goes_up(self, activation):
        one, x = hourglass(norm="none", n_blocks=1, d_hidden=9, activation=activation), stream()
        gate, up, down = (getattr(one.blocks[0], name).weight for name in ("w_gate", "w_up", "w_down"))
        function = {"gelu": gelu, "relu": relu, "relu2": lambda h: relu(h) ** 2}[activation]
        torch.testing.assert_close(update(one, x), (function(x @ gate.T) * (x @ up.T)) @ down.T, **TIGHT)

    @pytest.mark.parametrize(("shape", "endpoints", "resize"), RESIZED_SHAPES)
    def test_makes_the_decoder_of_swiglu_from_the_same_seed(self, shape, endpoints, resize):
        conventional, one = (
            build(config(shape, endpoints, residual={"kind": "plain", "resize": resize}, ffn=ffn), seed=3)
            for ffn in ({"kind": "swiglu", "ratio": 1.7}, {"kind": "hourglass", "n_blocks": 1, "ratio": 1.7})
        )
        tokens = random_tokens(2, 5)
        assert torch.equal(conventional(tokens), one(tokens))


class TestComposition:
    @pytest.mark.parametrize("placement", [*PLACEMENTS, "none"])
    def test_a_stack_is_its_parts_one_after_the_other(self, placement):
        whole = hourglass(n_blocks=3, d_hidden=(5, 9, 4), norm=placement)
        first = hourglass(n_blocks=1, d_hidden=5, norm=placement)
        rest = hourglass(n_blocks=2, d_hidden=(9, 4), norm=placement)
        for part, offset in ((first, 0), (rest, 1)):
            for i, block in enumerate(part.blocks):
                block.load_state_dict(whole.blocks[offset + i].state_dict())
        x, y = stream(), stream()
        middle = y + update(first, y)
        at_once, in_turn = x + update(whole, x), middle + update(rest, middle)
        torch.testing.assert_close(at_once, in_turn, **TIGHT)
        found = gradients(at_once, (x, *whole.parameters()))
        expected = gradients(in_turn, (y, *first.parameters(), *rest.parameters()))
        for ours, truth in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, truth, **TIGHT)

    @pytest.mark.parametrize(("shape", "endpoints", "resize"), RESIZED_SHAPES)
    @pytest.mark.parametrize("placement", PLACEMENTS)
    def test_blocks_are_layers_without_attention(self, shape, endpoints, resize, placement):
        """Layer i of K blocks is K layers of the same width, the attention of all but the first silent."""
        n_blocks, multiplier = 3, 0.7
        changes = {
            "residual": {"kind": "plain", "resize": resize, "multiplier": multiplier},
            "norm": {"placement": placement},
        }
        ffn = {"kind": "hourglass", "n_blocks": n_blocks, "d_hidden": 7, "block_multiplier": multiplier}
        stacked = decoder(config(shape, endpoints, ffn=ffn, **changes))
        widths = tuple(width for width in WIDTHS[shape] for _ in range(n_blocks))
        layers = {
            "n_layers": len(widths),
            "shape": ExplicitShape(widths=widths, endpoints=endpoints),
            "ffn": SwiGLUTemplate(d_ff=7),
        }
        flat = decoder(template(shape, endpoints, **changes).model_copy(update=layers).resolve(SEQ_LEN))
        names = flat_names(stacked, n_blocks)
        flat.load_state_dict({names[name]: weight for name, weight in stacked.state_dict().items()}, strict=False)
        silence_attention(flat, [i for i in range(len(widths)) if i % n_blocks])
        tokens = random_tokens(2, 5)
        logits, expected = stacked(tokens), flat(tokens)
        torch.testing.assert_close(logits, expected, **TIGHT)
        theirs = dict(flat.named_parameters())
        ours = dict(stacked.named_parameters())
        found = gradients(logits, list(ours.values()))
        truths = gradients(expected, [theirs[names[name]] for name in ours])
        for gradient, truth in zip(found, truths, strict=True):
            torch.testing.assert_close(gradient, truth, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("block", range(3))
    @pytest.mark.parametrize("norm", BLOCK_NORMS)
    def test_a_silent_block_can_be_left_out(self, norm, block):
        longer, shorter = (hourglass(n_blocks=n, d_hidden=7, norm=norm) for n in (3, 2))
        weights = longer.state_dict()
        weights[f"blocks.{block}.w_down.weight"].zero_()
        rest = [i for i in range(3) if i != block]
        for ours, theirs in enumerate(rest):
            shorter.blocks[ours].load_state_dict(longer.blocks[theirs].state_dict())
        shorter.norm.load_state_dict(longer.norm.state_dict())
        torch.testing.assert_close(update(longer, stream()), update(shorter, stream()), **TIGHT)

    @pytest.mark.parametrize("norm", BLOCK_NORMS)
    def test_an_hourglass_of_silent_blocks_changes_nothing(self, norm):
        module = hourglass(n_blocks=3, d_hidden=7, norm=norm)
        for block in module.blocks:
            block.w_down.weight.data.zero_()
        assert (update(module, stream()) == 0).all()

    def test_hidden_channels_that_nothing_reads_can_be_left_out(self):
        wide, narrow = (hourglass(n_blocks=2, d_hidden=d_hidden) for d_hidden in (9, 5))
        for ours, theirs in zip(narrow.blocks, wide.blocks):
            theirs.w_down.weight.data[:, 5:] = 0
            parts = {"w_gate": slice(5), "w_up": slice(5), "w_down": (slice(None), slice(5)), "norm": slice(None)}
            ours.load_state_dict({f"{name}.weight": getattr(theirs, name).weight[part] for name, part in parts.items()})
        torch.testing.assert_close(update(wide, stream()), update(narrow, stream()), **TIGHT)


def flat_names(stacked: Decoder, n_blocks: int) -> dict[str, str]:
    """Name of a weight of the stacked decoder -> its name where every block is a layer."""
    names = {}
    for name in stacked.state_dict():
        parts = name.split(".")
        if parts[0] == "layers":
            layer = n_blocks * int(parts[1])
            is_block = parts[2] == "ffn"
            parts[1] = str(layer + int(parts[4]) if is_block else layer)
            parts = parts[:3] + parts[5:] if is_block else parts
        names[name] = ".".join(parts)
    return names


def silence_attention(model: Decoder, layers) -> None:
    with torch.no_grad():
        for i in layers:
            model.layers[i].attention.w_o.weight.zero_()


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_the_layer_adds_the_update_to_the_stream_once(n_blocks):
    multiplier = 0.7
    ffn = {"kind": "hourglass", "n_blocks": n_blocks, "d_hidden": 7}
    model = decoder(config("uniform", residual={"kind": "plain", "multiplier": multiplier}, ffn=ffn))
    silence_attention(model, range(model.config.n_layers))  # so that what a feed-forward reads is what its layer reads
    seen = []
    for layer in model.layers:
        layer.ffn.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output[0])))
    model(random_tokens(2, 5))
    for (x, change), (x_after, _) in pairwise(seen):
        torch.testing.assert_close(x_after, x + multiplier * change, **TIGHT)


def test_for_small_updates_a_stack_is_one_wide_block_up_to_second_order():
    """Blocks that hear little of each other: halving their outputs quarters what they hear."""
    n_blocks, d_hidden = 3, 7
    stack = hourglass(n_blocks=n_blocks, d_hidden=d_hidden)
    wide = filled(SwiGLUConfig(d_ff=n_blocks * d_hidden).build(D_MODEL, D_MODEL, norm_site("pre")))
    with torch.no_grad():
        for module in (*stack.modules(), *wide.modules()):
            if isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
        for name, axis in (("w_gate", 0), ("w_up", 0), ("w_down", 1)):
            getattr(wide, name).weight.copy_(torch.cat([getattr(b, name).weight for b in stack.blocks], dim=axis))
    x, outs = stream(), [wide.w_down, *(block.w_down for block in stack.blocks)]
    full = [out.weight.detach().clone() for out in outs]

    def difference(epsilon):
        for out, weight in zip(outs, full):
            out.weight.data = epsilon * weight
        return (update(stack, x) - update(wide, x)).norm().item()

    epsilons = [1e-3 / 2**i for i in range(4)]
    for epsilon in epsilons[:-1]:
        assert difference(epsilon) / difference(epsilon / 2) == pytest.approx(4.0, abs=0.02)


@pytest.mark.parametrize("norm", BLOCK_NORMS)
@pytest.mark.parametrize("share_weights", [False, True])
def test_gradcheck(norm, share_weights):
    module = hourglass(
        d_model=5, d_out=3, n_blocks=2, d_hidden=2, norm=norm, share_weights=share_weights, block_multiplier=0.6
    )
    names = [name for name, _ in module.named_parameters()]

    def call(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters)), (x, CONTEXT))[0]

    assert torch.autograd.gradcheck(call, (stream(5), *module.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputed_activations_give_identical_gradients(dtype):
    module, found = hourglass(n_blocks=4, d_hidden=7).float(), []
    for recompute in (False, True):
        x = stream().detach().float().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            y = checkpoint(lambda x: update(module, x), x, use_reentrant=False) if recompute else update(module, x)
        found.append(gradients(y.double(), (x, *module.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"norm": "shared"}, {"share_weights": True}])
def test_compiles_as_one_graph(options):
    torch._dynamo.reset()
    module = hourglass(n_blocks=3, d_hidden=7, **options).float()
    x = stream().detach().float().requires_grad_()
    eager, compiled = (
        update(module, x),
        torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)(x, CONTEXT)[0],
    )
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
    inputs = (x, *module.parameters())
    for ours, truth in zip(gradients(compiled, inputs), gradients(eager, inputs), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"norm": "shared"}, {"share_weights": True}])
def test_state_dict_round_trip(options):
    module, other = hourglass(n_blocks=3, d_hidden=7, **options), HourglassConfig(n_blocks=3, d_hidden=7, **options)
    other = filled(other.build(D_MODEL, D_MODEL, norm_site("pre")), seed=9)
    assert not torch.equal(update(module, stream()), update(other, stream()))
    other.load_state_dict(module.state_dict())
    assert torch.equal(update(module, stream()), update(other, stream()))


class TestInitialWeights:
    D, N_LAYERS, N_TOKENS = 96, 4, 40

    def model(self, n_blocks, depth_scaled):
        """Matrices of std 1 / sqrt(d_model), which keep the variance of what they read."""
        torch.set_default_dtype(torch.float32)
        data = {
            "vocab_size": 61,
            "d_model": self.D,
            "n_layers": self.N_LAYERS,
            "attention": {"head_dim": 32},
            "ffn": {"kind": "hourglass", "n_blocks": n_blocks, "d_hidden": self.D // 2},
            "embedding_multiplier": math.sqrt(self.D),
            "init": {"std": 1 / math.sqrt(self.D), "depth_scaled": depth_scaled},
        }
        return build(parse(ModelTemplate, data).resolve(8), seed=1)

    @pytest.mark.parametrize("n_blocks", [1, 8])
    @pytest.mark.parametrize("depth_scaled", [False, True])
    def test_standard_deviations(self, n_blocks, depth_scaled):
        model = self.model(n_blocks, depth_scaled)
        n_updates = self.N_LAYERS * (1 + n_blocks)
        for name, parameter in model.named_parameters():
            if name.startswith("layers.") and not name.endswith("norm.weight"):
                writes = name.endswith(("w_o.weight", "w_down.weight")) and depth_scaled
                expected = 1 / math.sqrt(self.D * (n_updates if writes else 1))
                assert abs(parameter.std().item() / expected - 1) < 5 / math.sqrt(2 * parameter.numel()), name

    @pytest.mark.parametrize("n_blocks", [1, 8])
    @pytest.mark.parametrize("depth_scaled", [False, True])
    def test_the_stream_grows_by_independent_updates(self, n_blocks, depth_scaled):
        """A block adds d_hidden / d_model * E[silu(g)^2] to the mean square, g normal; over the updates if scaled."""
        model = self.model(n_blocks, depth_scaled)
        silence_attention(model, range(self.N_LAYERS))
        g = torch.linspace(-9, 9, 20001, dtype=torch.float64)
        density = torch.exp(-(g**2) / 2) / math.sqrt(2 * math.pi)
        per_block = 0.5 * torch.trapezoid(density * torch.nn.functional.silu(g) ** 2, g).item()
        n_updates = self.N_LAYERS * (1 + n_blocks) if depth_scaled else 1
        expected = self.N_LAYERS * n_blocks * per_block / n_updates
        assert self.growth(model) == pytest.approx(expected, rel=0.2)

    @pytest.mark.parametrize("n_blocks", [1, 8])
    def test_scaled_by_depth_the_mean_square_grows_by_less_than_one_whatever_the_number_of_blocks(self, n_blocks):
        assert 0 < self.growth(self.model(n_blocks, depth_scaled=True)) < 1

    def growth(self, model):
        """How much the mean square of the stream, which is 1 at the embedding, grows over all layers."""
        streams = []
        model.layers[0].register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0]))
        model.layers[-1].register_forward_hook(lambda module, inputs, output: streams.append(output[0]))
        with torch.no_grad():
            model(random_tokens(8, self.N_TOKENS))
        first, last = (model.config.residual.to_slots(each, self.D).square().mean().item() for each in streams)
        assert first == pytest.approx(1, abs=0.1)
        return last - first


class TestSharedWeights:
    def test_are_there_once_and_every_block_has_a_norm(self):
        options = HourglassConfig(share_weights=True, **SHARED)
        module = options.build(D_MODEL, D_MODEL, norm_site("pre"))
        assert sum(p.numel() for p in module.parameters()) == 3 * D_MODEL * 7 + 3 * D_MODEL
        assert {name for name, _ in module.named_parameters()} == {
            *(f"blocks.0.w_{part}.weight" for part in ("gate", "up", "down")),
            *(f"blocks.{i}.norm.weight" for i in range(3)),
        }

    def test_learn_from_every_use(self):
        shared, separate = (hourglass(share_weights=share, **SHARED) for share in (True, False))
        separate.load_state_dict(shared.state_dict())
        ours, theirs = update(shared, stream()), update(separate, stream())
        torch.testing.assert_close(ours, theirs, **TIGHT)
        for name in ("w_gate", "w_up", "w_down"):
            (found,) = gradients(update(shared, stream()), [getattr(shared.blocks[0], name).weight])
            uses = gradients(update(separate, stream()), [getattr(block, name).weight for block in separate.blocks])
            torch.testing.assert_close(found, sum(uses), **TIGHT)

    def test_stay_shared_when_the_decoder_is_built(self):
        model = build(config("x", ffn={"kind": "hourglass", "share_weights": True, **SHARED}), seed=0)
        for layer in model.layers:
            assert len({id(block.w_gate.weight) for block in layer.ffn.blocks}) == 1
        assert sum(p.numel() for p in model.parameters()) == model.config.cost().params


@pytest.mark.parametrize(("shape", "endpoints", "resize"), RESIZED_SHAPES)
def test_each_layer_has_its_own_blocks(shape, endpoints, resize):
    layers = {
        0: {"ffn": {"n_blocks": 1}},
        1: {"ffn": {"n_blocks": 2, "d_hidden": [11, 5], "norm": "shared"}},
        3: {"ffn": {"kind": "swiglu", "d_ff": 9}},
        4: {"ffn": {"n_blocks": 4}},
    }
    ffn = {"kind": "hourglass", "n_blocks": 3, "d_hidden": 6}
    resolved = config(shape, endpoints, ffn=ffn, layers=layers, residual={"kind": "plain", "resize": resize})
    assert [layer.ffn.hidden_widths for layer in resolved.layers] == [(6,), (11, 5), (6, 6, 6), (9,), (6, 6, 6, 6)]
    assert resolved.n_residual_additions == 5 + 1 + 2 + 3 + 1 + 4
    model, tokens = decoder(resolved), random_tokens(2, 5)
    assert sum(p.numel() for p in model.parameters()) == resolved.cost().params
    torch.testing.assert_close(model(tokens), literal_logits(model, tokens), **TIGHT)


def test_works_in_the_layer_of_olmo_2():
    """Reordered norms and queries and keys normalised over all heads."""
    changes = {"norm": {"placement": "reordered"}, "attention": {"qk_norm": {"over": "all_heads"}}}
    model = decoder(config("uniform", ffn={"kind": "hourglass", "n_blocks": 2, "d_hidden": 7}, **changes))
    tokens = random_tokens(2, 5)
    torch.testing.assert_close(model(tokens), literal_logits(model, tokens), **TIGHT)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("norm", BLOCK_NORMS)
@pytest.mark.parametrize(("share_weights", "n_more"), [(False, 4), (True, 0)])
def test_every_norm_divides_by_the_width_it_sees(placement, norm, share_weights, n_more):
    """And by what the layer's norm divides by beyond its own width."""
    site = norm_site(placement, D_MODEL, D_OUT, n_more)
    options = HourglassConfig(n_blocks=2, d_hidden=7, norm=norm, share_weights=share_weights)
    norms = [module for module in options.build(D_MODEL, D_OUT, site).modules() if isinstance(module, RMSNorm)]
    assert len(norms) == {"shared": 1, "none": 0}.get(norm, 2)
    assert all(module.norm_dim == module.weight.numel() + n_more for module in norms)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_blocks": 0}, "n_blocks: got 0"),
        ({"d_hidden": 0}, "d_hidden: got 0"),
        ({"d_hidden": 5, "ratio": 0.4}, "not both"),
        ({"norm": "post"}, "norm: got 'post'"),
    ],
)
def test_mistakes_in_a_recipe_are_named(options, message):
    with pytest.raises(UserError, match=message):
        parse(HourglassTemplate, {"kind": "hourglass", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_hidden": [5, 3, 2]}, "got 3 widths for n_blocks = 2"),
        ({"d_hidden": [5, 3], "share_weights": True}, "no matrices in common"),
        ({"d_hidden": [5, 0]}, "d_hidden"),
    ],
)
def test_mistakes_in_a_layer_are_named(options, message):
    with pytest.raises(UserError, match=message):
        parse(HourglassConfig, {"n_blocks": 2, **options})
