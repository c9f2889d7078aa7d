"""Reads, carries, writes and reach of hyper-connections, beside the model itself, numpy and a sliding window."""

import json
import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from model_cases import decoder
from profiled_models import assert_compiled_layers_show_the_same
from thinned import in_turn
from torch import Tensor

from widthwise.analysis.virtual_width import (
    N_SPECTRA,
    DepthWeights,
    hook_sites,
    hyper_connections,
    nearness,
    sampled,
    virtual_width,
)
from widthwise.config_io import parse
from widthwise.model.decoder import Decoder, build
from widthwise.records.analysis import VirtualWidth
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

WIDTHS = [12, 8, 4, 12]
"""Blocks of 4 that the sites write: 3, 3, 2, 2, 1, 1, 3, 2; the first reads 2 and the last writes 2."""


def connected_model(trained: bool = True, **changes: Any) -> Decoder:
    """In float64. trained: weights that start at 0 or 1 are moved, so that coefficients are of no special form."""
    data = {
        "vocab_size": 31,
        "d_model": 8,
        "n_layers": len(WIDTHS),
        "shape": {"kind": "explicit", "widths": WIDTHS},
        "attention": {"head_dim": 4},
        "residual": {"kind": "hyper_connections", "slot_width": 4, "n_slots": 5},
        "init": {"std": 0.3},
    }
    resolved = parse(ModelTemplate, merge(data, changes), "model").resolve(7)
    return (decoder(resolved) if trained else build(resolved, seed=2, dtype=torch.float64)).eval()


def tokens(n_windows: int, length: int = 7) -> Tensor:
    return torch.randint(31, (n_windows, length), generator=torch.Generator().manual_seed(1))


def watched_sublayers(model: Decoder) -> tuple[list[Tensor], list[Tensor]]:
    """What every sublayer reads and writes, after the next pass."""
    read, written = [], []

    def hook(module, args, output):
        read.append(args[0].detach())
        written.append((output[0] if isinstance(output, tuple) else output).detach())

    for layer in model.layers:
        layer.attention.register_forward_hook(hook)
        layer.ffn.register_forward_hook(hook)
    return read, written


def summary(model: Decoder, windows: Tensor) -> VirtualWidth:
    return virtual_width(model, windows.split(1))


def parts_of(model: Decoder, ids: Tensor) -> list[tuple[Tensor, ...]]:
    """Read, carry minus the identity, and write of every site, each (n_tokens, n_slots, n)."""
    found, n_slots = [], model.config.residual.n_slots
    with torch.no_grad(), hook_sites(model, lambda index, coefficients: found.append(coefficients.detach())):
        model.stream(ids)
    of_sites = zip(hyper_connections(model).values(), found, strict=True)
    return [
        rows.expand(*ids.shape, n_slots, -1).flatten(0, 1).tensor_split((site.n_read, site.n_read + n_slots), dim=-1)
        for site, rows in of_sites
    ]


@in_turn(("dynamic", [True, False]), ("multiplier", [0.4, 1.0]))
def test_inputs_are_the_weighted_sums_of_embedding_and_earlier_updates_and_reach_is_the_size_of_the_weights(
    float64, dynamic, multiplier
):
    model, ids = connected_model(residual={"dynamic": dynamic, "multiplier": multiplier}), tokens(2)
    depth, entries = DepthWeights(torch.eye(5)), summary(model, ids)["sites"]
    read_by, written_by = watched_sublayers(model)
    sources = [model.embed(ids).detach()]
    for index, (read, deviation, write) in enumerate(parts_of(model, ids)):
        of_sources = depth.in_input(read)
        terms = [weights @ blocks.flatten(0, 1) for weights, blocks in zip(of_sources, sources, strict=True)]
        torch.testing.assert_close(sum(terms).view(*ids.shape, -1), read_by[index])
        for source, weights in enumerate(of_sources):
            norms = weights.square().sum(dim=(-1, -2)).sqrt() / math.sqrt(min(weights.shape[-2:]))
            assert entries[index]["reach"][source] == pytest.approx(norms.mean().item(), abs=1e-6)
            assert entries[index]["reach_sd"][source] == pytest.approx(norms.std(correction=0).item(), abs=1e-6)
            assert (entries[index]["reach_sd"][source] > 1e-3) == dynamic
        depth.update(deviation, multiplier * write)
        sources.append(written_by[index].unflatten(-1, (-1, 4)))


@in_turn(("dynamic", [False, True]), ("multiplier", [1.0, 0.25]))
def test_before_training_carries_are_the_identity_and_every_weight_is_the_multiplier_as_on_the_plain_residual(
    dynamic, multiplier
):
    residual = {"dynamic": dynamic, "multiplier": multiplier}
    found = summary(connected_model(trained=False, residual=residual), tokens(2))
    assert [site["name"] for site in found["sites"][:3]] == ["layers.0.attention", "layers.0.ffn", "layers.1.attention"]
    for index, site in enumerate(found["sites"]):
        assert site["reach"] == [1.0] + [multiplier] * index
        assert site["reach_sd"] == [0.0] * (index + 1)
        assert site["carry"] == torch.eye(5).tolist()
        if multiplier == 1.0:
            assert site["mean_distance"] == site["plain_distance"] == pytest.approx((index + 2) / 4)
            assert site["window_share"] == pytest.approx(min(1, 5 / (index + 1)), abs=1e-6)
        assert not any(map(any, site["sd"].values()))
        assert set(site["spectrum"].to_data().values()) == {1.0}
        assert site["gate_distance"] == 0


