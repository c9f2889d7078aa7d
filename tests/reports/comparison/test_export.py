import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from fake_comparison import write_comparison
from hypothesis import given
from hypothesis import strategies as st

from widthwise.config_io import UserError
from widthwise.records.comparison import Comparison
from widthwise.reports.comparison.export import csv_text, latex_text
from widthwise.reports.comparison.report import write_comparison_report
from widthwise.reports.page.formats import MINUS
from widthwise.reports.page.latex import latex_escape
from widthwise.reports.page.spreadsheet import csv_cell
from widthwise.reports.writing import write_report

FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "＝1+1", "\t=1", "  =1", "=HYPERLINK(1)")  # noqa: RUF001
COMMANDS = r"x_{\input{/etc/passwd}}"


def test_csv_holds_every_number_at_full_precision(comparison: Path) -> None:
    data = json.loads((comparison / "comparison.json").read_text())
    rows = list(csv.DictReader(io.StringIO(csv_text(Comparison.read(comparison)))))
    assert [row["variant"] for row in rows] == ["uniform", "x", "hourglass"]
    for row, variant in zip(rows, data["variants"]):
        assert float(row["val_loss_mean"]) == variant["val_loss"]["mean"]
        assert float(row["flops_per_token_forward_causal"]) == variant["cost"]["flops_per_token"]["forward_causal"]
        assert float(row["kv_bytes_ratio"]) == variant["ratio"]["kv_bytes"]
        assert float(row["virtual_width"]) == variant["cost"]["virtual_width"]
    assert rows[0]["difference_mean"] == ""


def test_what_training_cost_stands_in_every_table(comparison: Path) -> None:
    data = json.loads((comparison / "comparison.json").read_text())
    for i, variant in enumerate(data["variants"]):
        costs = {"pflops_days": 0.25 + i, "peak_memory_bytes": 3.5e9 * (i + 1)}
        variant["measured"] = {name: {"mean": mean, "per_seed": [mean, mean]} for name, mean in costs.items()}
    (comparison / "comparison.json").write_text(json.dumps(data))
    read = Comparison.read(comparison)
    rows = list(csv.DictReader(io.StringIO(csv_text(read))))
    assert [float(row["pflops_days_mean"]) for row in rows] == [0.25, 1.25, 2.25]
    assert [float(row["peak_memory_bytes_mean"]) for row in rows] == [3.5e9, 7e9, 10.5e9]
    for shown in (latex_text(read), write_comparison_report(comparison)["html"].read_text()):
        assert "PFLOP/s-days" in shown
        assert "peak memory" in shown.lower()
        assert re.search(r"10\.5\W*G", shown)


