"""Quantities of records that older versions wrote."""

from small_costs import small_cost

from widthwise.experiments.sentences import difference_sentence
from widthwise.records.comparison import Variant
from widthwise.records.estimate import Estimate
from widthwise.records.quantities import OF_RUNS
from widthwise.records.run import RunResult

COST = small_cost()


def test_training_flops_follow_from_pflops_days() -> None:
    assert OF_RUNS["training_flops"].of_run(RunResult(cost=COST, pflops_days=0.5)) == 0.5 * 1e15 * 24 * 60 * 60
    assert OF_RUNS["training_flops"].of_run(RunResult(cost=COST, pflops_days=0.5, training_flops=7)) == 7
    assert OF_RUNS["training_flops"].of_run(RunResult(cost=COST)) is None


def test_a_sentence_leaves_out_a_cost_that_is_unknown() -> None:
    difference = Estimate(mean=-0.25, per_seed=[-0.25])
    variant = Variant(
        name="x",
        runs=["x-seed1"],
        val_loss=Estimate(mean=3),
        verdict="no verdict",
        cost=COST,
        ratio={"params": 0.5, "kv_bytes": 0.25},
    )
    sentence = difference_sentence(variant, difference, "uniform")
    assert "fewer than three seeds, so no verdict (one seed" in sentence
    assert sentence.endswith("at 0.500 of the parameters and 0.250 of the KV cache.")
