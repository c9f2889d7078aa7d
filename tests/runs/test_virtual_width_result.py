import json

import pytest
import torch
from tiny_runs import tiny_recipe

from widthwise.analysis import virtual_width
from widthwise.analysis.virtual_width import analyse_virtual_width
from widthwise.data.config import open_data
from widthwise.data.held_out import HeldOut
from widthwise.model.decoder import build
from widthwise.runs.train import train

CONNECTED = "model.residual={kind: hyper_connections, slot_width: 8, n_slots: 4}"


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    return HeldOut(open_data(tiny_recipe().data), seq_len=17, batch_size=2, max_tokens=90, precision="fp32")


def test_a_run_with_hyper_connections_says_how_it_uses_its_stream(tmp_path):
    recipe = tiny_recipe(CONNECTED, "model.mtp={n_depths: 2}", "train.precision=bf16")
    result = train(recipe, tmp_path / "run")
    found = result["virtual_width"].to_data()
    assert json.loads((tmp_path / "run/result.json").read_text())["virtual_width"] == found
    assert [site["name"] for site in found["sites"]] == [
        f"layers.{i}.{part}" for i in range(3) for part in ("attention", "ffn")
    ]
    assert found["n_tokens"] == 5 * 17
    # Training has made coefficients that differ between tokens.
    assert any(sd > 0 for site in found["sites"] for sd in site["reach_sd"])
    again = train(recipe, tmp_path / "again")
    assert again["virtual_width"].to_data() == found


def test_a_run_on_the_plain_residual_says_nothing(tmp_path):
    assert "virtual_width" not in train(tiny_recipe(), tmp_path / "run")


def test_looks_at_whole_windows_up_to_a_limit_and_leaves_the_model_in_its_mode(held_out, monkeypatch):
    model = build(tiny_recipe(CONNECTED).explicit_model, seed=1).train()
    monkeypatch.setattr(virtual_width, "SAMPLE_TOKENS", 60)
    state = torch.get_rng_state()
    assert analyse_virtual_width(model, held_out)["n_tokens"] == 3 * 17
    monkeypatch.setattr(virtual_width, "SAMPLE_TOKENS", 1)
    assert analyse_virtual_width(model, held_out)["n_tokens"] == 17
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
