import json

import dynamic_width
import pytest
import torch


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(dynamic_width, "TRAINING", {"n_tokens": 37, "d_model": 24, "d_ff": 200})
    monkeypatch.setattr(dynamic_width, "DECODING", {"n_tokens": 1, "d_model": 24, "d_ff": 200})


@pytest.mark.parametrize("precision", dynamic_width.PRECISIONS)
def test_the_sliced_form_computes_what_the_masked_one_does(precision):
    sizes = {"n_tokens": 150, "d_model": 24, "d_ff": 200}
    calls = dynamic_width.forms(
        sizes, dynamic_width.spread_widths(150, 200), autocast=dynamic_width.PRECISIONS[precision]
    )
    tolerance = {"fp32": 1e-6, "bf16": 0.05}[precision]
    torch.testing.assert_close(calls["sliced"](), calls["masked"](), rtol=tolerance, atol=tolerance)
    assert not torch.allclose(calls["dense"](), calls["masked"](), atol=0.1)


def test_spread_widths_spend_what_the_report_says():
    width = dynamic_width.spread_widths(4096, 1536)
    rounded = (width / 192).ceil() * 192
    assert abs(float(rounded.mean()) / 1536 - 0.47) < 0.005


@pytest.mark.usefixtures("toy")
def test_every_case_is_timed(tmp_path, monkeypatch):
    once = dynamic_width.sliced_over_dense
    monkeypatch.setattr(dynamic_width, "sliced_over_dense", lambda *own: once(*own[:-1], 2))
    assert dynamic_width.main(["--out", str(tmp_path / "report.json")]) == 0
    parts = json.loads((tmp_path / "report.json").read_text())["parts"]
    assert len(parts) == 10
    for name, part in parts.items():
        assert set(part["variants"]) == {"dense", "masked", "sliced"}
        assert part["variants"]["sliced"]["n_rounds"] == 2
        assert part["bucketed_fraction"] >= part["asked_fraction"]
        assert (part["bucketed_fraction"] == 1.0) == name.startswith("full")
