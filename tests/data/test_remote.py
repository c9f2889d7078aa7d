"""A prepared folder at a URL is fetched into the cache; an untrusted folder can do no harm."""

import functools
import hashlib
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from boxes import refusal
from source_folders import check_same_bytes, in_manifest

from widthwise.config_io import parse
from widthwise.data.config import DataConfig, open_data
from widthwise.data.corpus import named_corpus
from widthwise.data.prepare import prepare
from widthwise.data.prepared import PreparedData
from widthwise.data.remote import check_url, fetched
from widthwise.mistakes import UserError


@pytest.fixture
def folder(original, tmp_path, cache):
    return shutil.copytree(original, tmp_path / "remote")


@pytest.fixture
def server(folder):
    """The folder served over HTTP: its `url`, the requested `paths`, and a function to `stop` the server."""
    paths: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            paths.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", paths=paths, stop=stop)
    stop()


def cached_files(cache) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file()} - {".lock"}


def check_equal(data: PreparedData, original) -> None:
    data.verify()
    check_same_bytes(data.path, original)


def test_a_folder_at_a_url_is_the_folder_in_a_place_named_by_its_whole_address(folder, original, cache):
    seen, url = [], folder.as_uri()
    data = open_data(parse(DataConfig, {"path": url, "tokenizer": "bytes"}), lambda *report: seen.append(report))
    check_equal(data, original)
    places = [hashlib.sha256(each).hexdigest()[:16] for each in (url.encode(), (folder / "manifest.json").read_bytes())]
    assert data.path.is_relative_to(cache)
    assert [data.path.parent.name, data.path.name] == [f"remote-{places[0]}", places[1]]
    n_bytes = sum(record.n_bytes for record in data.manifest.files.values())
    assert (f"fetching {url}", n_bytes, n_bytes) in seen


def test_a_later_start_fetches_the_manifest_alone_and_needs_no_network(server, original):
    check_equal(PreparedData.open(server.url), original)
    assert any(path.startswith("/train.bin") for path in server.paths)
    server.paths.clear()
    PreparedData.open(server.url + "/")
    assert set(server.paths) == {"/manifest.json"}
    server.stop()
    with pytest.warns(UserWarning, match=r"manifest\.json: cannot be fetched .* using the copy fetched earlier"):
        check_equal(PreparedData.open(server.url), original)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: bytes([b[0] ^ 1]) + b[1:], None])
def test_a_file_that_is_missing_or_not_what_the_manifest_promises_leaves_nothing(folder, cache, change):
    content = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(change(content)) if change else (folder / "train.bin").unlink()
    with pytest.raises(UserError, match=r"train\.bin: (differs from its manifest|cannot be fetched)"):
        PreparedData.open(folder.as_uri())
    assert cached_files(cache) == set()
    (folder / "train.bin").write_bytes(content)
    PreparedData.open(folder.as_uri()).verify()


def test_a_changed_manifest_is_fetched_with_its_files_and_the_old_copy_stays(folder, cache, tmp_path):
    old = PreparedData.open(folder.as_uri())
    shutil.rmtree(folder)
    new = prepare(named_corpus("synthetic"), folder, tokenizer="bytes", held_out=0.3)
    assert PreparedData.open(folder.as_uri()).manifest == new.manifest
    old.verify()


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/../../outside"])
def test_a_strangers_manifest_writes_nothing_outside_the_cache(folder, cache, tmp_path, name):
    (tmp_path / "outside").write_text("kept")
    in_manifest(lambda said: said["files"].update({name: said["files"]["train.bin"]}))(folder)
    with pytest.raises(UserError, match=f"got '{name}'; allowed: a path inside the folder"):
        PreparedData.open(folder.as_uri())
    assert (tmp_path / "outside").read_text() == "kept"
    assert cached_files(cache) == set()


def test_of_several_that_fetch_at_once_all_wait_for_one(server, cache):
    with ThreadPoolExecutor(3) as pool:
        folders = {data.path for data in pool.map(PreparedData.open, [server.url] * 3)}
    assert len(folders) == 1
    assert server.paths.count("/train.idx") == 2  # its size, and the file


def test_a_url_with_a_secret_is_refused_before_it_is_stored_and_not_shown(cache):
    for url in (
        "s3://key:hunter2@bucket/books",
        "https://me:hunter2@host/books",
        "https://host/books?token=hunter2",
        "https://host/books#hunter2",
    ):
        for opened in (lambda url: parse(DataConfig, {"path": url}), PreparedData.open):
            assert "hunter2" not in refusal(opened, url)
    assert check_url("az://container@account.host/books") == "az://container@account.host/books"


def test_a_protocol_outside_the_list_is_refused_and_a_missing_extra_is_named(cache, monkeypatch):
    for protocol in ("books", "memory", "reference", "HTTP", "arrow_hdfs", "x" * 10**5):
        with pytest.raises(UserError, match=r"got protocol '.{1,60}; allowed: file, http, https, s3, gs, gcs, az, hf$"):
            PreparedData.open(f"{protocol}://a")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"fsspec is not installed; run: pip install 'widthwise\[remote\]'"):
        fetched("file:///x", lambda *_: None)
