"""Differences of models on the same text and questions, and their table: values, pairs, baselines."""

import math

import numpy as np
import pytest
from scipy import stats
from scored_models import tiny_scorer

from widthwise.evaluation import perplexity
from widthwise.evaluation.differences import (
    all_differences,
    baselines_of,
    flips,
    mean_differences,
    models_table,
    paired_answers,
    text_differences,
)
from widthwise.evaluation.estimate import text_means
from widthwise.evaluation.perplexity import score_documents
from widthwise.mistakes import UserError
from widthwise.records.evaluation import (
    Evaluation,
    Flips,
    ItemAnswers,
    TextScores,
)

TEXTS = ["a text that two models read", "another one", "and — one more, with dashes"]


def test_texts_are_paired_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "BLOCK_BYTES", 10)
    one, other = (score_documents(tiny_scorer(seed=seed), TEXTS) for seed in (1, 2))
    found, before, after = text_differences(one, other), one.metrics, other.metrics
    for name in ("nats_per_token", "bits_per_byte", "nats_per_character"):
        assert found[name].value == pytest.approx(after[name].value - before[name].value)
    perplexities = (math.exp(metrics["nats_per_token"].value) for metrics in (after, before))
    assert found["token_perplexity"].value == pytest.approx(np.subtract(*perplexities))
    # The error over equal blocks is that of the mean of their differences.
    one, other = (score_documents(tiny_scorer(seed=seed), ["ten bytes." * 11]) for seed in (1, 2))
    found = text_differences(one, other)
    assert found["bits_per_byte"].stderr == pytest.approx(
        stats.sem(np.subtract(other.blocks["nats"], one.blocks["nats"]) / math.log(2) / 10)
    )


def test_another_context_pairs_other_tokens_pair_by_bytes_alone_and_another_text_does_not() -> None:
    asked = ((5, TEXTS), (19, TEXTS), (19, TEXTS[:2]))
    short, long, other = (score_documents(tiny_scorer(max_length=n), texts) for n, texts in asked)
    paired = text_differences(short, long)
    assert paired.keys() == {"nats_per_token", "bits_per_byte", "nats_per_character", "token_perplexity"}
    assert text_differences(short, other) is None
    paired = text_differences(long, _halved(long))
    assert paired.keys() == {"bits_per_byte", "nats_per_character"}
    assert paired["bits_per_byte"].value == 0.0


def test_differences_of_means_have_the_error_that_a_jackknife_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "BLOCK_BYTES", 10)
    text = "".join(f"{'a text with much of little and little of much'[i % 30 :]} {i}" for i in range(40))
    scorers = [tiny_scorer(seed=seed) for seed in (1, 2)]
    records = [[score_documents(scorer, [part]) for part in (text, text[::-1])] for scorer in scorers]
    evaluations = [_evaluation(dict(zip("ab", each))) for each in records]
    found = mean_differences(*evaluations)

    def differences(text: int | None = None, block: int | None = None) -> dict[str, float]:
        """Without one block of one of the texts."""
        losses = np.array([[_loss(record, block if i == text else None) for i, record in enumerate(each)]
                           for each in records])  # fmt: skip
        shares = np.array([0.5, 0.5])
        return {
            "mean_nats_per_token": float(np.diff(losses @ shares)[0]),
            "mean_token_perplexity": float(np.diff(np.exp(losses) @ shares)[0]),
            "exp_mean_nats_per_token": float(np.diff(np.exp(losses @ shares))[0]),
        }

    for name, expected in differences().items():
        assert found[name].value == pytest.approx(expected)
        variance = 0.0
        for i, record in enumerate(records[0]):
            n = record.n_blocks
            variance += (n - 1) ** 2 / n * np.var([differences(i, block)[name] for block in range(n)], ddof=1)
        assert found[name].stderr == pytest.approx(math.sqrt(variance), rel=0.02)


def _evaluation(texts: dict[str, TextScores]) -> Evaluation:
    means = text_means([record.metrics for record in texts.values()])
    about = {"step": None, "request": {}, "max_length": 19, "stride": 19, "precision": "fp32"}
    return Evaluation(**about, texts=texts, text_means=means)


def _halved(record: TextScores) -> TextScores:
    """With half as many tokens in each block."""
    return record.with_changes(blocks={**record.blocks, "n_tokens": [n / 2 for n in record.blocks["n_tokens"]]})


def _loss(record: TextScores, left_out: int | None) -> float:
    nats, n_tokens = (np.array(record.blocks[name]) for name in ("nats", "n_tokens"))
    kept = np.arange(len(nats)) != left_out
    return float(nats[kept].sum() / n_tokens[kept].sum())


def test_evaluations_of_other_texts_have_no_differences_of_means() -> None:
    one, other, third = (score_documents(tiny_scorer(), [name * 9]) for name in ("one text", "another", "third"))
    baseline = _evaluation({"a": one, "b": other})
    assert mean_differences(baseline, _evaluation({"a": one, "b": other})) is not None
    assert mean_differences(baseline, _evaluation({"a": one, "c": third})) is None
    assert mean_differences(baseline, _evaluation({"a": one})) is None
    # Of a text in other tokens there is none per token.
    found = mean_differences(baseline, _evaluation({"a": one, "b": _halved(other)}))
    assert found.keys() == {"mean_bits_per_byte"}


