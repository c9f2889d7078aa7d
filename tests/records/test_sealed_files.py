"""Every file that the package writes and reads back, and what notices that a byte of it was changed."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from widthwise.data.config import open_data
from widthwise.growth.choices import NewSizes
from widthwise.mistakes import UserError
from widthwise.records.record import CHECKSUMS, SealedFile, StoredRecord, digests
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import evaluate_run, save_evaluation
from widthwise.runs.grow import grow_run
from widthwise.runs.scoring import EvaluationConfig

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
    folders = (finished, grown, open_data(tiny_recipe().data).path)
    files = {path for folder in folders for path in folder.rglob("*.json")}
    files = {path for path in files if path.name in CHECKED_BY["a checksum of each entry"].split()}
    files |= set(grown.glob("evaluations/*"))
    names = {path.name for path in files}
    assert names > {"certificate.json", "environment.json", "manifest.json", "result.json"}
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
    kinds = {kind.file_name: kind for kind in StoredRecord.__subclasses__()}
    paths = [path for path in (ROOT / "benchmarks" / "results").rglob("*.json") if path.name in kinds]
    assert len({path.name for path in paths}) >= 3
    for path in paths:
        record = kinds[path.name].read(path.parent)
        entries = json.loads(path.read_text())
        assert entries.pop(CHECKSUMS) == digests(entries)
        (tmp_path / path.name).write_text(json.dumps(entries))
        assert kinds[path.name].read(tmp_path) == record
