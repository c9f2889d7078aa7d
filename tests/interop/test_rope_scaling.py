"""Frequencies of rotation as transformers says them."""

from typing import Any

import pytest
import torch
from hf_models import LINEAR_RULE, LLAMA3_RULE, transformers

from widthwise.interop.architecture import Fields, read_rope, write_rope
from widthwise.kernels.rotary import Rope

HEAD_DIM = 14
N_POSITIONS = 64
ODD_FACTORS = [1.0, 1.1, 1.7, 0.9, 3.0, 4.0, 9.5]
RULES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 777.0},
    "linear": LINEAR_RULE,
    "llama3": LLAMA3_RULE,
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 777.0,
        "short_factor": ODD_FACTORS,
        "long_factor": ODD_FACTORS,
        "attention_factor": 1.0,
        "original_max_position_embeddings": N_POSITIONS,
    },
}


def frequencies_of_transformers(rule: dict[str, Any]) -> torch.Tensor:
    """(HEAD_DIM / 2,), as its model computes them in fp32."""
    config = transformers.LlamaConfig(
        vocab_size=7,
        hidden_size=28,
        intermediate_size=5,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=N_POSITIONS,
        rope_parameters=dict(rule),
    )
    return transformers.LlamaForCausalLM(config).model.rotary_emb.inv_freq.double()


def rope(rule: dict[str, Any]) -> Rope:
    return Rope(HEAD_DIM, *read_rope(Fields({"rope_parameters": rule}, "config.json"), HEAD_DIM))


@pytest.mark.parametrize("rope_type", RULES)
def test_a_rule_gives_the_frequencies_of_transformers_and_is_written_as_what_gives_them_again(rope_type: str) -> None:
    """Read by us and by transformers, in the new words and in the old."""
    rule = RULES[rope_type]
    expected = rope(rule)
    torch.testing.assert_close(expected.radians(), frequencies_of_transformers(rule), rtol=3e-7, atol=0)
    written = write_rope(expected, N_POSITIONS)
    again = Rope(HEAD_DIM, *read_rope(Fields(written, "config.json"), HEAD_DIM))
    torch.testing.assert_close(again.radians(), expected.radians(), rtol=1e-12, atol=0)
    theirs = frequencies_of_transformers(written["rope_parameters"])
    torch.testing.assert_close(theirs, expected.radians(), rtol=3e-7, atol=0)
    said = written.pop("rope_parameters")
    assert Rope(HEAD_DIM, *read_rope(Fields(written, "config.json"), HEAD_DIM)) == again
    if rope_type in ("default", "linear"):  # the plainest rule
        assert said.pop("rope_type") == rope_type
        assert said == pytest.approx({key: value for key, value in rule.items() if key != "rope_type"})


def test_the_rule_of_llama_is_known_again() -> None:
    rule = {**LLAMA3_RULE, "rope_theta": 500000.0, "factor": 32.0, "original_max_position_embeddings": 8192}
    assert write_rope(rope(rule), 131072)["rope_parameters"] == rule


def test_a_ladder_that_goes_on_is_a_larger_base() -> None:
    """Pairs keep their frequencies and new ones follow at the same ratio: base^(grown / old head_dim)."""
    grown = 21 * 2
    table = tuple(777.0 ** (-2 * i / HEAD_DIM) for i in range(grown // 2))
    written = write_rope(Rope(grown, 777.0, table), N_POSITIONS)
    assert written["rope_scaling"] is None
    assert written["rope_theta"] == pytest.approx(777.0 ** (grown / HEAD_DIM), rel=1e-12)