def test_items_that_flip_are_named_and_tested() -> None:
    before, after = (_items("acc", list(map(float, items))) for items in ("110010101", "011111110"))
    found = flips(before, after, "acc")
    assert (found.gained, found.lost) == ([3, 4, 6, 8], [1, 9])
    assert found.p_value == pytest.approx(stats.binomtest(2, 6).pvalue)
    assert flips(before, before, "acc") == Flips(gained=[], lost=[], p_value=1.0)
    assert flips(_items("nats", [0.5, 1.0]), _items("nats", [1.0, 1.0]), "nats") is None
    same = paired_answers("task", before, before)[0]
    assert (same.value, same.low, same.high) == (0.0, None, None)


def _items(metric: str, values: list[float]) -> ItemAnswers:
    return ItemAnswers(fingerprint="f", items={metric: values})


RIGHT = {"uniform": "0001110001", "x": "1111110111", "moe": "0000000001"}
NATS = {"uniform": [3.0, 2.0, 2.5, 4.0], "x": [2.5, 1.75, 2.5, 3.0], "moe": [3.5, 2.5, 3.5, 4.0]}


def evaluation(name: str) -> Evaluation:
    """An evaluation on a local task with accuracies, and on one of the harness with a perplexity from `nats`."""
    acc = [float(item) for item in RIGHT[name]]
    metrics = {"acc": score(sum(acc) / 10), "acc_norm": score(sum(acc) / 10), "bits_per_byte": score(2.0)}
    arc = {"n_items": 10, "metrics": metrics, "fingerprint": "a", "items": {"acc": acc, "acc_norm": acc}}
    harness = {"lm_eval": {"lambada": {"perplexity": score(9.5), "acc": score(0.5)}}}
    harness["lm_eval_items"] = {"lambada": {"fingerprint": "l", "items": {"nats": NATS[name]}}}
    about = {"run": f"runs/{name}", "step": 7, "tokenizer": "bytes"}
    about |= {"request": {}, "max_length": 17, "stride": 17, "precision": "fp32"}
    return Evaluation.model_validate({**about, "tasks": {"arc": arc}, **harness})


def score(value: float | None) -> dict:
    return {"value": value, "stderr": None}


def rows_of(names: list[str], asked: dict[str, str]):
    evaluations = [evaluation(name) for name in names]
    beside = baselines_of([each.run for each in evaluations], asked)
    return models_table(evaluations, all_differences(evaluations, beside, by_step=False), "command")


def test_p_is_that_of_the_exact_sign_test_of_items_that_flipped_and_of_the_pairs_of_a_loss() -> None:
    """x has five items right that uniform has not, and none the other way round."""
    table = rows_of(["uniform", "x"], {})
    columns = [("arc", "acc_norm"), ("lambada", "acc"), ("lambada", "perplexity")]
    assert [(column.name, column.metric) for column in table.columns] == columns
    baseline, x = table.rows
    assert (baseline.baseline, x.baseline) == (None, "uniform")
    assert (x.cells[0].p_value, x.cells[0].is_better) == (pytest.approx(stats.binomtest(5, 5).pvalue), True)
    assert x.cells[0].difference == pytest.approx(0.5)
    flipped = [float(after) - float(before) for after, before in zip(RIGHT["x"], RIGHT["uniform"])]
    ends = stats.ttest_1samp(flipped, 0).confidence_interval()
    assert (x.cells[0].low, x.cells[0].high) == pytest.approx((ends.low, ends.high))
    assert baseline.cells[0].p_value is None
    cell = x.cells[2]
    expected = stats.ttest_rel(NATS["x"], NATS["uniform"]).pvalue
    assert (cell.value, cell.p_value, cell.is_better) == (9.5, pytest.approx(expected), True)
    assert x.cells[1].p_value is None  # no pairs of its accuracy are known


def test_the_perplexity_of_a_text_is_per_byte_if_its_tokens_differ() -> None:
    """A tokenizer may have another path, or the same name for other tokens."""
    record = score_documents(tiny_scorer(), TEXTS)
    for other, metric in ((record, "token_perplexity"), (_halved(record), "byte_perplexity")):
        pair = [
            _evaluation({"a": text}).with_changes(run=run, tokenizer=run) for run, text in zip("xy", (record, other))
        ]
        assert [column.metric for column in models_table(pair, [], "command").columns] == [metric]


def test_every_model_is_compared_with_its_own_baseline() -> None:
    assert [row.baseline for row in rows_of(["uniform", "x", "moe"], {"moe": "x"}).rows] == [None, None, "x"]
    assert baselines_of(["a/u", "a/x", "b/m", "b/y"], {"y": "m"}) == {"a/x": "a/u", "b/y": "b/m"}
    assert baselines_of(["a/x", "a/u", "a/y"], {"x": "u"}) == {"a/x": "a/u", "a/y": "a/u"}
    assert baselines_of(["a/u"], {}) == {}
    for asked, message in (
        ({"z": "u"}, r"--baseline: got 'z'; allowed: a/u, a/x"),
        ({"x": "u", "u": "x"}, "as a baseline, but it has a baseline itself"),
    ):
        with pytest.raises(UserError, match=message):
            baselines_of(["a/u", "a/x"], asked)
