"""What every record does, shown on the record of a run, and what notices that a byte of a file was changed."""

import json
import re
import shutil
from pathlib import Path

import pydantic
import pytest
from small_costs import small_cost, small_variant
from tiny_runs import tiny_recipe

from widthwise.data.config import open_data
from widthwise.growth.choices import NewSizes
from widthwise.mistakes import UserError
from widthwise.records.estimate import EqualLoss, Estimate
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import CHECKSUMS, ReportRecord, SealedFile, StoredRecord, digests
from widthwise.records.run import PlannedRuns, RunResult, describe_changes
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import evaluate_run, save_evaluation
from widthwise.runs.grow import grow_run
from widthwise.runs.scoring import EvaluationConfig


def test_a_field_is_read_by_its_key_also_where_the_file_has_none_and_a_changed_copy_is_checked() -> None:
    data = RunResult(seed=3, val_loss=2.75, cost=small_cost(), notes=["a note"]).to_data()
    result = RunResult.model_validate(data)
    assert result["val_loss"] == result.val_loss == data["val_loss"]
    assert "peak_memory_bytes" not in result
    assert result["peak_memory_bytes"] is None
    with pytest.raises(KeyError):
        result["val_los"]
    assert result.with_changes(seed=9).to_data() == {**data, "seed": 9}
    with pytest.raises(pydantic.ValidationError):
        result.with_changes(seed="nine")


def test_what_is_needed_for_the_same_loss_is_read_for_each_depth_apart() -> None:
    fields = ("tokens_ratio", "training_flops_ratio", "tokens", "training_flops")
    names = ("tokens_at_equal_loss", "training_flops_at_equal_loss")
    names += ("tokens_to_baseline_loss", "training_flops_to_baseline_loss")
    firsts = {"": 10, "_next_2": 20, "_next_3": 30}
    at_equal_loss = {
        f"val_loss{end}": EqualLoss(n_reached=1, **{field: Estimate(mean=first + i) for i, field in enumerate(fields)})
        for end, first in firsts.items()
    }
    variant = small_variant(at_equal_loss=at_equal_loss)
    for end, first in firsts.items():
        assert [QUANTITY[name + end].value(variant) for name in names] == [first, first + 1, first + 2, first + 3]
    assert QUANTITY["tokens_at_equal_loss_next_4"].value(variant) is None


def test_there_is_no_ratio_where_one_of_the_two_lacks_the_number() -> None:
    bits = QUANTITY["val_bits_per_byte"]
    with_3, with_1_5, with_0 = (small_variant(val_bits_per_byte=Estimate(mean=mean)) for mean in (3.0, 1.5, 0.0))
    without = small_variant()
    assert bits.ratio(with_3, with_1_5) == 2
    for variant, baseline in ((with_3, without), (without, with_1_5), (without, without), (with_3, with_0)):
        assert bits.ratio(variant, baseline) is None


PLANNED = PlannedRuns(command="widthwise compare a.yaml", title="+0.125.\n∅ is a tie.", runs=[])


@pytest.mark.parametrize("key", ["runs", "title", "new"])
def test_an_entry_that_is_changed_added_or_gone_is_refused_by_name(tmp_path: Path, key: str) -> None:
    """A file without checksums is read unchecked."""
    (tmp_path / "planned.json").write_text(json.dumps(PLANNED.to_data()))
    assert PlannedRuns.read(tmp_path) == PLANNED
    path = PLANNED.write(tmp_path)
    written = json.loads(path.read_text())
    assert PlannedRuns.read(tmp_path) == PLANNED
    for changed in ({**written, key: "-"}, {name: value for name, value in written.items() if name != key}):
        path.write_text(json.dumps(changed))
        if changed != written:
            with pytest.raises(UserError, match=rf"^{path}: {key}: was changed after it was written; "):
                PlannedRuns.read(tmp_path)