def test_further_texts_and_tasks_stand_on_the_page_and_in_csv(comparison: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(comparison, tmp_path / "validated")
    data = json.loads((folder / "comparison.json").read_text())
    for i, variant in enumerate(data["variants"]):
        value = {"mean": 4.5 + i, "low": 4 + i, "high": 5 + i, "per_seed": [4, 5]}
        difference = {"mean": 0.0625 * i, "low": -0.03, "high": 0.5, "per_seed": []} if i else None
        variant["validated"] = {"wiki.loss": {"value": value, "difference": difference}}
    (folder / "comparison.json").write_text(json.dumps(data))
    rows = list(csv.DictReader(io.StringIO(csv_text(Comparison.read(folder)))))
    assert [row["wiki.loss_high"] for row in rows] == ["5.0", "6.0", "7.0"]
    assert [row["wiki.loss_difference_mean"] for row in rows] == ["", "0.0625", "0.125"]
    page = write_comparison_report(folder)["html"].read_text()
    assert f"<td>5.5000 (+0.0625, {MINUS}0.0300 to +0.5000)</td>" in page
    assert "Further texts" not in write_comparison_report(comparison)["html"].read_text()


def test_the_losses_of_further_heads_stand_in_every_table(comparison: Path) -> None:
    data = json.loads((comparison / "comparison.json").read_text())
    for i, variant in enumerate(data["variants"]):
        variant["measured"] = {"val_loss_next_2": {"mean": 4.5 + i, "low": 4 + i, "high": 5 + i, "per_seed": [4, 5]}}
        variant["differences"] = {"val_loss_next_2": {"mean": 0.0625 * i, "low": 0.03, "high": 0.5, "per_seed": []}}
    read = Comparison.model_validate(data)
    rows = list(csv.DictReader(io.StringIO(csv_text(read))))
    assert [row["val_loss_next_2_low"] for row in rows] == ["4.0", "5.0", "6.0"]
    assert [float(row["difference_next_2_mean"]) for row in rows] == [0, 0.0625, 0.125]
    assert "val_loss_next_3_mean" not in rows[0]
    text = latex_text(read)
    assert "Next-2 held-out loss & Difference, next-2 &" in text
    assert r"5.5000 & +0.0625 &" in text


def test_columns_are_those_that_are_asked_for_in_that_order(comparison: Path, tmp_path: Path) -> None:
    asked = ["layer_params", "difference", "virtual_width"]
    page, _, table = write_report(comparison, tmp_path, columns=asked)
    latex = table.read_text()
    assert r" & Parameters, layers without norms & Difference & Virtual width, times d\_model & Verdict \\" in latex
    data = json.loads((comparison / "comparison.json").read_text())
    params = data["variants"][1]["cost"]["params"]
    layer_params = f"{(params['attention'] + params['ffn'] + params['residual']) / 1e6:.1f}M"
    assert f"x & {layer_params} & $-$0.0123 & 1.88 & better" in latex
    header = re.search("<thead>.*?</thead>", page.read_text(), re.DOTALL)
    assert header
    titles = re.findall(r">([^<>\n]+)<(?:sup|/th)", header[0])
    columns = ["Parameters, layers without norms", "Difference", "Verdict", "Virtual width, times d_model"]
    assert titles == ["Variant", *columns]


def test_columns_that_there_are_not_are_refused(comparison: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--columns: got 'val_los'; did you mean 'val_loss'"):
        write_report(comparison, tmp_path, columns=["params", "val_los"])
    with pytest.raises(UserError, match=r"--columns: got 'steps', which no variant has; those known are .*kv_bytes, "):
        write_report(comparison, tmp_path, columns=["params", "steps"])
    with pytest.raises(UserError, match=r"--columns: goes with one folder that has comparison\.json or sweep\.json"):
        write_report(comparison / "runs" / "variant0-seed1", tmp_path, columns=["params"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", FORMULAS)
def test_no_csv_cell_is_a_formula(text: str) -> None:
    assert csv_cell(text).startswith("'")


@pytest.mark.parametrize("text", ["-1.5", "+3", "x-7", "-1e-5", ""])
def test_numbers_and_names_stay_as_they_are(text: str) -> None:
    assert csv_cell(text) == text


@given(st.text())
def test_escaped_latex_holds_no_active_character(text: str) -> None:
    printed = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar)\{\}", "", latex_escape(text)
    )
    printed = re.sub(r"\\(textquotedbl|textasciigrave|ldots)\{\}|\$-\$|\$\\times\$|\{[\[\]*]\}", "", printed)
    printed = re.sub(r"\\[{}%_&#$]", "", printed)
    assert not set(printed) & set('\\{}%_&#$~^"[]*\n')


def test_latex_prints_hostile_names_and_keeps_its_structure(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, ("a & b % c", COMMANDS, "[2ex] \\\\ $\\frac$"))
    text = latex_text(Comparison.read(folder))
    assert r"\input" not in text
    assert r"x\_\{\textbackslash{}input\{/etc/passwd\}\}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 2 * 3
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {11}


def test_latex_braces_balance(comparison: Path) -> None:
    text = re.sub(r"\\[{}]", "", latex_text(Comparison.read(comparison)))
    assert text.count("{") == text.count("}")
