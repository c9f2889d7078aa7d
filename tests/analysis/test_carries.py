"""Spectra of carries, hard windows and hard gates, beside numpy and a stream that is a sliding window."""

import numpy as np
import pytest
import torch
from connected_models import connected_model, tokens

from widthwise.analysis.virtual_width import (
    N_SPECTRA,
    VirtualWidthMeter,
    gate_distance,
    hyper_connections,
    sampled,
    spectra,
    watched_sites,
    window_share,
)


def summary(model, ids):
    meter = VirtualWidthMeter(model, model.config.residual)
    for window in ids.split(1):
        meter.add(window)
    return meter.summary()["sites"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_spectra_are_those_of_every_token_and_of_the_product_over_depth(dynamic):
    model, ids = connected_model(residual={"dynamic": dynamic}), tokens(2)
    coefficients = []
    with torch.no_grad(), watched_sites(model, lambda index, found: coefficients.append(found.detach())):
        model.stream(ids)
    product = np.eye(5)
    for found, site, table in zip(summary(model, ids), hyper_connections(model).values(), coefficients, strict=True):
        carry = table[..., site.n_read : site.n_read + 5].reshape(-1, 5, 5).numpy() + np.eye(5)
        product = np.swapaxes(carry, 1, 2) @ product
        expected = {
            "radius": np.abs(np.linalg.eigvals(carry)).max(axis=-1),
            "norm": np.linalg.svd(carry, compute_uv=False)[:, 0],
            "product_radius": np.abs(np.linalg.eigvals(product)).max(axis=-1),
            "product_norm": np.linalg.svd(product, compute_uv=False)[:, 0],
        }
        assert found["spectrum"] == pytest.approx({key: each.mean() for key, each in expected.items()}, rel=1e-4)
        gates = np.abs(np.concatenate((carry, table[..., site.n_read + 5 :].reshape(-1, 5, site.n_write)), axis=-1))
        assert found["gate_distance"] == pytest.approx(np.minimum(gates, np.abs(gates - 1)).mean(), abs=1e-6)


def test_before_training_carries_are_the_identity_and_all_weights_equal():
    for index, site in enumerate(summary(connected_model(trained=False), tokens(1))):
        assert set(site.spectrum.to_data().values()) == {1.0}
        assert site["gate_distance"] == 0
        assert site["window_share"] == pytest.approx(min(1, 5 / (index + 1)), abs=1e-6)


def test_a_shift_register_is_a_hard_window_over_as_many_updates_as_there_are_slots():
    """Slot 0 takes the update, every slot its predecessor's content, and the last content is lost."""
    n = 3
    residual = {"slot_width": 8, "n_slots": n, "dynamic": False}
    model = connected_model(trained=False, shape={"widths": [8, 8, 8, 8]}, residual=residual)
    with torch.no_grad():
        for site in hyper_connections(model).values():
            table = site.static.weight.view(n, n + 2).zero_()
            table[:, 0] = 1  # all are read
            table[:, 1:-1] = torch.eye(n).roll(1, dims=1).triu() - torch.eye(n)
            table[0, -1] = 1
    for index, site in enumerate(summary(model, tokens(1))):
        sources = site["reach"][1:]
        assert [value > 0 for value in sources] == [index - s <= n for s in range(index)]
        if index >= n:
            assert site["window_share"] == 1
        assert site["gate_distance"] == 0
        assert site["spectrum"]["radius"] == pytest.approx(0, abs=1e-6)
        assert site["spectrum"]["norm"] == 1
        assert site["spectrum"]["product_norm"] == (1 if index + 1 < n else 0)


def test_a_share_counts_the_nearest_sources_and_gates_of_either_sign_are_hard():
    assert [window_share(each, 2) for each in ([4.0, 3.0, 2.0, 1.0], [4.0], [0.0, 0.0])] == [0.3, 1.0, None]
    assert gate_distance(torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])).tolist() == [0.0]
    assert gate_distance(torch.tensor([[[0.5, -0.75], [1.25, 2.0]]])).tolist() == [(0.5 + 0.25 + 0.25 + 1) / 4]


@pytest.mark.parametrize("n_tokens", [1, N_SPECTRA, N_SPECTRA + 1, 1000])
def test_few_tokens_are_decomposed_evenly_spread(n_tokens):
    found = sampled(torch.arange(n_tokens)[:, None, None].expand(-1, 2, 2))[:, 0, 0]
    assert len(found) == -(-n_tokens // -(-n_tokens // N_SPECTRA)) <= N_SPECTRA
    assert len(found) > N_SPECTRA / 2 or n_tokens < N_SPECTRA
    assert len(set(found.diff().tolist())) <= 1
    assert spectra(torch.eye(3)[None].double(), 2 * torch.eye(3)[None].double()).tolist() == [[1, 1, 2, 2]]
