import os
import sysconfig
from pathlib import Path

import pytest

from widthwise.config_io import UserError
from widthwise.data import corpus as corpus_module
from widthwise.data.corpus import files_below, named_corpus


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A standard library and a site-packages of a few files, in place of the real ones."""
    stdlib, packages = tmp_path / "stdlib", tmp_path / "packages"
    files = {
        stdlib / "abc.py": "a",
        stdlib / "json" / "decoder.py": "b\r\n",
        stdlib / "json.py": "c",
        stdlib / "empty.py": "",
        stdlib / "notes.txt": "no",
        stdlib / "test" / "test_abc.py": "t",
        stdlib / "lib2to3" / "tests" / "x.py": "t",
        stdlib / "idlelib" / "idle_test" / "x.py": "t",
        stdlib / "__pycache__" / "abc.py": "no",
        stdlib / "site-packages" / "x.py": "no",
        packages / "pkg" / "tests" / "test_pkg.py": "p",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (stdlib / "latin.py").write_bytes(b"\xe9")
    places = {"stdlib": stdlib, "purelib": packages, "platlib": packages}
    monkeypatch.setattr(corpus_module.sysconfig, "get_path", lambda key: str(places[key]))


def listing(name: str) -> dict[str, str]:
    return {document.name: document.text for document in named_corpus(name)}


def test_stdlib_has_no_tests_no_packages_and_keeps_bytes(library):
    assert listing("python-stdlib") == {"abc.py": "a", "json.py": "c", "json/decoder.py": "b\r\n"}


def test_names_are_sorted_by_relative_path(library):
    names = list(listing("python-stdlib"))
    assert names == sorted(names)


def test_installed_python_adds_tests_and_packages(library):
    assert set(listing("installed-python")) == {
        "stdlib/abc.py",
        "stdlib/json.py",
        "stdlib/json/decoder.py",
        "stdlib/test/test_abc.py",
        "stdlib/lib2to3/tests/x.py",
        "stdlib/idlelib/idle_test/x.py",
        "site-packages/pkg/tests/test_pkg.py",
    }


def test_the_real_standard_library_is_megabytes_of_text():
    documents = list(named_corpus("python-stdlib"))
    assert sum(len(document.text) for document in documents) > 5_000_000
    root = Path(sysconfig.get_path("stdlib"))
    assert all((root / document.name).is_file() for document in documents[:5])


def test_a_file_reached_twice_through_links_counts_once(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").write_text("x")
    os.symlink(tmp_path / "b" / "file", tmp_path / "a_link")
    os.symlink(tmp_path, tmp_path / "b" / "loop")
    os.symlink(tmp_path / "b", tmp_path / "c")
    assert files_below(tmp_path) == [tmp_path / "a_link"]


def test_unknown_corpus_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean 'python-stdlib'"):
        named_corpus("python-stdlb")
