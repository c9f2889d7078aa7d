"""What hyper-connections read, carry and write, and how far an update reaches, beside the model itself."""

import json
import math

import pytest
import torch
from compiled_layers import assert_compiled_layers_show_the_same
from connected_models import Traffic, connected_model, tokens
from thinned import in_turn
from torch import Tensor

from widthwise.analysis.virtual_width import (
    DepthWeights,
    VirtualWidthMeter,
    hyper_connections,
    mean_distance,
    watched_sites,
)
from widthwise.data.boundaries import Boundaries
from widthwise.model.decoder import Decoder
from widthwise.records.analysis import VirtualWidth


def summary(model: Decoder, windows: Tensor) -> VirtualWidth:
    meter = VirtualWidthMeter(model, model.config.residual)
    for window in windows.split(1):
        meter.add(window)
    return meter.summary()


@pytest.mark.usefixtures("float64")
def test_documents_of_a_row_are_shown_as_if_each_were_alone():
    model, row = connected_model(), tokens(1)
    ends = (row[0] == row[0, 3]).nonzero()[:, 0] + 1
    assert 0 < ends[0] < row.shape[1]
    packed, alone = (VirtualWidthMeter(model, model.config.residual) for _ in range(2))
    packed.add(row, Boundaries(int(row[0, 3]), masks=True, resets=True))
    for document in row.tensor_split(ends, dim=1):
        if document.numel():
            alone.add(document)
    ours, theirs, whole = packed.summary(), alone.summary(), summary(model, row)
    for site, expected in zip(ours["sites"], theirs["sites"], strict=True):
        for key in ("reach", "read", "carry", "write"):
            torch.testing.assert_close(torch.tensor(site[key]), torch.tensor(expected[key]))
    assert ours["sites"] != whole["sites"]


def coefficients_of(model: Decoder, ids: Tensor) -> list[Tensor]:
    found = []
    with torch.no_grad(), watched_sites(model, lambda index, coefficients: found.append(coefficients)):
        model.stream(ids)
    return found


@in_turn(("dynamic", [True, False]), ("multiplier", [0.4, 1.0]))
def test_inputs_are_the_weighted_sums_of_embedding_and_earlier_updates_and_reach_is_the_size_of_the_weights(
    float64, dynamic, multiplier
):
    model, ids = connected_model(residual={"dynamic": dynamic, "multiplier": multiplier}), tokens(2)
    traffic = Traffic(model)
    depth, entries = DepthWeights(torch.eye(5)), summary(model, ids)["sites"]
    sources, found = [model.embed(ids).detach()], coefficients_of(model, ids)
    for index, (site, coefficients) in enumerate(zip(hyper_connections(model).values(), found)):
        rows = coefficients.detach().expand(*ids.shape, 5, -1).flatten(0, 1)
        read, deviation, write = rows.tensor_split((site.n_read, site.n_read + 5), dim=-1)
        of_sources = depth.of_read(read)
        terms = [weights @ blocks.flatten(0, 1) for weights, blocks in zip(of_sources, sources, strict=True)]
        torch.testing.assert_close(sum(terms).view(*ids.shape, -1), traffic.read[index])
        for source, weights in enumerate(of_sources):
            norms = weights.square().sum(dim=(-1, -2)).sqrt() / math.sqrt(min(weights.shape[-2:]))
            assert entries[index]["reach"][source] == pytest.approx(norms.mean().item(), abs=1e-6)
            assert entries[index]["reach_sd"][source] == pytest.approx(norms.std(correction=0).item(), abs=1e-6)
            assert (entries[index]["reach_sd"][source] > 1e-3) == dynamic
        depth.pass_site(deviation, multiplier * write)
        sources.append(traffic.written[index].unflatten(-1, (-1, 4)))


@in_turn(("write_init", ["slice", "tail_cyclic"]), ("dynamic", [False, True]), ("multiplier", [1.0, 0.25]))
def test_before_training_every_weight_is_the_multiplier_as_on_the_plain_residual(dynamic, write_init, multiplier):
    residual = {"dynamic": dynamic, "write_init": write_init, "multiplier": multiplier}
    found = summary(connected_model(trained=False, residual=residual), tokens(2))
    assert [site["name"] for site in found["sites"][:3]] == ["layers.0.attention", "layers.0.ffn", "layers.1.attention"]
    for index, site in enumerate(found["sites"]):
        assert site["reach"] == [1.0] + [multiplier] * index
        assert site["reach_sd"] == [0.0] * (index + 1)
        assert site["carry"] == torch.eye(5).tolist()
        if multiplier == 1.0:
            assert site["mean_distance"] == site["plain_distance"] == pytest.approx((index + 2) / 4)
        assert not any(map(any, site["sd"].values()))


def test_maps_are_means_and_deviations_over_all_tokens_of_all_windows():
    model, ids = connected_model(), tokens(3)
    found = summary(model, ids)
    assert found["n_tokens"] == 21
    assert (found["n_slots"], found["slot_width"], found["dynamic"]) == (5, 4, True)
    of_sites = zip(found["sites"], hyper_connections(model).values(), coefficients_of(model, ids), strict=True)
    for entry, site, coefficients in of_sites:
        rows = coefficients.flatten(0, 1)
        table = torch.cat([torch.tensor(entry[part]) for part in ("read", "carry", "write")], dim=-1)
        expected = rows.mean(dim=0)
        expected[:, site.n_read : site.n_read + 5] += torch.eye(5)
        torch.testing.assert_close(table.double(), expected, rtol=0, atol=1e-6)
        variance = rows.var(dim=0, correction=0)
        for part, own in zip(("read", "carry", "write"), variance.tensor_split((site.n_read, site.n_read + 5), dim=-1)):
            assert entry["sd"][part] == pytest.approx(own.mean(dim=-1).sqrt().tolist(), abs=1e-6)
    json.dumps(found.to_data(), allow_nan=False)


def test_a_weighted_mean_of_distances():
    assert mean_distance([3.0, 0.0, 1.0]) == (3 * 1.5 + 1 * 0.5) / 4
    assert mean_distance([0.0, 0.0]) is None


def test_further_heads_are_not_looked_at():
    plain, with_mtp = connected_model(trained=False), connected_model(trained=False, mtp={"n_depths": 2})
    assert summary(with_mtp, tokens(2)) == summary(plain, tokens(2))


@pytest.mark.hard
def test_compiled_layers_show_the_same_and_stay_compiled():
    assert_compiled_layers_show_the_same(connected_model(), tokens(2), summary)


def test_the_model_is_left_as_it_was_even_after_an_error():
    model = connected_model()
    sites = list(hyper_connections(model).values())

    def fail(index, coefficients):
        raise ArithmeticError

    with pytest.raises(ArithmeticError), watched_sites(model, fail):
        model.stream(tokens(1))
    assert all(now is before for now, before in zip(hyper_connections(model).values(), sites, strict=True))
