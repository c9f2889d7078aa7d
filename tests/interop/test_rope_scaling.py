"""Frequencies of rotation as transformers says them."""

from typing import Any

import pytest
import torch
from hf_models import LINEAR_RULE, LLAMA3_RULE, SIZES, YARN_RULE, transformers

from widthwise.interop.architecture import Fields, read_rope, write_rope
from widthwise.kernels.rotary import Rope

HEAD_DIM = 14
N_POSITIONS = SIZES["max_position_embeddings"]
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
    "yarn": YARN_RULE,
    "yarn, two scales": {**YARN_RULE, "mscale": 0.7, "mscale_all_dim": 1.3},
}


def rotation_of_transformers(rule: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """The frequencies (HEAD_DIM / 2,), as its model computes them in fp32, and the factor of queries and keys."""
    config = transformers.LlamaConfig(**{**SIZES, "head_dim": HEAD_DIM, "rope_parameters": dict(rule)})
    embedding = transformers.LlamaForCausalLM(config).model.rotary_emb
    return embedding.inv_freq.double(), embedding.attention_scaling


def rotation(keys: dict[str, Any]) -> tuple[Rope, float]:
    return read_rope(Fields(keys, "config.json"), HEAD_DIM)


@pytest.mark.parametrize("rule", [*RULES.values(), {**YARN_RULE, "beta_fast": 2.0, "beta_slow": 1.5}])
def test_a_rule_gives_the_rotation_of_transformers(rule: dict[str, Any]) -> None:
    rope, query_factor = rotation({"rope_parameters": rule})
    frequencies, factor = rotation_of_transformers(rule)
    torch.testing.assert_close(rope.radians(), frequencies, rtol=3e-7, atol=0)
    assert query_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_rotation_is_written_as_what_gives_it_again(name: str) -> None:
    """Read by us and by transformers, in the new words and in the old."""
    rule = RULES[name]
    rope, query_factor = rotation({"rope_parameters": rule})
    written = write_rope(rope, N_POSITIONS, query_factor)
    again = rotation(written)
    torch.testing.assert_close(again[0].radians(), rope.radians(), rtol=1e-12, atol=0)
    assert again[1] == pytest.approx(query_factor, rel=1e-12)
    theirs, factor = rotation_of_transformers(written["rope_parameters"])
    torch.testing.assert_close(theirs, rope.radians(), rtol=3e-7, atol=0)
    assert factor == pytest.approx(query_factor, rel=1e-12)
    said = written.pop("rope_parameters")
    assert rotation(written) == again
    if name in ("default", "linear"):  # the plainest rule
        assert said.pop("rope_type") == name
        assert said == pytest.approx({key: value for key, value in rule.items() if key != "rope_type"})


def test_the_rules_of_llama_and_of_yarn_are_known_again() -> None:
    rule = {**LLAMA3_RULE, "rope_theta": 500000.0, "factor": 32.0, "original_max_position_embeddings": 8192}
    assert write_rope(rotation({"rope_parameters": rule})[0], 131072, 1.0)["rope_parameters"] == rule
    rule = {**YARN_RULE, "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 8192}
    rope, query_factor = rotation({"rope_parameters": rule})
    written = write_rope(rope, 65536, query_factor)["rope_parameters"]
    assert written["rope_type"] == "yarn"
    assert written["factor"] == 8.0


def test_a_ladder_that_goes_on_is_a_larger_base() -> None:
    """Pairs keep their frequencies and new ones follow at the same ratio: base^(grown / old head_dim)."""
    grown = 21 * 2
    table = tuple(777.0 ** (-2 * i / HEAD_DIM) for i in range(grown // 2))
    written = write_rope(Rope(grown, 777.0, table), N_POSITIONS, 1.0)
    assert written["rope_scaling"] is None
    assert written["rope_theta"] == pytest.approx(777.0 ** (grown / HEAD_DIM), rel=1e-12)


def test_scaled_frequencies_that_go_on_are_written_for_a_kept_scale() -> None:
    """The last pair of a wider head can be slower than the rule's by more than the number of positions."""
    rule = {**LLAMA3_RULE, "rope_theta": 500000.0, "factor": 32.0, "original_max_position_embeddings": 8192}
    scaled = read_rope(Fields({"rope_parameters": rule}, "config.json"), 64)[0].pair_frequencies
    table = (*scaled, *(scaled[-1] * frequency for frequency in scaled))
    written = write_rope(Rope(128, 500000.0, table), 131072, 2**0.5)
    again = read_rope(Fields(written, "config.json"), 128)[0]
    assert again.pair_frequencies == pytest.approx(table, rel=1e-12)
