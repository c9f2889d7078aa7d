import json

import attention
import pytest
import torch


@pytest.mark.parametrize("precision", attention.DTYPES)
@pytest.mark.parametrize("case", [attention.Case(9, 32, 4), attention.Case(9, 64, n_documents=2)], ids=str)
def test_both_forms_are_timed_and_give_the_same(case, precision, monkeypatch):
    monkeypatch.setattr(attention, "N_TOKENS", 18)
    n_threads = torch.get_num_threads()
    report = attention.blocks_over_sdpa(case, precision, n_threads=1, n_rounds=2)
    assert torch.get_num_threads() == n_threads
    assert report["ratios"].keys() == {"forward", "forward and backward"}
    inputs, documents = case.heads(torch.float64), case.documents()
    ours, truth = (form(*inputs, 0.3, documents) for form in attention.FORMS.values())
    torch.testing.assert_close(ours, truth)


def test_the_command_writes_every_part(monkeypatch, tmp_path):
    monkeypatch.setattr(attention, "CASES", [attention.Case(5, 128)])
    assert attention.main(["--out", str(tmp_path / "found.json"), "--threads", "1"]) == 0
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert list(parts) == ["5 tokens, heads of 128/fp32/1 thread", "5 tokens, heads of 128/bf16/1 thread"]
