"""Import from the Hugging Face Hub, against a server on this machine that speaks its protocol."""

import hashlib
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from boxes import refusal
from ranks import said_by_script

from widthwise.interop.hub import import_source
from widthwise.runs.open import open_model

hub = pytest.importorskip("huggingface_hub", reason="needs the extra [hf]")
transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")

STATUSES = {"org/busy": 429, "org/down": 503}
SHAS = {"main": "a" * 40, "v1": "b" * 40}
SCRIPT = """
import contextlib, io, json, os, sys
from widthwise.cli.main import main

calls, endpoint, cache = map(json.loads, sys.argv[1:])
assert "huggingface_hub" not in sys.modules  # which reads these when it is imported
del os.environ["HF_HUB_OFFLINE"]
os.environ.update(HF_ENDPOINT=endpoint, HF_HUB_CACHE=cache)
found = []
for arguments in calls:
    sys.argv = ["widthwise", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            found.append([end.code or 0, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""
"""Several commands in one process, which has imported torch."""


class _Hub(BaseHTTPRequestHandler):
    """The part of the protocol that a download needs."""

    files: dict[str, dict[str, bytes]]
    """Repository -> name -> content, the same in all its commits."""
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.asked.append(path)
        words = path.split("/")
        is_api = words[:2] == ["api", "models"]
        repository = "/".join(words[2:4] if is_api else words[:2])
        kind, revision, *rest = words[4:] if is_api else words[2:]
        files, sha = self.files.get(repository), SHAS.get(revision, revision)
        if repository == "org/broken":
            self.connection.close()
        elif files is None:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif sha not in SHAS.values():
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif repository in STATUSES:
            self._answer(STATUSES[repository], b"")
        elif kind == "revision":
            sha = "../" * 3 + "outside" if repository == "org/evil" else sha
            siblings = [{"rfilename": name} for name in files]
            self._answer(200, json.dumps({"id": repository, "sha": sha, "siblings": siblings}).encode())
        elif kind == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(files[name]), "oid": _etag(files[name])} for name in files
            ]
            self._answer(200, json.dumps(entries).encode())
        elif repository == "org/gated":
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        else:
            content = files["/".join(rest)]
            self._answer(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": sha})

    def _answer(self, code: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


def _etag(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in a folder."""
    path = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=32, max_position_embeddings=16, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (path / name).write_text("{}")
    return path


@pytest.fixture(scope="module")
def endpoint(folder: Path) -> Iterator[str]:
    """A server with a model that has more files than are needed, one of pickles, and one that is gated."""
    model = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = {"config.json": model["config.json"]}
    pickled = {"pytorch_model.bin": b"pickle", "modeling.py": b"code", "onnx/model-q4.json": b"{}"}
    _Hub.files = {"org/llama": {**model, **pickled}, "org/pickled": config | pickled, "org/gated": config}
    mamba = {"config.json": b'{"model_type": "mamba"}', "model.safetensors": b"large"}
    _Hub.files |= {"org/mamba": mamba, **dict.fromkeys((*STATUSES, "org/evil"), model)}
    _Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no network."""
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_commit_becomes_a_run_that_records_it(endpoint: str, folder: Path, offline: Path, tmp_path: Path) -> None:
    commands = {
        ("org/llama", "main"): "",
        ("hf://org/llama", "tagged", "--revision", "v1", "--json"): "",
        ("org/llama", "x", "--revision", "v9"): "org/llama at v9: has no such revision",
        ("org/none", "x"): "org/none: is neither a local folder nor a model on the hub",
        ("org/gated", "x"): "org/gated: is gated; accept its terms",
        ("org/pickled", "x"): "org/pickled: holds no model.safetensors; weights in other files, such as pickles",
        ("org/broken", "x"): "org/broken: is no local folder, the hub cannot be reached",
        ("org/busy", "x"): "org/busy: the hub answers with an error, HTTP 429; try again later",
        ("org/down", "x"): "org/down: the hub answers with an error, HTTP 503; try again later",
        ("org/evil", "x"): "org/evil: the hub names the commit '../../../outside'; allowed: 40 hexadecimal digits",
        ("org/mamba", "x"): "config.json: model_type: got 'mamba'; allowed: gpt2",
    }
    calls = [("import", *each) for each in commands]
    # The model has 32 tokens, so that there is no text for it; that is known when it has been read.
    calls.append(
        ("shrink", "org/llama", "--flops", "0.7", "--out", "x", "data.corpus=synthetic", "data.tokenizer=bytes")
    )
    commands["shrink",] = "model.vocab_size: got 32; must be at least 257"
    (script := tmp_path / "script.py").write_text(SCRIPT)
    (printed,) = said_by_script(1, script, *map(json.dumps, (calls, endpoint, str(offline))), folder=tmp_path)
    for (code, _, err), message in zip(json.loads(printed.splitlines()[-1]), commands.values(), strict=True):
        assert (code, len(err.splitlines())) == (2 if message else 0, 1 if message else 0), err
        assert message in err
    assert not (tmp_path / "x").exists()

    wanted = {path.name for path in folder.iterdir()}
    for run, sha in (("main", SHAS["main"]), ("tagged", SHAS["v1"])):
        origin = json.loads((tmp_path / run / "environment.json").read_text())["imported"]
        assert (origin["folder"], origin["commit"], origin["files"].keys()) == ("org/llama", sha, wanted)
    assert not any("mamba" in path and "safetensors" in path for path in _Hub.asked if "/resolve/" in path)
    fetched = {path.rsplit("/", 1)[1] for path in _Hub.asked if "/resolve/" in path}
    assert fetched == wanted  # neither pickles nor code

    for revision, sha in SHAS.items():  # the branch and the tag from the cache, without the network
        snapshot = offline / "models--org--llama" / "snapshots" / sha
        assert import_source("org/llama", revision) == (snapshot, {"folder": "org/llama", "commit": sha})
    assert "snapshots/" + SHAS["main"] + ": has no tokenizer.json" in refusal(open_model, "org/llama")


def test_without_the_network_what_is_not_in_the_cache_is_refused(offline: Path) -> None:
    assert "org/llama: is no local folder, the hub cannot be reached" in refusal(import_source, "org/llama")


def test_a_folder_of_that_name_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch, offline: Path) -> None:
    monkeypatch.chdir(folder.parent.parent)
    source = f"{folder.parent.name}/{folder.name}"
    assert import_source(source) == (Path(source), {"folder": folder.name})
    for wrong, said in (
        ((f"hf://{source}",), "cannot be reached"),
        ((source, "v1"), "--revision: got v1"),
        (("hf://org",), "allowed: hf://org/name"),
    ):
        assert said in refusal(import_source, *wrong)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, offline: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "run: pip install 'widthwise[hf]'" in refusal(import_source, "org/llama")
