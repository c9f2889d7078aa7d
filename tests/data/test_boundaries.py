"""Which document of its row a token is of, and whether data say so."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import UserError, parse, to_data
from widthwise.data.config import DataConfig, MixtureConfig, open_data
from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.data.prepared import adopt
from widthwise.data.shards import write_tokens

EOS = 256
BOTH = {"mask_documents": True, "reset_positions": True}


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.sampled_from([3, 7, 9])] * 9), min_size=1))
def test_a_document_ends_behind_its_separator_and_positions_begin_anew_there(rows):
    tokens = torch.tensor(rows)
    told = Boundaries(7, masks=True, resets=True)
    for row, documents, positions in zip(rows, told.documents(tokens).tolist(), told.positions(tokens).tolist()):
        ends = [0, *(i + 1 for i, token in enumerate(row) if token == 7)]
        assert documents == [sum(end <= i for end in ends) - 1 for i in range(len(row))]
        assert positions == [i - max(end for end in ends if end <= i) for i in range(len(row))]
    for masks, resets in ((True, False), (False, True), (False, False)):  # a model is told only what is asked for
        told = Boundaries(7, masks, resets)
        assert (told.documents(tokens) is not None, told.positions(tokens) is not None) == (masks, resets)


@pytest.fixture
def unended(tmp_path) -> str:
    """A prepared folder with a held-out document that has no separator."""
    write_tokens(tmp_path / "a", EOS + 1, [[1, 2, EOS], [], [EOS]])
    write_tokens(tmp_path / "b", EOS + 1, [[5, EOS], [6, 7]])
    adopt(tmp_path / "a", tmp_path / "b", tmp_path / "unended", tokenizer="bytes")
    return str(tmp_path / "unended")


def test_options_take_the_separator_from_the_data(original):
    config = parse(DataConfig, {"path": str(original), **BOTH})
    assert config.boundaries(open_data(config)) == Boundaries(EOS, masks=True, resets=True)


def test_documents_that_do_not_end_are_refused_where_they_must_be_told_apart(unended):
    for key in BOTH:
        config = parse(DataConfig, {"path": unended, key: True})
        message = rf"data\.{key}: got true, but document 1 of .*held_out\.bin does not end in the end-of-text token 256"
        with pytest.raises(UserError, match=message):
            config.boundaries(open_data(config))
    untold = parse(DataConfig, {"path": unended, "mask_documents": False})
    assert untold.boundaries(open_data(untold)) is NO_BOUNDARIES


def test_a_mixture_says_it_once_for_all_sources(unended, original):
    sources = {"own": {"path": str(original), "weight": 1}, "other": {"path": unended, "weight": 2}}
    config = parse(MixtureConfig, {"mixture": sources, **BOTH})
    assert parse(MixtureConfig, to_data(config)) == config
    with pytest.raises(UserError, match=r"data\.mask_documents: got true, but document 1 of .*held_out"):
        config.boundaries(open_data(config))
    with pytest.raises(UserError, match=r"mixture\.own.*mask_documents: unknown key"):
        parse(MixtureConfig, {"mixture": {**sources, "own": {**sources["own"], "mask_documents": True}}})
