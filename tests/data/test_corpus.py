"""Corpora by name: the Python files of this machine, and short stories with a grammar."""

import os

from widthwise.data import corpus as corpus_module
from widthwise.data.corpus import files_below, named_corpus


def test_installed_python_is_the_standard_library_with_tests_and_packages_and_keeps_bytes(tmp_path, monkeypatch):
    """With fake standard library and site-packages folders of a few files."""
    kept = {"abc.py": b"a", "json.py": b"c", "json/decoder.py": b"b\r\n"}
    tests = ["test/test_abc.py", "lib2to3/tests/x.py", "idlelib/idle_test/x.py"]
    passed_over = {"empty.py": b"", "notes.txt": b"no", "latin.py": b"\xe9"}
    passed_over |= {"__pycache__/abc.py": b"no", "site-packages/x.py": b"no"}
    stdlib = {**kept, **dict.fromkeys(tests, b"t"), **passed_over}
    files = {f"stdlib/{name}": content for name, content in stdlib.items()}
    for name, content in {**files, "site-packages/pkg/tests/test_pkg.py": b"p"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    places = {"stdlib": "stdlib", "purelib": "site-packages", "platlib": "site-packages"}
    monkeypatch.setattr(corpus_module.sysconfig, "get_path", lambda key: str(tmp_path / places[key]))
    found = [(document.name, document.text.encode()) for document in named_corpus("python-stdlib")]
    assert found == sorted(kept.items())
    expected = {"site-packages/pkg/tests/test_pkg.py", *(f"stdlib/{name}" for name in [*kept, *tests])}
    assert {document.name for document in named_corpus("installed-python")} == expected


def test_a_file_reached_twice_through_links_counts_once(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").write_text("x")
    os.symlink(tmp_path / "b" / "file", tmp_path / "a_link")
    os.symlink(tmp_path, tmp_path / "b" / "loop")
    os.symlink(tmp_path / "b", tmp_path / "c")
    assert files_below(tmp_path) == [tmp_path / "a_link"]


def test_subject_and_verb_of_synthetic_stories_agree():
    documents = list(named_corpus("synthetic"))
    assert 150_000 < sum(len(document.text) for document in documents) < 300_000
    for document in documents:
        sentences = document.text.strip().split(". ")
        hero = sentences[0].split()[-1].rstrip(".")
        for sentence in sentences[1:]:
            *_, subject, verb = sentence.split(" the ")[0].split()
            assert subject.endswith("s") != verb.endswith("s")
            assert subject == hero or subject.endswith("s")
