import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.data.names import NameWriter, names_path, read_names


@given(names=st.lists(st.text(max_size=9)))
def test_any_names_are_read_as_they_were_written(tmp_path_factory, names):
    prefix = tmp_path_factory.mktemp("names") / "train"
    with NameWriter(prefix) as writer:
        writer.add(names[:3])
        writer.add(names[3:])
    assert list(read_names(prefix)) == names
    assert names_path(prefix).read_bytes().count(b"\n") == len(names)
    with NameWriter(prefix.with_name("twice")) as writer:
        writer.append(prefix)
        writer.append(prefix)
    assert list(read_names(prefix.with_name("twice"))) == names * 2


def test_a_name_with_bytes_that_are_no_text_is_kept(tmp_path):
    name = b"caf\xe9\n.txt".decode(errors="surrogateescape")
    with NameWriter(tmp_path / "train") as writer:
        writer.add([name])
    assert list(read_names(tmp_path / "train")) == [name]


@pytest.mark.parametrize(("line", "message"), [(b"3", "holds int, not the name"), (b"\xff", "is not valid JSON")])
def test_anything_else_is_refused_with_its_line(tmp_path, line, message):
    names_path(tmp_path / "train").write_bytes(b'"a"\n' + line + b"\n")
    with pytest.raises(UserError, match=rf"train\.names\.jsonl: line 2: {message}"):
        list(read_names(tmp_path / "train"))
