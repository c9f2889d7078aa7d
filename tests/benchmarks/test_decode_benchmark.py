import json
from dataclasses import replace

import decode
import pytest
import torch

pytest.importorskip("transformers", reason="the comparison with transformers needs the extra [hf]")
TOY = decode.Case(48, 8, batch_size=3, context=9, n_new=5, precision="fp32", n_layers=4, vocab_size=61)


def test_our_tokens_are_transformers_and_each_call_finds_them_again():
    ours = decode.Ours(TOY.model("uniform"), TOY)
    theirs = decode.Theirs(ours.model, TOY, ours.cache)
    first = ours()
    assert first.shape == (3, 5)
    for _ in range(2):
        assert torch.equal(ours(), first)
        assert torch.equal(theirs(), first)


def test_tokens_that_differ_are_refused(monkeypatch):
    monkeypatch.setattr(decode.Theirs, "__call__", lambda self: torch.full((3, 5), -1))
    with pytest.raises(ValueError, match="15 of 15 tokens differ"):
        decode.decoding(TOY, n_rounds=1)


def test_ratios_are_those_of_tokens_per_second():
    report = decode.decoding(replace(TOY, precision="bf16"), n_rounds=2)
    assert set(report["variants"]) == {"uniform", "x", "transformers"}
    assert report["x_over_uniform"] == 1 / report["variants"]["x"]["cpu_ratio"]["median"]
    assert report["uniform_over_transformers"] == report["variants"]["transformers"]["cpu_ratio"]["median"]
    json.dumps(report)


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in decode.cases()]
    assert len(set(names)) == len(names)
