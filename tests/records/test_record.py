"""What every record does, shown on the record of a run."""

import json
from pathlib import Path

import pydantic
import pytest
from small_costs import small_cost, small_variant

from widthwise.mistakes import UserError
from widthwise.records.estimate import EqualLoss, Estimate
from widthwise.records.outcome import Variant
from widthwise.records.quantities import QUANTITY
from widthwise.records.run import PlannedRuns, RunResult, changes_in_words


@pytest.fixture
def data() -> dict:
    """As the file of a run without a measured memory has it."""
    return RunResult(seed=3, val_loss=2.75, cost=small_cost(), notes=["a note"]).to_data()


def test_a_field_is_read_by_its_key_also_where_the_file_has_none(data: dict) -> None:
    result = RunResult.model_validate(data)
    assert result["val_loss"] == result.val_loss == data["val_loss"]
    assert "peak_memory_bytes" not in result
    assert result["peak_memory_bytes"] is None
    with pytest.raises(KeyError):
        result["val_los"]


def test_a_changed_copy_of_a_record_is_checked(data: dict) -> None:
    result = RunResult.model_validate(data)
    assert result.with_changes(seed=9).to_data() == {**data, "seed": 9}
    with pytest.raises(pydantic.ValidationError):
        result.with_changes(seed="nine")


def test_what_is_needed_for_the_same_loss_is_read_for_each_depth_apart() -> None:
    def needed(first: float) -> EqualLoss:
        of_pair = [Estimate(mean=first + place) for place in range(4)]
        names = ("tokens_ratio", "training_flops_ratio", "tokens", "training_flops")
        return EqualLoss(n_reached=1, **dict(zip(names, of_pair)))

    at_equal_loss = {"val_loss": needed(10), "val_loss_next_2": needed(20), "val_loss_next_3": needed(30)}
    variant = small_variant(at_equal_loss=at_equal_loss)
    for first, end in ((10, ""), (20, "_next_2"), (30, "_next_3")):
        names = [f"{key}_at_equal_loss{end}" for key in ("tokens", "training_flops")]
        names += [f"{key}_to_baseline_loss{end}" for key in ("tokens", "training_flops")]
        assert [QUANTITY[name].value(variant) for name in names] == [first + place for place in range(4)]
    assert QUANTITY["tokens_at_equal_loss_next_4"].value(variant) is None


def test_there_is_no_ratio_where_one_of_the_two_lacks_the_number() -> None:
    def variant(loss: float | None) -> Variant:
        return small_variant(val_bits_per_byte=None if loss is None else Estimate(mean=loss))

    of = QUANTITY["val_bits_per_byte"]
    assert of.ratio(variant(3.0), variant(1.5)) == 2
    for own, other in ((3.0, None), (None, 1.5), (None, None), (3.0, 0.0)):
        assert of.ratio(variant(own), variant(other)) is None


PLANNED = PlannedRuns(command="widthwise compare a.yaml", title="+0.125.\n∅ is a tie.", runs=[])


@pytest.mark.parametrize("key", ["runs", "title", "new"])
def test_an_entry_that_is_changed_added_or_gone_is_refused_by_name(tmp_path: Path, key: str) -> None:
    """A file without checksums is read unchecked."""
    (tmp_path / "planned.json").write_text(json.dumps(PLANNED.to_data()))
    assert PlannedRuns.read(tmp_path) == PLANNED
    path = PLANNED.write(tmp_path)
    written = json.loads(path.read_text())
    assert PlannedRuns.read(tmp_path) == PLANNED
    for changed in ({**written, key: "-"}, {name: value for name, value in written.items() if name != key}):
        path.write_text(json.dumps(changed))
        if changed != written:
            with pytest.raises(UserError, match=rf"^{path}: {key}: was changed after it was written; "):
                PlannedRuns.read(tmp_path)


@pytest.mark.parametrize(
    ("path", "before", "after", "is_another_run"),
    [
        ("data.path", "a", "b", False),
        ("train.shards", 1, 2, False),
        ("optimizer.lr", 0.01, 0.02, True),
        ("data.mask_documents", False, True, True),  # how data are read, wherever they are
        ("data.mask_documents", None, False, False),
    ],
)
def test_of_one_run_only_places_and_processes_change(path: str, before: object, after: object, is_another_run) -> None:
    section, key = path.split(".")
    found = changes_in_words({section: {key: before}}, {section: {key: after}}, of_the_same_run=True)
    assert bool(found) == is_another_run
