"""The tables of a comparison: on the page, in a terminal, as CSV and as LaTeX."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from fake_comparison import at_equal_loss, estimate, write_full_comparison
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from widthwise.cli.terminal import fitted, laid_out
from widthwise.records.estimate import Verdict
from widthwise.records.outcome import Outcome
from widthwise.records.quantities import QUANTITY
from widthwise.reports import main_table
from widthwise.reports.charts import styles
from widthwise.reports.formats import MINUS, TIMES
from widthwise.reports.main_table import (
    VERDICT_NOTE,
    cell,
    comparison_table,
    csv_text,
    latex_text,
    main_columns,
    main_tables,
    validated_table,
    with_columns,
)
from widthwise.reports.table import csv_cell, latex_escape

FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "＝1+1", "\t=1", "  =1", "=HYPERLINK(1)")  # noqa: RUF001


@pytest.fixture
def data(comparison: Path) -> dict[str, Any]:
    """That of the comparison, for a test that changes it."""
    return json.loads((comparison / "outcome.json").read_text())


def csv_rows(comparison: Outcome) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(comparison))))


def test_losses_and_costs_have_a_table_each_and_none_is_lost(tmp_path: Path) -> None:
    comparison = Outcome.read(write_full_comparison(tmp_path))
    losses, costs = main_tables(comparison, "Each variant", styles([each.name for each in comparison.variants]))
    titles = [each.title[:1].upper() + each.title[1:] for each in main_columns(comparison)]
    assert sorted([*losses.header[1:], *costs.header[1:]]) == sorted([*titles, "Verdict"])
    assert {"Held-out loss", "Difference", "Training loss", "Tokens at equal loss"} <= set(losses.header)
    assert {"Parameters", "FLOPs per token, forward", "Tokens per second", "Peak memory in bytes"} <= set(costs.header)
    assert all(len(row) == len(table.header) for table in (losses, costs) for row in table.rows)


def test_csv_holds_every_number_at_full_precision(data: dict[str, Any]) -> None:
    rows = csv_rows(Outcome.model_validate(data))
    for row, variant in zip(rows, data["points"], strict=True):
        assert row["variant"] == variant["name"]
        assert float(row["val_loss_mean"]) == variant["val_loss"]["mean"]
        assert float(row["flops_per_token_forward_causal"]) == variant["cost"]["flops_per_token"]["forward_causal"]
        assert float(row["kv_bytes_ratio"]) == variant["ratio"]["kv_bytes"]
        assert float(row["virtual_width"]) == variant["cost"]["virtual_width"]
    assert rows[0]["difference_mean"] == ""


def test_what_training_cost_and_further_texts_have_columns(data: dict[str, Any]) -> None:
    assert validated_table(Outcome.model_validate(data)) is None
    for i, variant in enumerate(data["points"]):
        variant["measured"] = {"peak_memory_bytes": {"mean": 3.5e9 * (i + 1), "per_seed": [3.5e9 * (i + 1)] * 2}}
        value = {"mean": 4.5 + i, "low": 4 + i, "high": 5 + i, "per_seed": [4, 5]}
        difference = {"mean": 0.0625 * i, "low": -0.03, "high": 0.5, "per_seed": []} if i else None
        variant["validated"] = {"wiki.loss": {"value": value, "difference": difference}}
    read = Outcome.model_validate(data)
    rows = csv_rows(read)
    assert [float(row["peak_memory_bytes_mean"]) for row in rows] == [3.5e9, 7e9, 10.5e9]
    assert [row["wiki.loss_high"] for row in rows] == ["5.0", "6.0", "7.0"]
    assert [row["wiki.loss_difference_mean"] for row in rows] == ["", "0.0625", "0.125"]
    assert "Peak memory in bytes" in latex_text(read.with_changes(columns=["peak_memory_bytes"]))
    assert validated_table(read).rows[1] == ["x", f"5.5000 (+0.0625, {MINUS}0.0300 to +0.5000)"]


def test_columns_are_those_asked_for_in_that_order(data: dict[str, Any]) -> None:
    latex = latex_text(with_columns(Outcome.model_validate(data), ["layer_params", "difference", "virtual_width"]))
    assert r" & Parameters, layers without norms & Difference & Verdict & Virtual width, times d\_model \\" in latex
    params = data["points"][1]["cost"]["params"]
    layer_params = f"{(params['attention'] + params['ffn'] + params['residual']) / 1e6:.1f}M"
    assert f"x & {layer_params} & $-$0.0123 & better & 1.88" in latex


def test_a_second_line_in_latex_is_an_interval_or_a_ratio_with_the_sign_in_the_caption(data: dict[str, Any]) -> None:
    data["points"][1]["at_equal_loss"] = {"val_loss": at_equal_loss(tokens_ratio=estimate(0.8125, 0.0125))}
    latex = latex_text(with_columns(Outcome.model_validate(data), ["params", "tokens_at_equal_loss"]))
    assert r"Second lines: 95\% intervals, or with $\times$ the ratio to uniform." in latex
    assert r"$\times$ & 0.800 to 0.825" in latex


def test_the_note_on_verdicts_defines_each_of_them() -> None:
    defined = VERDICT_NOTE.lower()
    assert [verdict for verdict in get_args(Verdict) if f"{verdict}:" not in defined] == ["baseline", "better"]
    assert "better or worse:" in defined


def test_the_speed_of_a_shared_machine_is_marked_and_not_compared(data: dict[str, Any]) -> None:
    data["points"][1]["shares_machine"] = True
    record = Outcome.model_validate(data)
    speed = QUANTITY["tokens_per_second"]
    _, shared, alone = (cell(speed, variant, record) for variant in record.variants)
    assert shared == ("41.8k*", "")
    assert alone == ("42.6k", f"1.040{TIMES}")
    data["points"][0]["shares_machine"] = True
    record = Outcome.model_validate(data)
    assert cell(speed, record.variants[2], record)[1] == ""
    assert {row["tokens_per_second_ratio"] for row in csv_rows(record)} == {""}
    assert r"{*}: other processes used the machine" in latex_text(record)


def test_no_csv_cell_is_a_formula_and_numbers_and_names_stay_as_they_are() -> None:
    assert {csv_cell(text)[0] for text in FORMULAS} == {"'"}
    plain = ["-1.5", "+3", "x-7", "-1e-5", ""]
    assert [csv_cell(text) for text in plain] == plain


@given(st.text())
def test_escaped_latex_holds_no_active_character(text: str) -> None:
    printed = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar)\{\}", "", latex_escape(text)
    )
    printed = re.sub(r"\\(textquotedbl|textasciigrave|ldots|dag)\{\}|\$-\$|\$\\times\$|\{[\[\]*]?\}", "", printed)
    printed = re.sub(r"\\[{}%_&#$]", "", printed)
    assert not set(printed) & set('\\{}%_&#$~^"[]*\n')


def test_latex_prints_hostile_names_and_keeps_its_structure(data: dict[str, Any]) -> None:
    assert latex_escape("--out x-2, ''a---b") == "-{}-out x-2, '{}'a-{}-{}-b"
    names = ("a & b % c", r"x_{\input{/etc/passwd}}", "[2ex] \\\\ $\\frac$")
    data["points"] = [{**variant, "name": name} for variant, name in zip(data["points"], names)]
    text = latex_text(Outcome.model_validate({**data, "baseline": names[0]}))
    assert r"x\_\{\textbackslash{}input\{/etc/passwd\}\}" in text
    assert r"\input" not in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 2 * 3
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {6}


def test_every_number_and_doubt_fits_in_100_columns_of_a_terminal(data: dict[str, Any]) -> None:
    doubt = "seed 2: the training loss rose by 0.83 nats, at step 120"
    data["points"][1]["doubts"] = [doubt]
    console = Console(file=io.StringIO(), width=100)
    for part in fitted(comparison_table(Outcome.model_validate(data)), console):
        console.print(laid_out(part))
    text = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    for variant in data["points"]:
        assert f"{variant['val_loss']['mean']:.4f}" in text
    for value in data["points"][1]["ratio"].values():
        assert f"({value:.3f})" in text
    assert "…\n" not in text
    assert "\nx ! " in text
    assert f"! x, {doubt}." in text
    assert text.count("!") == 2


def test_every_definition_is_of_a_quantity_and_the_usual_columns_have_one() -> None:
    definitions = yaml.safe_load(Path(main_table.__file__).with_name("quantities.yaml").read_text())
    names = {re.sub(r"_next_\d+$", "_next", name): quantity for name, quantity in QUANTITY.items()}
    assert {name for name, quantity in names.items() if quantity.is_main} <= definitions.keys() <= names.keys()
