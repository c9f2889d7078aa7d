"""Differences to a baseline, in words."""

from small_costs import small_cost

from widthwise.experiments.sentences import MOST_SENTENCES, comparison_sentences, difference_sentence
from widthwise.experiments.statistics import verdict
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Variant


def variant(name: str, mean: float | None, half: float | None = None, n_seeds: int = 3) -> Variant:
    """Its difference to the baseline is the mean, give or take half."""
    ends = {} if half is None or mean is None else {"low": mean - half, "high": mean + half}
    difference = Estimate(mean=mean, **ends, per_seed=[mean] * n_seeds)
    return Variant(
        **{"name": name, "runs": [f"{name}-seed{seed}" for seed in range(n_seeds)], "cost": small_cost()},
        **{"val_loss": Estimate(mean=None if mean is None else 3 + mean), "ratio": {"params": 0.5, "kv_bytes": 0.25}},
        **{"difference": difference, "verdict": verdict(difference)},
    )


def sentences(*variants: Variant) -> list[str]:
    baseline = Variant(name="uniform", runs=["u"], val_loss=Estimate(mean=3), cost=small_cost(), ratio={})
    return list(comparison_sentences([baseline, *variants], "uniform"))


def test_a_few_variants_get_a_sentence_each_and_many_are_told_by_their_verdicts_the_lowest_loss_first():
    few = [variant("x", -0.25, 0.125), variant("diamond", 0.5, 0.75)][:MOST_SENTENCES]
    assert sentences(*few) == [difference_sentence(each, each.difference, "uniform") for each in few]
    assert sentences() == []
    many = [
        *(variant("shaky", 0.0625, 0.25), variant("good", -0.125, 0.0625), variant("level", -0.0013, 0.0062)),
        *(variant("best", -0.5, 0.25), variant("bad", 0.25, 0.125), variant("shakier", -0.0312, 0.5)),
    ]
    assert sentences(*many) == [
        "2 of 6 variants have a lower held-out loss than uniform: "
        "best (-0.5000 nats, 95% interval -0.7500 to -0.2500), good (-0.1250, -0.1875 to -0.0625).",
        "1 of 6 variants has a higher held-out loss than uniform: bad (+0.2500 nats, 95% interval +0.1250 to +0.3750).",
        "1 of 6 variants has the held-out loss of uniform to within 0.01 nats: "
        "level (-0.0013 nats, 95% interval -0.0075 to +0.0049).",
        "2 of 6 variants have a held-out loss that 3 seeds cannot tell from that of uniform: "
        "shakier (-0.0312 nats, 95% interval -0.5312 to +0.4688), shaky (+0.0625, -0.1875 to +0.3125).",
    ]


def test_one_seed_gives_neither_verdicts_nor_intervals():
    assert sentences(*(variant(name, mean, n_seeds=1) for name, mean in (("a", 0.5), ("b", -0.25), ("c", 0.125)))) == [
        "Fewer than three seeds, so no verdict on 3 of 3 variants beside uniform: "
        "b (-0.2500 nats, one seed gives no interval), c (+0.1250), a (+0.5000)."
    ]
    (alone,) = sentences(variant("a", 0.5, n_seeds=1))
    assert "fewer than three seeds, so no verdict (one seed" in alone
    # A cost that is unknown is left out.
    assert alone.endswith("at 0.500 of the parameters and 0.250 of the KV cache.")
