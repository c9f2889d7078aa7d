"""Import from the Hugging Face Hub: what is fetched and recorded, and the reasons of failures."""

import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from boxes import refusal
from hf_models import hf_folder

from widthwise.interop.hf_import import import_source
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.save import import_run

hub = pytest.importorskip("huggingface_hub", reason="needs the extra [hf]")

SHAS = {"main": "a" * 40, "v1": "b" * 40}
LLAMA = ("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json")
REPOSITORIES = {
    "org/llama": (*LLAMA, "pytorch_model.bin", "modeling.py", "onnx/model-q4.json"),
    "org/pickled": ("config.json", "pytorch_model.bin"),
    "org/evil": LLAMA,
    "org/mamba": LLAMA,
}


def error_of(kind: str, status: int = 0) -> Exception:
    """An error of huggingface_hub, as it comes of a response with that status."""
    error = (kind_of := getattr(hub.errors, kind)).__new__(kind_of)
    error.response = SimpleNamespace(status_code=status)
    return error


ERRORS = {
    "org/none": (error_of("RepositoryNotFoundError", 404), "is neither a local folder nor a model on the hub"),
    "org/gated": (error_of("GatedRepoError", 403), "is gated; accept its terms"),
    "org/busy": (error_of("HfHubHTTPError", 429), "the hub answers with an error, HTTP 429; try again later"),
    "org/down": (error_of("HfHubHTTPError", 503), "the hub answers with an error, HTTP 503; try again later"),
    "org/broken": (error_of("LocalEntryNotFoundError"), "is no local folder, the hub cannot be reached"),
    "org/full": (OSError(28, "No space left"), "cannot be fetched ([Errno 28] No space left)"),
}
"""Model -> what huggingface_hub raises for it, and the reason that is given."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in a folder, with all files of REPOSITORIES."""
    path = hf_folder(tmp_path_factory.mktemp("llama"), "llama")
    (path / "onnx").mkdir()
    for name in ("tokenizer_config.json", "pytorch_model.bin", "modeling.py", "onnx/model-q4.json"):
        (path / name).write_text("{}")
    return path


@pytest.fixture
def fetched(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hub with REPOSITORIES; names of files in the order in which they are fetched."""
    names: list[str] = []

    def resolve(repo_id: str, revision: str) -> SimpleNamespace:
        if repo_id in ERRORS:
            raise ERRORS[repo_id][0]
        if revision not in SHAS:
            raise error_of("RevisionNotFoundError", 404)
        return SimpleNamespace(resolved="../outside" if repo_id == "org/evil" else SHAS[revision])

    def download(repo_id: str, revision: Any, allow_patterns: tuple[str, ...]) -> str:
        folder = tmp_path / "cache" / repo_id / revision.resolved
        folder.mkdir(parents=True, exist_ok=True)
        for name in REPOSITORIES[repo_id]:
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                names.append(name)
                (folder / name).write_bytes((llama / name).read_bytes())
        if repo_id == "org/mamba":
            (folder / "config.json").write_text('{"model_type": "mamba"}')
        return str(folder)

    monkeypatch.setattr(hub, "resolve_revision", resolve)
    monkeypatch.setattr(hub, "snapshot_download", download)
    return names


def test_a_commit_becomes_a_run_that_records_it(fetched: list[str], tmp_path: Path) -> None:
    """Neither pickles nor code are fetched."""
    for source, revision in (("org/llama", None), ("hf://org/llama", "v1")):
        out = tmp_path / f"run {revision}"
        import_run(source, out, revision=revision)
        origin = RunDir(out).environment()["imported"]
        assert (origin["folder"], origin["commit"]) == ("org/llama", SHAS[revision or "main"])
        assert origin["files"].keys() == set(fetched) == set(LLAMA)
    assert ": has no tokenizer.json" in refusal(open_model, "org/llama")


def test_a_model_that_cannot_be_had_is_refused_with_the_reason(fetched: list[str]) -> None:
    for name, (_, reason) in ERRORS.items():
        assert refusal(import_source, name).startswith(f"{name}: {reason}")
    for name, revision, reason in (
        ("org/llama", "v9", "org/llama at v9: has no such revision"),
        ("org/pickled", None, "org/pickled: holds no model.safetensors; weights in other files, such as pickles"),
        ("org/evil", None, "org/evil: the hub names the commit '../outside'; allowed: 40 hexadecimal digits"),
        ("org/mamba", None, "config.json: model_type: a mamba has state-space layers, which is not supported"),
        ("hf://org", None, "allowed: hf://org/name"),
    ):
        del fetched[:]
        assert reason in refusal(import_source, name, revision)
        assert "model.safetensors" not in fetched


def test_a_folder_of_that_name_comes_first(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llama.parent.parent)
    source = f"{llama.parent.name}/{llama.name}"
    assert import_source(source) == (Path(source), {"folder": llama.name})
    assert "--revision: got v1" in refusal(import_source, source, "v1")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "run: pip install 'widthwise[hf]'" in refusal(import_source, "org/llama")
