"""What every residual variant promises, also those of installed plugins. A new variant is picked up; give it cases
below if its defaults are not all there is to it.
"""

import pytest
import torch
from expansions import add_layers, widen_stream
from growth_contract import assert_preserved, assert_refused_or_preserved, planned_unless_refused, with_other_values
from measured import counted_flops, kept_bytes, on_meta, parameters_by_part
from model_cases import AS_IN_THE_PAPERS, config, decoder, random_tokens

from widthwise.config_io import UserError, checked_copy, parse, to_data
from widthwise.growth.bake.baked import bake_plan
from widthwise.growth.describe import expansions
from widthwise.growth.pad import Multiples, pad_plan
from widthwise.interop.hf_export import hf_config
from widthwise.model.decoder import Decoder
from widthwise.model.kinds import kind_of, load_plugins
from widthwise.model.norm import NormConfig
from widthwise.model.residual.interface import RESIDUALS, SlotLayout

D_MODEL = 20
OPTIONS = {
    "plain": [{}, {"resize": "zero"}, {"resize": "projection", "multiplier": 0.22}, {"resize": "full_projection"}],
    "learned_prefix": [{}, {"min_fraction": 0.3, "start": 0.4, "multiplier": 0.22}],
    "hyper_connections": [
        {"slot_width": 4},
        {"n_fractions": 5, "n_slots": 11, "embedding": "expand", "multiplier": 0.22},
        {"slot_width": 4, "n_slots": 10, "embedding": "expand", "reduce_init": "mean"},
        {"slot_width": 2, "n_slots": 20, "embedding": "pad", "reduce": "slot"},
        {"slot_width": 4, "n_slots": 10, "embedding": "slot", "write_init": "slice", "group_norm": "layer"},
        {"slot_width": 4, "n_slots": 15, "dynamic": False, "reduce": "slot", "group_norm": "none"},
        {"slot_width": 4, "n_slots": 9, "dynamic": False, "embedding": "pad"},
        {"slot_width": 4, "scale": "numbers"},
        {"slot_width": 4, "n_slots": 10, **AS_IN_THE_PAPERS},
        {"slot_width": 5, "n_slots": 9, "writes": "own", "reduce": "slot"},
        {"n_slots": 11, **AS_IN_THE_PAPERS, "dynamic": False},
    ],
}
UNKNOWN = "residual: growth does not know"
SITES = [(5, 5, 5), (5, 2, 2), (2, 9, 9), (9, 9, 5), (1, 3, 7)]
"""Widths of the stream as it arrives, of what a sublayer reads and of what it writes, in a variant's quanta."""


load_plugins()  # an installed plugin keeps the contract too
TEMPLATES = {kind_of(cls): cls for cls in RESIDUALS.templates if kind_of(cls) != "virtual"}
"""`virtual` is hyper-connections under another name."""
CASES = [
    pytest.param({"kind": kind, **options}, id=f"{kind}-{options}")
    for kind in TEMPLATES
    for options in OPTIONS.get(kind, [{}])
]


def make(data: dict):
    """Template and resolved residual of a model where the widest layer is the widest of SITES."""
    template = parse(TEMPLATES[data["kind"]], data)
    widest = max(width for site in SITES for width in site)
    return template, template.at_widths(D_MODEL, [widest * template.quantum(D_MODEL), D_MODEL])


def shape_for(data: dict, shape: str) -> str:
    """A shape whose layers can share the residual."""
    return "uniform" if data["kind"] == "learned_prefix" or data.get("writes") == "own" else shape


