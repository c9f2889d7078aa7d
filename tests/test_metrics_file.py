"""The records of a run: appended, read back without a torn last line, and taken back to a step."""

import pytest
from boxes import refusal

from widthwise.config_io import UserError
from widthwise.metrics_file import MetricsFile

RECORDS = [{"step": step, "event": "train", "loss": 1 / step} for step in (1, 2, 3)]


@pytest.fixture
def metrics(tmp_path):
    return MetricsFile(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("n_bytes_lost", [1, 17, 39])
def test_a_torn_last_line_is_left_out_and_rewinding_mends_the_file(metrics, n_bytes_lost):
    metrics.append(RECORDS)
    metrics.path.write_bytes(metrics.path.read_bytes()[:-n_bytes_lost])
    assert metrics.records() == RECORDS[:2]
    metrics.rewind(2)
    metrics.append(RECORDS[2:])
    assert metrics.records() == RECORDS


def test_rewinding_drops_what_came_after_the_step(metrics):
    metrics.rewind(0)
    assert metrics.records() == []
    metrics.append(RECORDS)
    for step in (4, 3, 1, 0):
        metrics.rewind(step)
        assert metrics.records() == RECORDS[:step]


def test_a_line_that_is_no_record_is_named(metrics):
    no_step = "line 1: has no whole-number 'step'"
    for text, said in (
        ('{"step": 1, "event": "train"}\n{"st\n', "line 2: is not valid JSON"),
        *((line, no_step) for line in ("[1]\n", "{}\n", '{"step": "1"}\n', '{"step": true}\n')),
        ('{"step": 1}\n', "line 1: has no 'event'"),
    ):
        metrics.path.write_text(text)
        assert f"metrics.jsonl: {said}" in refusal(metrics.records)
        if "step" in said:
            assert f"metrics.jsonl: {said}" in refusal(metrics.rewind, 1)


def test_a_full_disk_is_a_user_error(metrics):
    metrics.path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        metrics.append(RECORDS)
