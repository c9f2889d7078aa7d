"""Numbers of the documents and pictures follow from the committed records; quoted messages are the program's."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy import stats

from widthwise.records.outcome import Outcome

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))

import cited_numbers  # noqa: E402
import readme_picture  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
COMPARISONS = sorted(path.parent for path in cited_numbers.RESULTS.rglob(Outcome.file_name))


@pytest.mark.parametrize("page", cited_numbers.CITATIONS)
def test_every_number_of_a_page_follows_from_its_record(page: str) -> None:
    assert list(cited_numbers.unsupported(page, (ROOT / page).read_text())) == []


@pytest.mark.parametrize("page", cited_numbers.CITATIONS)
def test_a_page_with_another_digit_is_noticed(page: str) -> None:
    """One number in three is changed, each alone."""
    text = (ROOT / page).read_text()
    cited = text.partition(cited_numbers.OTHER_MEASUREMENTS)[0]
    prose = cited_numbers.NO_PROSE.sub(lambda found: "_" * len(found[0]), cited)
    for at in list(cited_numbers.FRACTION.finditer(prose))[::3]:
        other = str((int(text[at.end() - 1]) + 1) % 10)
        changed = text[: at.end() - 1] + other + text[at.end() :]
        assert any(cited_numbers.unsupported(page, changed)), text[at.start() - 60 : at.end()]


@pytest.mark.parametrize("folder", COMPARISONS, ids=lambda folder: folder.name)
def test_a_recorded_difference_is_that_of_its_losses(folder: Path) -> None:
    found = Outcome.read(folder)
    for variant in found.variants:
        baseline = found.baseline_of(variant)
        if variant.difference is None or baseline is None:
            continue
        own, other = variant.val_loss.per_seed, baseline.val_loss.per_seed
        assert variant.difference.per_seed == pytest.approx([a - b for a, b in zip(own, other, strict=True)], abs=1e-6)


def test_a_difference_of_two_variants_has_the_interval_of_a_paired_t_test() -> None:
    values, others = [cited_numbers.per_seed("x_heads_d64", name) for name in ("x_constant_number", "x_constant_size")]
    expected = stats.ttest_rel(values, others).confidence_interval(0.95)
    found = cited_numbers.minus("x_heads_d64", "x_constant_number", "x_constant_size")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(sum(values) / 8 - sum(others) / 8)


@pytest.mark.parametrize("form", ["wide", "narrow"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_committed_picture_is_drawn_from_its_records(form: str, theme: str) -> None:
    drawn = readme_picture.picture(theme == "dark", form == "wide")
    assert (PICTURES / f"widths_{form}_{theme}.svg").read_text() == drawn


def test_the_committed_curves_are_drawn_from_their_records() -> None:
    assert (PICTURES / "during_training.svg").read_text() == readme_picture.during_training()


def _templates() -> Iterator[str]:
    """Every text of the source, with … for what is filled in."""
    for path in (ROOT / "src" / "widthwise").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_of_the_page_of_errors_are_those_of_the_program() -> None:
    """A message may leave out its end, behind a last semicolon."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = [message.removesuffix("; …") for message in re.findall(r"^\| `(.+?)` \| ", text, re.M)]
    known = list(_templates())
    assert len(quoted) > 25
    assert not [message for message in quoted if not any(template.startswith(message) for template in known)]
