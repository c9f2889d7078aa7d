"""Records as a notebook shows them: what their page answers first, and nothing that runs."""

import base64
import html
import re
import sys
import types
from pathlib import Path

import pytest
from fake_comparison import write_comparison
from fake_scaling import write_scaling

import widthwise
import widthwise.reports.writing
from widthwise.records.outcome import Outcome
from widthwise.records.run import PlannedRuns
from widthwise.records.scaling import ScalingLaws
from widthwise.reports import main_table
from widthwise.reports.charts import styles
from widthwise.reports.writing import answer, experiment_page
from widthwise.run_dir import RunDir


def _cells(shown: str, tag: str) -> list[str]:
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", shown, re.DOTALL)
    return [html.unescape(text.replace("<br>", "\n")) for text in texts]


def test_a_comparison_shows_its_answer_its_figures_and_its_numbers(comparison: Path) -> None:
    outcome = Outcome.read(comparison)
    page = experiment_page(comparison, outcome)
    shown = outcome._repr_html_()
    assert _cells(shown, "p")[1:] == [*answer(outcome), *page.badges]
    tables = main_table.main_tables(outcome, "", styles([variant.name for variant in outcome.variants]))
    assert _cells(shown, "td") == [cell for table in tables for row in table.rows for cell in row]
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', shown)
    assert [base64.b64decode(picture)[:4] for picture in pictures] == [b"<svg"] * len([*filter(None, page.first)])
    assert not re.search("<script|<iframe|var\\(--", shown)


def test_a_public_name_in_a_notebook_brings_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.delitem(sys.modules, "widthwise.reports.writing")
    assert widthwise.UserError
    assert "widthwise.reports.writing" in sys.modules


def test_names_from_anywhere_stay_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    shown = Outcome.read(write_comparison(tmp_path, ("uniform", name, "hourglass")))._repr_html_()
    assert "<script" not in shown
    assert any(name in cell for cell in _cells(shown, "td"))


def test_fits_and_runs_show_themselves_too(comparison: Path, tmp_path: Path) -> None:
    laws = ScalingLaws.read(write_scaling(tmp_path))
    assert laws.title in _cells(laws._repr_html_() or "", "b")
    result = RunDir(next(comparison.glob("runs/*"))).result()
    shown = result._repr_html_() or ""
    assert any(f"{result.val_loss:.4f}" in cell for cell in _cells(shown, "td"))
    assert "data:image/svg" in shown


def test_the_folder_of_a_record_is_no_part_of_it(comparison: Path) -> None:
    """It compares and is written like a record in memory, which a notebook shows as text, as one without a page."""
    found = Outcome.read(comparison)
    made = Outcome.model_validate(found.to_data())
    assert made == found
    assert made.to_data() == found.to_data()
    assert made._repr_html_() is PlannedRuns.model_construct().stored_in(comparison)._repr_html_() is None