def fill(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.to(torch.float64)


def random(*shape: int, seed: int = 1, requires_grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(requires_grad)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def assert_gradients_reach(output: torch.Tensor, *tensors: torch.Tensor) -> None:
    for gradient in torch.autograd.grad(output, tensors):
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).any()


def test_config_and_template_have_the_same_kinds():
    assert {kind_of(cls) for cls in RESIDUALS.configs} == set(TEMPLATES)


@pytest.mark.parametrize("data", CASES)
@pytest.mark.parametrize("site", SITES)
class TestSite:
    def build(self, data, site):
        """The residual, the widths, a filled site, and slots as they arrive."""
        template, residual = make(data)
        d_before, d_read, d_write = (width * template.quantum(D_MODEL) for width in site)
        built = fill(residual.build(d_before, d_read, d_write))
        slots = random(2, 3, *residual.slot_shape(d_before), requires_grad=True)
        return residual, (d_before, d_read, d_write), built, slots

    def test_reads_and_writes_the_promised_widths(self, data, site):
        residual, (_, d_read, d_write), built, slots = self.build(data, site)
        x, kept = built.read(residual.from_slots(slots))
        assert x.shape == (2, 3, d_read)
        stream = built.write(kept, random(2, 3, d_write))
        for width in (D_MODEL, 3 * D_MODEL):
            assert residual.to_slots(stream, width).shape == (2, 3, *residual.slot_shape(width))

    def test_cost_equals_the_built_parameters_and_flops(self, data, site):
        residual, widths, *_ = self.build(data, site)
        cost = residual.cost(*widths)
        built = on_meta(lambda: residual.build(*widths))
        assert all(p.is_meta for p in built.parameters())
        assert cost.params == cost.active_params == sum(p.numel() for p in built.parameters())

        def run():
            _, kept = built.read(residual.from_slots(meta(2, 3, *residual.slot_shape(widths[0]))))
            built.write(kept, meta(2, 3, widths[-1]))

        assert counted_flops(run) == 6 * cost.forward_flops(seq_len=3)

    def test_gradients_reach_the_stream_the_update_and_every_parameter(self, data, site):
        residual, widths, built, slots = self.build(data, site)
        update = random(2, 3, widths[-1], requires_grad=True)
        x, kept = built.read(residual.from_slots(slots))
        out = residual.to_slots(built.write(kept, update), 3 * D_MODEL)
        assert_gradients_reach(x.square().sum() + out.square().sum(), slots, update, *built.parameters())

    def test_leaves_its_inputs_alone_and_does_not_mix_tokens(self, data, site):
        residual, (d_before, _, d_write), built, slots = self.build(data, site)
        update, before = random(2, 3, d_write), slots.detach().clone()
        stream = residual.from_slots(slots)
        _, kept = built.read(stream)
        built.write(kept, update)
        assert torch.equal(update, random(2, 3, d_write))
        assert torch.equal(residual.to_slots(stream, d_before), before)

        def run(tokens: slice):
            x, kept = built.read(residual.from_slots(slots[:, tokens]))
            return x, residual.to_slots(built.write(kept, update[:, tokens]), D_MODEL)

        for alone, together in zip(run(slice(1, 2)), run(slice(None)), strict=True):
            torch.testing.assert_close(alone, together[:, 1:2])


@pytest.mark.parametrize("data", CASES)
@pytest.mark.parametrize("site", [(5, 5), (5, 2), (3, 5)])
def test_real_widths_cost_what_whole_ones_cost(data, site):
    template, _ = make(data)
    d_read, d_write = (width * template.quantum(D_MODEL) for width in site)
    real = template.matched_cost(D_MODEL, float(d_read), float(d_write))
    whole = template.at_widths(D_MODEL, [D_MODEL]).cost(d_read, d_read, d_write)
    assert (real.params, real.flops) == (whole.params, whole.flops)


@pytest.mark.parametrize("data", CASES)
class TestEnds:
    NORMS = NormConfig(kind="rms", norm_dim=D_MODEL), NormConfig(kind="layer", norm_dim=7)

    def entry(self, residual):
        return fill(residual.build_entry(D_MODEL)), random(2, 3, residual.embedding_width(D_MODEL), requires_grad=True)

    def exit(self, residual, norm=NORMS[0]):
        return fill(residual.build_exit(D_MODEL, D_MODEL, norm)), random(
            2, 3, *residual.slot_shape(D_MODEL), requires_grad=True
        )

    def test_survive_yaml_data(self, data):
        template, residual = make(data)
        assert parse(type(residual), to_data(residual)) == residual
        assert parse(type(template), to_data(template)) == template

    def test_to_slots_is_the_inverse_of_from_slots(self, data):
        _, residual = make(data)
        slots = random(2, 3, *residual.slot_shape(D_MODEL))
        assert torch.equal(residual.to_slots(residual.from_slots(slots), D_MODEL), slots)

    def test_entry_makes_slots_of_rows_of_the_table(self, data):
        _, residual = make(data)
        entry, rows = self.entry(residual)
        slots = residual.to_slots(entry(rows), D_MODEL)
        assert slots.shape == (2, 3, *residual.slot_shape(D_MODEL))
        assert_gradients_reach(slots.square().sum(), rows, *entry.parameters())
        torch.testing.assert_close(residual.to_slots(entry(rows[:, 1:2]), D_MODEL), slots[:, 1:2])

    @pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.kind)
    def test_exit_makes_what_the_head_multiplies(self, data, norm):
        _, residual = make(data)
        exit_, slots = self.exit(residual, norm)
        hidden = exit_(residual.from_slots(slots))
        assert hidden.shape == (2, 3, D_MODEL)
        assert_gradients_reach((hidden * random(2, 3, D_MODEL, seed=2)).sum(), slots, *exit_.parameters())
        torch.testing.assert_close(exit_(residual.from_slots(slots[:, 1:2])), hidden[:, 1:2])

    @pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.kind)
    def test_costs_equal_the_built_parameters_and_flops(self, data, norm):
        _, residual = make(data)
        entry = on_meta(lambda: residual.build_entry(D_MODEL))
        exit_ = on_meta(lambda: residual.build_exit(D_MODEL, D_MODEL, norm))
        rows, slots = meta(2, 3, residual.embedding_width(D_MODEL)), meta(2, 3, *residual.slot_shape(D_MODEL))
        ends = [
            (residual.entry_cost(D_MODEL), entry, lambda: entry(rows)),
            (residual.exit_cost(D_MODEL), exit_, lambda: exit_(residual.from_slots(slots))),
        ]
        for cost, module, run in ends:
            built = {name: p.numel() for name, p in module.named_parameters() if not name.startswith("norm.")}
            assert cost.params == cost.active_params == sum(built.values())
            assert counted_flops(run) == 6 * cost.forward_flops(seq_len=3)

    def test_an_exit_takes_over_the_matrix_of_another(self, data):
        _, residual = make(data)
        first, second = (self.exit(residual)[0] for _ in range(2))
        second.share_reduction(first)
        own = {id(p) for p in first.parameters()}
        assert sum(p.numel() for p in second.parameters() if id(p) in own) == residual.reduction_params(D_MODEL)


