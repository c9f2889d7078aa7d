"""The table of evaluated models: marks, page, CSV and LaTeX."""

import csv
import io
from pathlib import Path

from page_section import drawn, rows_of

from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow
from widthwise.reports.evaluation import _difference_figures, answer, csv_text, latex_text, shown
from widthwise.reports.formats import MINUS, MISSING
from widthwise.reports.writing import write_report

ACCURACY = TableColumn(name="ARC_C", metric="acc_norm", is_share=True, source="file", n_items=1172)
PERPLEXITY = TableColumn(name="WikiText", metric="word_perplexity", is_share=False, source="lm-evaluation-harness")


def evaluation_table() -> EvaluationTable:
    better = TableCell(value=0.3441, difference=0.0141, low=0.0022, high=0.026, p_value=0.0312, is_better=True)
    worse = TableCell(value=0.3, difference=-0.03, low=-0.04, high=-0.02, p_value=0.00001, is_better=False)
    lower, unknown = TableCell(value=16.321, difference=-0.639), TableCell(value=None)
    rows = [
        TableRow(name="uniform", run="runs/uniform", cells=[TableCell(value=0.33), TableCell(value=16.96)]),
        TableRow(name="x", run="runs/x", step=70, baseline="uniform", cells=[better, lower]),
        TableRow(name="=<b>", run="runs/y", baseline="uniform", cells=[worse, unknown]),
    ]
    about = {"title": "Evaluation", "command": "widthwise eval runs/uniform runs/x", "created": "now"}
    return EvaluationTable(**about, significance=0.05, columns=[ACCURACY, PERPLEXITY], rows=rows)


def test_a_cell_is_marked_below_the_level_alone() -> None:
    """Cells below it are on the page."""
    assert shown(TableCell(value=0.5, p_value=0.05, is_better=True), ACCURACY, 0.05) == ("50.0", "p 0.0500")
    assert shown(TableCell(value=None, p_value=0.001), PERPLEXITY, 0.05) == (MISSING, "")


def test_the_page_has_a_row_for_each_model_and_says_what_was_tested(tmp_path: Path) -> None:
    evaluation_table().write(tmp_path)
    page, *_ = write_report(tmp_path)
    text = page.read_text()
    assert '34.4*<small class="whole">+1.4, p 0.0312</small>' in text
    assert f'30.0†<small class="whole">{MINUS}3.0, p &lt; 0.0001</small>' in text
    assert text.index(">uniform<") < text.index(">x<") < text.index(">=&lt;b&gt;<")
    assert rows_of(text, "The models")["x"] == ["70", "uniform", "runs/x"]
    assert "Not tested: WikiText (no pairs of answers)." in text
    assert "<td>1,172</td>" in text


def test_csv_and_latex_have_the_numbers_and_run_nothing() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(evaluation_table()))))
    assert [row["model"] for row in rows] == ["uniform", "x", "'=<b>"]
    assert [row["ARC_C acc_norm"] for row in rows] == ["0.33", "0.3441", "0.3"]
    assert (rows[1]["ARC_C acc_norm p_value"], rows[0]["ARC_C acc_norm p_value"]) == ("0.0312", "")
    assert (rows[1]["baseline"], rows[1]["WikiText word_perplexity difference"]) == ("uniform", "-0.639")
    text = latex_text(evaluation_table())
    assert r"Model & ARC\_C $\uparrow$ & WikiText $\downarrow$ \\" in text
    assert r"x & 34.4{*} & 16.32 \\" in text
    assert r"30.0\dag{} & -- \\" in text


def test_the_figure_has_the_differences_in_percent_coloured_by_the_test() -> None:
    figure, other = _difference_figures(evaluation_table())
    assert figure
    assert other is None
    rows = {row["name"]: row for row in drawn(figure.spec()) if "numbers" in row}
    assert {name: row["verdict"] for name, row in rows.items()} == {"=<b>, ARC_C": "worse", "x, ARC_C": "better"}
    assert rows["x, ARC_C"]["numbers"] == "+1.4\n[+0.2, +2.6]"
    assert "right of 0 is better" in str(figure.spec())


def test_the_answer_counts_tested_numbers_over_the_seeds_of_a_model() -> None:
    rows = evaluation_table().rows
    x = rows[1]
    both = [rows[0], x.with_changes(name="x-seed1"), x.with_changes(name="x-seed2"), rows[2]]
    assert answer(evaluation_table().with_changes(rows=both)) == [
        "x is better than uniform on 2 and worse on 0 of 2 tested numbers; smallest p: ARC_C +1.41 (+0.22 to +2.60).",
        "=<b> is better than uniform on 0 and worse on 1 of 1 tested number; smallest p: "
        f"ARC_C {MINUS}3.00 ({MINUS}4.00 to {MINUS}2.00).",
        "Not tested: WikiText (no pairs of answers).",
    ]
    untested = [cell.with_changes(p_value=None) for cell in x.cells]
    short = PERPLEXITY.with_changes(name="my.txt", source="text", n_blocks=5)
    only_x = evaluation_table().with_changes(rows=[rows[0], x.with_changes(cells=untested)], columns=[ACCURACY, short])
    assert answer(only_x) == [
        "x was not compared with uniform.",
        "Not tested: ARC_C (no pairs of answers) and my.txt (too short: 5 blocks, 10 needed).",
    ]
    unclear = [cell.with_changes(p_value=cell.p_value and 0.5) for cell in x.cells]
    assert answer(evaluation_table().with_changes(rows=[rows[0], x.with_changes(cells=unclear)])) == [
        "No clear difference of x from uniform in 1 tested number; smallest p: ARC_C +1.41 (+0.22 to +2.60).",
        "Not tested: WikiText (no pairs of answers).",
    ]
    assert answer(evaluation_table().with_changes(rows=rows[:1])) == []
