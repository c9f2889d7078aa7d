"""A run that keeps fewer activations is the same run."""

import pytest
from growing_runs import TWICE
from tiny_runs import outcome, tiny_recipe

from widthwise.config_io import UserError
from widthwise.runs.train import train


@pytest.mark.parametrize(
    "changes", [[TWICE], ["train.precision=bf16", "model.ffn={kind: moe, n_experts: 3, top_k: 2}"]]
)
def test_records_and_weights_of_a_run_are_bitwise_the_same(tmp_path, changes):
    outcomes = []
    for kind in ("none", "layer", "selective"):
        train(tiny_recipe(*changes, f"train.activation_checkpointing={kind}"), tmp_path / kind)
        outcomes.append(outcome(tmp_path / kind))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_another_word_is_refused():
    with pytest.raises(UserError, match=r"train\.activation_checkpointing: .*'none', 'layer' or 'selective'"):
        tiny_recipe("train.activation_checkpointing=full")