@pytest.mark.parametrize("data", CASES)
@pytest.mark.parametrize(
    ("shape", "endpoints"), [("x", "slim"), ("zigzag", "full"), ("growing", "slim"), ("narrowing", "full")]
)
def test_decoder_of_every_variant(data, shape, endpoints):
    """Cost equals the built parameters, gradients reach all of them, cached decoding equals the full forward."""
    resolved = config(shape_for(data, shape), endpoints, residual=data)
    built = parameters_by_part(on_meta(lambda: Decoder(resolved)))
    assert {part: cost.params for part, cost in resolved.costs().items()} == built
    model, tokens = decoder(resolved), random_tokens(2, 5)
    model.loss(tokens, tokens)[0].backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in model.parameters())
    cache = model.new_cache(2, 5)
    with torch.no_grad():
        cached = torch.cat([model(piece, cache) for piece in tokens.split([2, 1, 2], dim=1)], dim=1)
        torch.testing.assert_close(cached, model(tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("data", CASES)
class TestModel:
    def test_activation_bytes_are_those_autograd_keeps(self, data):
        """What two more sequences add: what does not follow the tokens is in both measurements."""
        resolved = config(shape_for(data, "zigzag"), residual=data)
        model = decoder(resolved, dtype=torch.float32)

        def measured(batch: int) -> int:
            return kept_bytes(lambda: model.loss(*(random_tokens(batch, 9, seed=seed) for seed in (0, 1))))

        assert measured(3) - measured(1) == 2 * 9 * resolved.cost().activation_bytes(bytes_per_element=4)

    def test_a_wider_stream_is_refused_or_preserves_the_function_and_can_be_baked(self, data):
        old = config("uniform", residual=data)
        n_blocks = D_MODEL // old.residual.slot_shape(D_MODEL)[1]
        wider = widen_stream(old, 3 * n_blocks)
        plan = planned_unless_refused(wider, old, "residual.", "d_model: ", UNKNOWN)
        if plan is not None:
            assert_preserved(plan)
            assert_preserved(bake_plan(plan.new))
            assert expansions(plan)

    def test_an_added_layer_preserves_the_function_of_a_residual_that_says_how_it_grows(self, data):
        old = config("uniform", residual=data)
        plan = planned_unless_refused(add_layers(old, [2]), old, UNKNOWN)
        assert (plan is None) == (old.residual.layout is None)
        if plan is not None:
            assert_preserved(plan)

    def test_padding_the_stream_is_refused_or_preserves_the_function(self, data):
        old = config("uniform", residual=data)
        if isinstance(old.residual.layout, SlotLayout):
            with pytest.raises(UserError, match=rf"^d_model: cannot be padded .*{old.residual.kind}"):
                pad_plan(old, Multiples(d_model=16))
        elif old.residual.layout is None:
            with pytest.raises(UserError, match=f"^{UNKNOWN}"):
                pad_plan(old, Multiples(d_model=16))
        else:
            plan = pad_plan(old, Multiples(d_model=16))
            assert plan.new.d_model == 32
            assert_preserved(plan)

    def test_a_format_that_cannot_hold_it_says_so(self, data):
        """Every residual but plain ones without options, in a model that is a Llama in all else."""
        model = config("uniform", residual=data, embedding_multiplier=1.0)
        if data == {"kind": "plain"}:
            hf_config(model, n_positions=64)
            return
        with pytest.raises(UserError, match=r"^residual\.(kind|resize): got .*; llama has "):
            hf_config(model, n_positions=64)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_another_value_of_a_field_is_refused_or_preserves_the_function(kind):
    """Whatever is not kept must make no difference."""
    cases = [case.values[0] for case in CASES if case.values[0]["kind"] == kind]
    models = [config(shape_for(data, "x"), residual=data) for data in cases]
    for old in (*models[:3], *models[-2:]):
        for residual in with_other_values(old.residual, [model.residual for model in models], set()):
            wanted = old.model_copy(update={"residual": residual})
            if is_valid(wanted):
                assert_refused_or_preserved(old, wanted)


def is_valid(model) -> bool:
    try:
        checked_copy(model, "model")
    except UserError:
        return False
    return True