def test_maps_are_means_and_deviations_over_all_tokens_of_all_windows():
    model, ids = connected_model(), tokens(3)
    found = summary(model, ids)
    assert found["n_tokens"] == 21
    assert (found["n_slots"], found["slot_width"], found["dynamic"]) == (5, 4, True)
    for entry, parts in zip(found["sites"], parts_of(model, ids), strict=True):
        for name, part in zip(("read", "carry", "write"), parts):
            expected = part.mean(dim=0) + (torch.eye(5) if name == "carry" else 0)
            torch.testing.assert_close(torch.tensor(entry[name]).double(), expected, rtol=0, atol=1e-6)
            sds = part.var(dim=0, correction=0).mean(dim=-1).sqrt()
            assert entry["sd"][name] == pytest.approx(sds.tolist(), abs=1e-6)
    json.dumps(found.to_data(), allow_nan=False)


@pytest.mark.hard
def test_compiled_layers_show_the_same_and_stay_compiled():
    assert_compiled_layers_show_the_same(connected_model(), tokens(2), summary)


def test_the_model_is_left_as_it_was_even_after_an_error():
    model = connected_model()
    with pytest.raises(ArithmeticError), hook_sites(model, Mock(side_effect=ArithmeticError)):
        model.stream(tokens(1))
    assert not any("read" in vars(site) for site in hyper_connections(model).values())


@pytest.mark.parametrize("dynamic", [False, True])
def test_spectra_are_those_of_every_token_and_of_the_product_over_depth(dynamic):
    model, ids = connected_model(residual={"dynamic": dynamic}), tokens(2)
    product = np.eye(5)
    for found, (_, deviation, write) in zip(summary(model, ids).sites, parts_of(model, ids), strict=True):
        carry = deviation.numpy() + np.eye(5)
        product = np.swapaxes(carry, 1, 2) @ product
        expected = {
            "radius": np.abs(np.linalg.eigvals(carry)).max(axis=-1),
            "norm": np.linalg.svd(carry, compute_uv=False)[:, 0],
            "product_radius": np.abs(np.linalg.eigvals(product)).max(axis=-1),
            "product_norm": np.linalg.svd(product, compute_uv=False)[:, 0],
        }
        assert found["spectrum"] == pytest.approx({key: each.mean() for key, each in expected.items()}, rel=1e-4)
        gates = np.abs(np.concatenate((carry, write), axis=-1))
        assert found["gate_distance"] == pytest.approx(np.minimum(gates, np.abs(gates - 1)).mean(), abs=1e-6)


def test_distances_are_weighted_and_a_share_counts_the_nearest_sources():
    for reaches, expected in (
        ([3.0, 0.0, 1.0], ((3 * 1.5 + 1 * 0.5) / 4, 1 / 4)),
        ([4.0], (0.5, 1.0)),
        ([0.0, 0.0], (None, None)),
    ):
        assert nearness(reaches, n_slots=2) == expected


@pytest.mark.parametrize("n_tokens", [1, N_SPECTRA, N_SPECTRA + 1, 1000])
def test_few_tokens_are_decomposed_evenly_spread(n_tokens):
    found = sampled(torch.arange(n_tokens)[:, None, None].expand(-1, 2, 2))[:, 0, 0]
    assert len(found) == -(-n_tokens // -(-n_tokens // N_SPECTRA)) <= N_SPECTRA
    assert len(found) > N_SPECTRA / 2 or n_tokens < N_SPECTRA
    assert len(set(found.diff().tolist())) <= 1


@pytest.mark.parametrize("carry", ["sinkhorn", "permutations"])
def test_doubly_stochastic_carries_have_an_entropy_and_do_not_grow(carry):
    residual = {"kind": "manifold", "n_slots": 3, "carry": carry}
    model = connected_model(shape={"kind": "uniform"}, residual=residual)
    ids = tokens(2)
    found = summary(model, ids)
    assert (found.n_slots, found.slot_width, found.dynamic) == (3, 8, True)
    for site, (_, deviation, _) in zip(found.sites, parts_of(model, ids), strict=True):
        matrices = deviation + torch.eye(3)
        shares = matrices / matrices.sum(-1, keepdim=True)
        entropy = -(shares * shares.log()).sum(-1).mean()
        distance = deviation.square().sum((-1, -2)).sqrt().mean() / math.sqrt(3)
        assert site.carry_entropy == pytest.approx(float(entropy), abs=1e-6)
        assert site.identity_distance == pytest.approx(float(distance), abs=1e-6)
        assert 0 < site.carry_entropy <= math.log(3) + 1e-5
        assert site.spectrum.product_norm <= 1.005
