import json

import preparation


def test_it_runs_and_reports_the_ratio_to_the_bare_tokenizer(tmp_path):
    assert preparation.main(["--quick", "--out", str(tmp_path / "found.json")]) == 0
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert set(parts) == set(preparation.FORMS)
    for part in parts.values():
        assert part["variants"]["encode_batch_fast"]["wall_ratio"]["median"] == 1
        assert part["meets_target"] == (part["variants"]["prepare"]["wall_ratio"]["median"] < part["target"])
        assert part["n_bytes"] >= preparation.QUICK["n_bytes"]


def test_batches_hold_every_text_once_in_order():
    texts = ["a" * 700_000, "b" * 700_000, "", "c"]
    assert [*preparation.batches(texts)] == [texts[:2], texts[2:]]
