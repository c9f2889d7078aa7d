"""What every residual variant promises. A new variant is picked up from the union."""

from typing import get_args

import pytest
import torch
from measured import counted_flops, on_meta, parameters_by_part
from model_cases import SHAPES_AND_ENDPOINTS, config, decoder, random_tokens

from widthwise.config_io import parse, to_data
from widthwise.model.decoder import Decoder
from widthwise.model.residual import Residual

OPTIONS = {"plain": [{}, {"resize": "zero"}, {"resize": "projection", "multiplier": 0.22}]}
UNION = get_args(Residual)[0]
VARIANTS = {cls.model_fields["kind"].default: cls for cls in get_args(UNION) or [UNION]}
CASES = [
    pytest.param({"kind": kind, **options}, id=f"{kind}-{options}")
    for kind in VARIANTS
    for options in OPTIONS.get(kind, [{}])
]
SITES = [(20, 20, 20), (20, 8, 8), (8, 36, 36), (20, 20, 36), (36, 36, 20), (36, 36, 7), (1, 3, 3)]


def make(data: dict):
    return parse(VARIANTS[data["kind"]], data)


def fill(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    return module.to(torch.float64)


@pytest.mark.parametrize("data", CASES)
@pytest.mark.parametrize(("d_before", "d_read", "d_write"), SITES)
class TestSite:
    def test_reads_and_writes_the_promised_widths(self, data, d_before, d_read, d_write):
        residual = make(data)
        site = fill(residual.build(d_before, d_read, d_write))
        stream = residual.open(torch.randn(2, 3, d_before, dtype=torch.float64))
        x, kept = site.read(stream)
        assert x.shape == (2, 3, d_read)
        stream = site.write(kept, torch.randn(2, 3, d_write, dtype=torch.float64))
        for width in (1, d_write, max(d_before, d_read, d_write), 50):
            assert residual.close(stream, width).shape == (2, 3, width)

    def test_cost_equals_the_built_parameters_and_flops(self, data, d_before, d_read, d_write):
        residual = make(data)
        cost = residual.cost(d_before, d_read, d_write)
        site = on_meta(lambda: residual.build(d_before, d_read, d_write))
        assert cost.params == sum(p.numel() for p in site.parameters())
        site = fill(residual.build(d_before, d_read, d_write))

        def run():
            _, kept = site.read(residual.open(torch.randn(2, 3, d_before, dtype=torch.float64)))
            site.write(kept, torch.randn(2, 3, d_write, dtype=torch.float64))

        assert counted_flops(run) == 6 * cost.forward_flops(seq_len=3)

    def test_gradients_reach_the_stream_the_update_and_every_parameter(self, data, d_before, d_read, d_write):
        residual = make(data)
        site = fill(residual.build(d_before, d_read, d_write))
        embedding = torch.randn(2, 3, d_before, dtype=torch.float64, requires_grad=True)
        update = torch.randn(2, 3, d_write, dtype=torch.float64, requires_grad=True)
        x, kept = site.read(residual.open(embedding))
        out = residual.close(site.write(kept, update), 50)
        (x.square().sum() + out.square().sum()).backward()
        for tensor in (embedding, update, *site.parameters()):
            assert tensor.grad is not None
            assert (tensor.grad != 0).any()

    def test_leaves_its_inputs_alone(self, data, d_before, d_read, d_write):
        residual = make(data)
        site = fill(residual.build(d_before, d_read, d_write))
        embedding, update = (
            torch.randn(2, 3, d_before, dtype=torch.float64),
            torch.randn(2, 3, d_write, dtype=torch.float64),
        )
        before = embedding.clone(), update.clone()
        stream = residual.open(embedding)
        _, kept = site.read(stream)
        site.write(kept, update)
        assert torch.equal(embedding, before[0])
        assert torch.equal(update, before[1])
        torch.testing.assert_close(residual.close(stream, d_before), embedding)


@pytest.mark.parametrize("data", CASES)
@pytest.mark.parametrize(("shape", "endpoints"), SHAPES_AND_ENDPOINTS)
def test_decoder_of_every_variant(data, shape, endpoints):
    """Cost equals the built parameters, gradients reach all of them, cached decoding equals the full forward."""
    resolved = config(shape, endpoints, residual=data)
    assert parse(type(resolved.residual), to_data(resolved.residual)) == resolved.residual
    built = parameters_by_part(on_meta(lambda: Decoder(resolved)))
    assert {part: cost.params for part, cost in resolved.costs().items()} == built
    model, tokens = decoder(resolved), random_tokens(2, 5)
    model.loss(tokens, tokens)[0].backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in model.parameters())
    cache = model.new_cache(2, 5)
    with torch.no_grad():
        cached = torch.cat([model(piece, cache) for piece in tokens.split([2, 1, 2], dim=1)], dim=1)
        torch.testing.assert_close(cached, model(tokens), rtol=1e-6, atol=1e-6)
