"""Which document of its row a token is of, and whether data say so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from widthwise.config_io import UserError, parse, to_data
from widthwise.data.adopt import adopt
from widthwise.data.boundaries import UNTOLD, Boundaries, document_ids, document_positions
from widthwise.data.config import DataConfig, MixtureConfig, open_data
from widthwise.data.prepare import prepare
from widthwise.data.shards import ShardWriter
from widthwise.merging import difference, merge

EOS = 256
BOTH = {"mask_documents": True, "reset_positions": True}


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.sampled_from([3, 7, 9]), min_size=n, max_size=n))))
def test_a_document_ends_behind_its_separator_and_positions_begin_anew_there(columns):
    rows = list(zip(*columns))  # all of one length
    if not rows:
        return
    expected_ids, expected_positions = [], []
    for row in rows:
        document = position = 0
        ids, positions = [], []
        for token in row:
            ids.append(document)
            positions.append(position)
            document, position = (document + 1, 0) if token == 7 else (document, position + 1)
        expected_ids.append(ids)
        expected_positions.append(positions)
    tokens = torch.tensor(rows)
    assert document_ids(tokens, 7).tolist() == expected_ids
    assert document_positions(document_ids(tokens, 7)).tolist() == expected_positions
    told = Boundaries(7, masks=True, resets=True)
    assert told.documents(tokens).tolist() == expected_ids
    assert told.positions(tokens).tolist() == expected_positions


def test_a_model_is_told_only_what_is_asked_for():
    tokens = torch.tensor([[1, 7, 2]])
    for masks, resets in ((True, False), (False, True), (False, False)):
        told = Boundaries(7, masks, resets)
        assert (told.documents(tokens) is not None, told.positions(tokens) is not None) == (masks, resets)


def write(prefix: Path, *documents: list[int]) -> Path:
    with ShardWriter(prefix, np.dtype("<u2")) as writer:
        tokens = np.array([token for document in documents for token in document], dtype="<u2")
        writer.add(tokens, np.array([len(document) for document in documents]))
    return prefix


@pytest.fixture
def unended(tmp_path) -> Path:
    """A prepared folder with a held-out document that has no separator."""
    train = write(tmp_path / "a", [1, 2, EOS], [], [EOS])
    adopt(train, write(tmp_path / "b", [5, EOS], [6, 7]), tmp_path / "unended", tokenizer="bytes")
    return tmp_path / "unended"


def test_options_take_the_separator_from_the_data(tmp_path):
    prepare("synthetic", tmp_path / "out", tokenizer="bytes")
    one = parse(DataConfig, {"path": str(tmp_path / "out"), **BOTH})
    assert one.boundaries(open_data(one)) == Boundaries(EOS, masks=True, resets=True)
    plain = parse(DataConfig, {"path": str(tmp_path / "out"), "mask_documents": False})
    assert plain.boundaries(open_data(plain)) is UNTOLD


@pytest.mark.parametrize("key", BOTH)
def test_documents_that_do_not_end_are_refused_where_they_must_be_told_apart(unended, key):
    config = parse(DataConfig, {"path": str(unended), key: True})
    message = rf"data\.{key}: got true, but document 1 of .*held_out\.bin does not end in the end-of-text token 256"
    with pytest.raises(UserError, match=message) as caught:
        config.boundaries(open_data(config))
    assert len(str(caught.value).splitlines()) == 1
    untold = parse(DataConfig, {"path": str(unended)})
    assert untold.boundaries(open_data(untold)) is UNTOLD


def test_a_mixture_says_it_once_for_all_sources(unended, tmp_path):
    sources = {"own": {"corpus": "synthetic", "tokenizer": "bytes", "weight": 1}}
    sources["other"] = {"path": str(unended), "weight": 2}
    config = parse(MixtureConfig, {"mixture": sources, **BOTH})
    assert parse(MixtureConfig, to_data(config)) == config
    with pytest.raises(UserError, match=r"data\.mask_documents: got true, but document 1 of .*held_out"):
        config.boundaries(open_data(config))
    with pytest.raises(UserError, match=r"mixture\.own.*mask_documents: unknown key"):
        parse(MixtureConfig, {"mixture": {**sources, "own": {**sources["own"], "mask_documents": True}}})


def test_other_data_are_read_in_the_same_way():
    base, change = {"corpus": "synthetic", "verify": "sizes", **BOTH}, {"path": "books"}
    assert merge(base, change) == {"path": "books", **BOTH}
    assert merge(base, difference(base, {"path": "books", **BOTH})) == {"path": "books", **BOTH}
