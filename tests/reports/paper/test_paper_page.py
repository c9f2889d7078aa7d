"""The page, the table and the Markdown of an item show its numbers."""

from html.parser import HTMLParser
from pathlib import Path

from widthwise.records.estimate import Estimate
from widthwise.records.paper import PaperExperiment, PaperItem, PaperLine
from widthwise.reports.page.formats import minus
from widthwise.reports.paper.markdown import all_items
from widthwise.reports.paper.report import write_item_page
from widthwise.reports.paper.tables import item_table, list_table

MEASURED = Estimate(mean=-0.0123, low=-0.02, high=-0.004, per_seed=[-0.01, -0.0146])
PARAMS = PaperLine(
    row="a", quantity="params", title="parameters", printed="28M", printed_value=28e6, counted=28.3e6, agrees=True
)
LOSS = PaperLine(row="a", quantity="val_loss", title="held-out loss", printed="3.430", printed_value=3.43)
DIFFERENCE = PaperLine(row="b", quantity="difference", title="difference", printed_value=-0.25, measured=MEASURED)
SHARE = PaperLine(
    row="b",
    quantity="share",
    title="a share",
    printed="-3.2%",
    printed_value=-0.032,
    counted=-0.0321,
    agrees=True,
    is_share=True,
)
COMMAND = "widthwise paper item --scale small"
ITEM = PaperItem(
    name="item",
    paper="A paper, arXiv:0000.00000",
    where="Table 7",
    title="widths & <depths>",
    finds="x < y",
    lines=[PARAMS, LOSS, DIFFERENCE, SHARE],
    experiment=PaperExperiment(scale="small", recipe="some", folder="some", command=COMMAND, n_seeds=2),
    remarks=["It differs."],
)


def test_a_row_is_named_once_and_numbers_keep_the_printed_digits():
    table = item_table(ITEM)
    assert [row[0] for row in table.rows] == ["a", "", "b", ""]
    assert [row[2] for row in table.rows] == ["28M", "3.430", minus("-0.2500"), minus("-3.2%")]
    assert [row[3] for row in table.rows] == ["28.3M", "", "", minus("-3.21%")]
    assert [row[4] for row in table.rows] == ["yes", "", "", "yes"]
    assert table.rows[2][5] == minus("-0.0123\n-0.020 to -0.004")


def test_the_list_counts_what_agrees_and_what_was_measured():
    row = list_table([ITEM]).rows[0]
    assert list(row[2:5]) == ["3", "2 of 2", "1"]


def test_the_page_is_complete_and_escaped(tmp_path: Path):
    write_item_page(ITEM, tmp_path / "item.html")
    page = (tmp_path / "item.html").read_text()
    HTMLParser().feed(page)
    assert "widths &amp; &lt;depths&gt;" in page
    for text in ("3.430", minus("-0.0123"), "It differs.", COMMAND, "2 seeds"):
        assert text in page


def test_the_markdown_has_a_section_for_each_item_under_its_paper():
    page = all_items([ITEM, ITEM])
    assert page.count("## A paper, arXiv:0000.00000") == 1
    assert page.count("### Table 7") == 2
    assert "| a | parameters | 28M | 28.3M | yes |  |" in page
    assert "benchmarks/results/some" in page
