import os

import pytest
from source_folders import make_source

from widthwise.config_io import UserError
from widthwise.data import plan as plan_module
from widthwise.data.plan import begin, make_plan, planned_tokenizer, read_plan


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "MIN_PART_BYTES", 1)
    return make_source(tmp_path / "source")


@pytest.mark.parametrize("max_parts", [1, 2, 3, 5, 8, 100])
def test_parts_hold_every_file_once_in_order(source, max_parts):
    plan = make_plan(str(source), max_parts=max_parts)
    parts = [plan.files_of(part) for part in range(plan.n_parts)]
    assert [file for part in parts for file in part] == list(plan.files)
    assert [file.name for file in plan.files] == sorted(path.name for path in source.iterdir())
    assert all(parts)
    assert plan.n_parts <= max_parts


def test_parts_have_about_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "MIN_PART_BYTES", 1)
    for number in range(40):
        (tmp_path / f"{number:02d}.txt").write_text("x" * (10 + number))
    plan = make_plan(str(tmp_path), max_parts=4)
    n_bytes = [plan.n_bytes_of(part) for part in range(plan.n_parts)]
    assert len(n_bytes) == 4
    assert max(n_bytes) - min(n_bytes) <= 2 * 49


def test_a_small_source_is_one_part(tmp_path):
    assert make_plan(str(make_source(tmp_path / "source"))).n_parts == 1


def test_one_file_is_a_source_too(source):
    plan = make_plan(str(source / "00.jsonl"))
    assert plan.open(plan.files[0]).path == source / "00.jsonl"


@pytest.mark.parametrize("name", ["synthetic", "python-stdlib", "hf:books"])
def test_a_source_without_files_is_refused(name):
    with pytest.raises(UserError, match=f"^{name}: is not a folder of files, which workers share"):
        make_plan(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 1.0}, "held_out: got 1.0"),
        ({"max_tokens": 0}, "max_tokens: got 0"),
        ({"document_bytes": 0}, "document_bytes: got 0"),
        ({"tokenizer": "gpt5"}, "tokenizer 'gpt5'"),
    ],
)
def test_mistakes_are_refused(source, options, message):
    with pytest.raises(UserError, match=message):
        make_plan(str(source), **options)


def test_a_plan_is_read_as_it_was_written_and_its_tokenizer_is_trained_once(source, tmp_path):
    plan = make_plan(str(source), tokenizer="bpe-300")
    stages = []
    for _ in range(2):
        begin(plan, tmp_path / "parts", lambda stage, *_: stages.append(stage))
    assert stages == ["training the tokenizer"]
    assert read_plan(tmp_path / "parts") == plan
    tokenizer, path = planned_tokenizer(plan, tmp_path / "parts")
    assert (tokenizer.spec, tokenizer.vocab_size, path.parent) == ("bpe-300", 300, tmp_path / "parts")


def test_a_folder_of_another_plan_is_refused(source, tmp_path):
    begin(make_plan(str(source), tokenizer="bytes"), tmp_path / "parts")
    with pytest.raises(UserError, match="holds the parts of another preparation"):
        begin(make_plan(str(source), tokenizer="bytes", held_out=0.1), tmp_path / "parts")


def test_a_file_of_another_size_or_time_is_another_plan_and_is_not_opened(source):
    plan = make_plan(str(source))
    os.utime(source / "00.jsonl", (1, 1))
    assert make_plan(str(source)) != plan
    with pytest.raises(UserError, match=r"00\.jsonl: was changed after the preparation was planned"):
        plan.open(plan.files[0])


def test_a_tokenizer_file_with_other_content_is_another_plan(source, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    plan = make_plan(str(source), tokenizer=f"{tmp_path}/tokenizer.json#<s>")
    (tmp_path / "tokenizer.json").write_text("{ }")
    assert make_plan(str(source), tokenizer=f"{tmp_path}/tokenizer.json#<s>") != plan
