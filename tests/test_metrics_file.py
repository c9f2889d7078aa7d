import pytest

from widthwise.config_io import UserError
from widthwise.metrics_file import MetricsFile

RECORDS = [{"step": step, "event": "train", "loss": 1 / step} for step in (1, 2, 3)]


def test_records_read_back(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    assert metrics.records() == []
    metrics.append(RECORDS[:1])
    metrics.append(RECORDS[1:])
    assert metrics.records() == RECORDS


@pytest.mark.parametrize("n_bytes_lost", [1, 2, 17, 38, 39])
def test_a_torn_last_line_is_left_out_and_rewinding_mends_the_file(tmp_path, n_bytes_lost):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append(RECORDS)
    metrics.path.write_bytes(metrics.path.read_bytes()[:-n_bytes_lost])
    assert metrics.records() == RECORDS[:2]
    metrics.rewind(2)
    metrics.append(RECORDS[2:])
    assert metrics.records() == RECORDS


@pytest.mark.parametrize("step", range(5))
def test_rewinding_drops_what_came_after_the_step(tmp_path, step):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append(RECORDS)
    metrics.rewind(step)
    assert metrics.records() == RECORDS[:step]


def test_rewinding_before_the_first_record(tmp_path):
    MetricsFile(tmp_path / "metrics.jsonl").rewind(0)
    assert MetricsFile(tmp_path / "metrics.jsonl").records() == []


def test_a_broken_line_in_the_middle_is_a_user_error(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "event": "train"}\n{"st\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2: is not valid JSON"):
        MetricsFile(tmp_path / "metrics.jsonl").records()


@pytest.mark.parametrize("line", ["[1]", "{}", '{"step": "1"}', '{"step": true}'])
def test_a_line_that_is_no_record_is_a_user_error(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1: has no whole-number 'step'"):
        MetricsFile(tmp_path / "metrics.jsonl").rewind(1)


def test_a_record_names_its_event(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1: has no 'event'"):
        MetricsFile(tmp_path / "metrics.jsonl").records()


def test_a_full_disk_is_a_user_error(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        MetricsFile(tmp_path / "metrics.jsonl").append(RECORDS)
