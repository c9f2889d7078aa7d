"""Invalid options of attention, and the cost of its template. Other tests are in test_cost.py and test_decoder.py."""

import pytest

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig, AttentionTemplate

SMALL = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 6, "scale": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 3}, "head_dim: got 3; rotary positions rotate pairs, so it must be even"),
        ({"rope_frequencies": [1.0, 0.1]}, "rope_frequencies: got 2 numbers; must be head_dim / 2 = 3"),
        ({"rope_frequencies": [1.0, 0.1, 0.2], "rope_base": None}, "rope_frequencies: conflicts with rope_base: null"),
        ({"n_heads": 3, "n_kv_heads": 2}, "n_kv_heads: got 2; must divide n_heads = 3"),
    ],
)
def test_invalid_options_are_refused_in_one_line(changes, message):
    with pytest.raises(UserError) as caught:
        parse(AttentionConfig, SMALL | changes, "attention")
    assert f"attention.{message}" in str(caught.value).replace("attention: ", "attention.")
    assert len(str(caught.value).splitlines()) == 1


def test_the_cost_of_a_template_equals_the_cost_of_its_config():
    for options in ({}, {"bias": True}, {"bias": True, "out_bias": True, "rope_base": None}):
        for heads in ({"n_heads": 4}, {"head_dim": 6, "kv_group_size": 2}):
            template = parse(AttentionTemplate, heads | options, "attention")
            assert template.cost(24, 20) == template.at_width(24).cost(24, 20)