@pytest.mark.parametrize(
    ("path", "before", "after", "is_another_run"),
    [
        ("data.path", "a", "b", False),
        ("train.shards", 1, 2, False),
        ("optimizer.lr", 0.01, 0.02, True),
        ("data.mask_documents", False, True, True),  # how data are read, wherever they are
        ("data.mask_documents", None, False, False),
    ],
)
def test_of_one_run_only_places_and_processes_change(path: str, before: object, after: object, is_another_run) -> None:
    section, key = path.split(".")
    found = describe_changes({section: {key: before}}, {section: {key: after}}, skip_allowed=True)
    assert bool(found) == is_another_run


ROOT = Path(__file__).parents[2]
CHECKED_BY = {
    "a checksum of each entry": """analysis.json certificate.json environment.json evaluation_table.json
        manifest.json outcome.json planned.json result.json scaling.json search.json tracking.json""",
    "the seal of checkpoints and of the result": "metrics.jsonl",
    "manifest.json": "state.json rng.safetensors model.safetensors .names.jsonl tokenizer.json tokenizer_spec.json",
    "nothing, because it is only shown": "samples.jsonl",
    "the reader of analyses, which counts its tokens": "text.jsonl",
    "the readers of Hugging Face folders": """config.json generation_config.json model.safetensors.index.json
        tokenizer_config.json special_tokens_map.json adapter_config.json""",
}


def test_of_every_file_it_is_known_what_notices_a_change() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r'"([\w.-]*\w\.(?:json|jsonl|safetensors))"', sources))
    assert names == {name for listed in CHECKED_BY.values() for name in listed.split()}


ENTRIES = {"loss": 2.5, "names": ["ä", None], "seal": {"is_tied": True}}


def test_every_flipped_bit_of_a_sealed_file_is_refused_or_harmless(tmp_path: Path) -> None:
    file = SealedFile(tmp_path / "record.json")
    file.write(ENTRIES)
    content = file.path.read_bytes()
    for i in range(8 * len(content)):
        file.path.write_bytes(content[: i // 8] + bytes([content[i // 8] ^ 1 << i % 8]) + content[i // 8 + 1 :])
        try:
            assert file.read().items() >= ENTRIES.items(), i
        except UserError as error:
            assert str(error).startswith(f"{file.path}: ")  # noqa: PT017


def test_what_the_verbs_write_into_runs_and_data_is_sealed(finished: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    grow_run(finished, grown, sizes=NewSizes(add_layers=1))
    save_evaluation(evaluate_run(grown, EvaluationConfig(max_tokens=20)))
    names, files = CHECKED_BY["a checksum of each entry"].split(), [*grown.glob("evaluations/*")]
    for folder in (finished, grown, open_data(tiny_recipe().data).path):
        files += [path for path in folder.rglob("*.json") if path.name in names]
    assert {path.name for path in files} > {"certificate.json", "environment.json", "manifest.json", "result.json"}
    for path in files:
        entries = json.loads(path.read_text())
        checksums = entries.pop(CHECKSUMS)
        if path.name == "result.json":
            entries["seal"], checksums = checksums["seal"], checksums["entries"]
        assert checksums == digests(entries), path


def test_a_changed_seal_of_a_result_is_named_as_such(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    path = run / "result.json"
    whole = json.loads(path.read_text())
    whole[CHECKSUMS]["seal"]["metrics"]["n_bytes"] += 1
    path.write_text(json.dumps(whole))
    with pytest.raises(UserError, match=rf"^{path}: seal.* was changed"):
        RunDir(run).result()


def test_committed_records_are_sealed_and_those_without_checksums_are_read(tmp_path: Path) -> None:
    stored = [*StoredRecord.__subclasses__(), *ReportRecord.__subclasses__()]
    kinds = {kind.file_name: kind for kind in stored if kind is not ReportRecord}
    paths = [path for path in (ROOT / "benchmarks" / "results").rglob("*.json") if path.name in kinds]
    assert len({path.name for path in paths}) >= 3
    for path in paths:
        record = kinds[path.name].read(path.parent)
        entries = json.loads(path.read_text())
        assert entries.pop(CHECKSUMS) == digests(entries)
        (tmp_path / path.name).write_text(json.dumps(entries))
        assert kinds[path.name].read(tmp_path) == record
