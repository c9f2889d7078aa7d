import json
import math

import pytest
import torch
from compiled_layers import assert_compiled_layers_show_the_same
from connected_models import Traffic, connected_model, tokens
from torch import Tensor

from widthwise.analysis.depth_weights import DepthWeights, mean_distance
from widthwise.analysis.virtual_width import VirtualWidthMeter, hyper_connections, watched_sites
from widthwise.data.boundaries import Boundaries
from widthwise.model.decoder import Decoder
from widthwise.model.residual.interface_module import Site

N_SITES = 8


def summary(model: Decoder, windows: Tensor) -> dict:
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


class Frozen(Site):
    """A site with the coefficients of another pass, the equations of the paper written out."""

    def __init__(self, site, coefficients: Tensor):
        super().__init__()
        self.coefficients, self.n_read, self.multiplier = coefficients, site.n_read, site.config.multiplier

    def read(self, stream):
        x = torch.einsum("...ik,...ib->...kb", self.coefficients[..., : self.n_read], stream)
        return x.flatten(-2), stream

    def write(self, kept, update):
        n_slots, slot_width = kept.shape[-2:]
        carry = self.coefficients[..., self.n_read : self.n_read + n_slots] + torch.eye(n_slots)
        write = self.coefficients[..., self.n_read + n_slots :]
        blocks = update.unflatten(-1, (-1, slot_width))
        carried = torch.einsum("...ij,...ib->...jb", carry, kept)
        return carried + self.multiplier * torch.einsum("...jk,...kb->...jb", write, blocks)


def freeze(model: Decoder, ids: Tensor) -> None:
    sites, found = hyper_connections(model), coefficients_of(model, ids)
    for i, layer in enumerate(model.layers):
        for place, part in enumerate(("attention", "ffn")):
            site = sites[f"layers.{i}.{part}"]
            setattr(layer, f"{part}_residual", Frozen(site, found[2 * i + place]))


def measured_weights(model: Decoder, ids: Tensor) -> dict[tuple[int, int], Tensor]:
    """(reader, source) -> (B, T, n_read, n_source): change of the reader's input per change of a block of the source,
    all other updates being held. Source -1 is what the embedding gives.
    """
    traffic, changes = Traffic(model), {}
    coordinate, step = 2, 0.5
    start = model.embed(ids).detach()
    model.entry.register_forward_hook(lambda module, args, output: start + changes.get(-1, 0.0))
    model.stream(ids)
    traffic.constants = dict(traffic.written)
    before, written = dict(traffic.read), dict(traffic.written)
    columns: dict[tuple[int, int], list[Tensor]] = {}
    for source in range(-1, N_SITES):
        like = start if source == -1 else written[source].unflatten(-1, (-1, 4))
        for block in range(like.shape[-2]):
            change = torch.zeros_like(like)
            change[..., block, coordinate] = step
            if source == -1:
                changes[-1] = change
            else:
                traffic.constants[source] = written[source] + change.flatten(-2)
            model.stream(ids)
            changes.clear()
            traffic.constants.update(written)
            for reader in range(source + 1, N_SITES):
                moved = ((traffic.read[reader] - before[reader]) / step).unflatten(-1, (-1, 4))
                columns.setdefault((reader, source), []).append(moved[..., coordinate])
    return {pair: torch.stack(found, dim=-1) for pair, found in columns.items()}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("multiplier", [1.0, 0.4])
def test_reach_is_what_a_changed_output_does_to_later_inputs(float64, dynamic, multiplier):
    model = connected_model(residual={"dynamic": dynamic, "multiplier": multiplier})
    ids = tokens(3)
    found = summary(model, ids)
    if dynamic:
        freeze(model, ids)
    with torch.no_grad():
        measured = measured_weights(model, ids)
    assert len(measured) == N_SITES * (N_SITES + 1) // 2
    for (reader, source), weights in measured.items():
        norms = weights.square().sum(dim=(-1, -2)).sqrt() / math.sqrt(min(weights.shape[-2:]))
        site = found["sites"][reader]
        assert site["reach"][source + 1] == pytest.approx(norms.mean().item(), abs=1e-6)
        assert site["reach_sd"][source + 1] == pytest.approx(norms.std(correction=0).item(), abs=1e-6)
        assert (site["reach_sd"][source + 1] > 1e-3) == dynamic


def test_inputs_are_the_weighted_sums_of_embedding_and_earlier_updates(float64):
    model, ids = connected_model(residual={"multiplier": 0.4}), tokens(2)
    traffic = Traffic(model)
    with torch.no_grad():
        sources = [model.embed(ids)]
        found = coefficients_of(model, ids)
    depth = DepthWeights(torch.eye(5))
    for index, (site, coefficients) in enumerate(zip(hyper_connections(model).values(), found)):
        read, deviation, write = coefficients.flatten(0, 1).tensor_split((site.n_read, site.n_read + 5), dim=-1)
        terms = [weights @ blocks.flatten(0, 1) for weights, blocks in zip(depth.of_read(read), sources, strict=True)]
        torch.testing.assert_close(sum(terms).view(*ids.shape, -1), traffic.read[index])
        depth.pass_site(deviation, 0.4 * write)
        sources.append(traffic.written[index].unflatten(-1, (-1, 4)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("write_init", ["slice", "tail_cyclic"])
def test_before_training_every_weight_is_1_as_on_the_plain_residual(dynamic, write_init):
    model = connected_model(trained=False, residual={"dynamic": dynamic, "write_init": write_init})
    found = summary(model, tokens(2))
    assert [site["name"] for site in found["sites"][:3]] == ["layers.0.attention", "layers.0.ffn", "layers.1.attention"]
    for index, site in enumerate(found["sites"]):
        assert site["reach"] == [1.0] * (index + 1)
        assert site["reach_sd"] == [0.0] * (index + 1)
        assert site["carry"] == torch.eye(5).tolist()
        assert site["mean_distance"] == site["plain_distance"] == pytest.approx((index + 2) / 4)
        assert not any(map(any, site["sd"].values()))


def test_the_multiplier_is_part_of_the_weight_of_an_update():
    model = connected_model(trained=False, residual={"multiplier": 0.25})
    for index, site in enumerate(summary(model, tokens(1))["sites"]):
        assert site["reach"] == [1.0] + [0.25] * index


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
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_weighted_mean_of_distances():
    assert mean_distance([3.0, 0.0, 1.0]) == (3 * 1.5 + 1 * 0.5) / 4
    assert mean_distance([0.0, 0.0]) is None


def test_further_heads_are_not_looked_at():
    plain, with_mtp = connected_model(trained=False), connected_model(trained=False, mtp={"n_depths": 2})
    assert summary(with_mtp, tokens(2)) == summary(plain, tokens(2))


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
