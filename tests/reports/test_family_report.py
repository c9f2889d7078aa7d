"""The page of a family."""

from pathlib import Path

from fake_family import write_family

from widthwise.records.outcome import Outcome
from widthwise.reports.answers import answer, question
from widthwise.reports.writing import write_report


def test_sizes_are_beside_the_same_models_trained_alone_and_costs_beside_separate_runs(tmp_path: Path) -> None:
    page, *_ = write_report(write_family(tmp_path))
    found = Outcome.read(tmp_path)
    assert question(found).startswith("What does wide cost and reach, grown from runs/small, beside the same trained")
    first, *others = answer(found)
    assert "1.20 times the training FLOPs" in first
    assert "wide" in others[0]
    assert "the same model trained alone" in others[0]
    text = page.read_text()
    assert "wide: held-out loss" in text
    assert "wide, alone, seed 2" in text


def test_a_family_without_controls_compares_nothing(tmp_path: Path) -> None:
    found = Outcome.read(write_family(tmp_path))
    grown = found.variants[0].with_changes(difference=None, verdict=None)
    assert found.family is not None
    alone = found.with_changes(
        points=[grown], baseline_group=None, family=found.family.with_changes(alone=None, controls=())
    )
    assert alone.baseline_words is None
    assert alone.baseline_of(grown) is None
    assert answer(alone)[1:] == ["wide ends at a held-out loss of 3.0377."]
