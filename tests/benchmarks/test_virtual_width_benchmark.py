import json
import sys

import pytest
import torch
import virtual_width

from widthwise.model.decoder import build

TINY = virtual_width.Size(d_model=64, head_dim=16, n_layers=2, vocab_size=97, seq_len=33, batch_size=2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_of_every_variant_is_timed_and_its_bytes_counted(precision, monkeypatch):
    monkeypatch.setattr(virtual_width, "package_decoder", lambda size: build(virtual_width.plain_config(size), 0))
    report = virtual_width.step_over_plain(TINY, precision, n_rounds=1)
    variants = report["variants"]
    assert set(variants) == {
        "plain",
        "2_of_3",
        "1_of_4",
        "4_of_16",
        "8_of_64",
        "1_of_4_every_state_kept",
        "package_4_streams",
    }
    assert variants["plain"]["kept_bytes_ratio"] == variants["package_4_streams"]["kept_bytes_ratio"] == 1
    assert variants["plain"]["n_params"] == virtual_width.plain_config(TINY).cost().params
    for (m, n), target in virtual_width.TARGETS.items():
        own, cost = variants[f"{m}_of_{n}"], virtual_width.slots_config(TINY, m, n).cost()
        assert own["n_params"] == cost.params
        assert own["kept_bytes_ratio"] == own["kept_bytes"] / variants["plain"]["kept_bytes"]
        if (cpu_time := getattr(target, precision)) is not None:
            assert own["meets_target"] == (own["cpu_ratio"]["median"] <= cpu_time)
        if target.kept_bytes is not None:
            assert own["meets_kept_bytes_target"] == (own["kept_bytes_ratio"] <= target.kept_bytes)
    json.dumps(report)


def test_states_not_kept_are_the_difference_that_the_report_shows():
    """Two of four states of two slots of 64 numbers, for each of 66 tokens."""
    tokens, targets = virtual_width.random_batch(97, 2, 33)
    kept = []
    for state_every in (1, 2):
        config = virtual_width.slots_config(TINY, 1, 2, state_every=state_every)
        model = build(config, seed=0)
        kept.append(virtual_width.kept_bytes(lambda model=model: model.loss(tokens, targets).objective))
    assert kept[0] - kept[1] == 2 * 2 * 64 * 66 * 4


def test_the_decoder_of_the_package_learns_in_every_part():
    """Its streams are copies of the embedding, so that before training it sees what the plain decoder sees."""
    pytest.importorskip("hyper_connections", reason="the comparison needs the extra [bench]")
    model = virtual_width.package_decoder(TINY)
    tokens, targets = virtual_width.random_batch(97, 2, 33)
    assert model.embed(tokens).shape == (4 * 2, 33, 64)
    assert model.hidden(tokens).shape == (2, 33, 64)
    model.loss(tokens, targets).objective.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum("connection" in name for name, _ in model.named_parameters()) >= 4 * 4


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hyper_connections", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[bench\]'"):
        virtual_width.package_decoder(TINY)


def test_both_forms_of_the_sites_are_timed_and_the_hand_written_one_keeps_less():
    variants = virtual_width.sites_over_reference(TINY, 2, 3, n_rounds=2)["variants"]
    assert variants["fused"]["n_rounds"] == variants["reference"]["n_rounds"] == 2
    assert variants["fused"]["kept_bytes"] < variants["reference"]["kept_bytes"]


def test_every_target_has_its_parts():
    names = {part.name for part in virtual_width.parts(virtual_width.FULL, n_rounds=1)}
    assert names == {"step/fp32", "step/bf16", "sites/2_of_3", "sites/1_of_4", "sites/4_of_16", "sites/8_of_64"}


@pytest.mark.parametrize("pair", virtual_width.TARGETS)
def test_decoders_differ_in_the_residual_alone(pair):
    plain, slots = virtual_width.plain_config(TINY), virtual_width.slots_config(TINY, *pair)
    assert slots.layers == plain.layers
    assert torch.Size(slots.residual.slot_shape(64)) == (pair[1], 64 // pair[0])
