"""Items of the papers: the table, page and Markdown say what is printed, counted and measured."""

from html.parser import HTMLParser
from typing import Any

from papers.record import PaperExperiment, PaperItem, PaperLine
from papers.report import all_items, item_page, item_table

from widthwise.records.estimate import Estimate
from widthwise.reports.formats import MINUS

ABOVE = Estimate(mean=0.25, low=0.125, high=0.375, per_seed=[0.125, 0.375])


def item(*lines: PaperLine, **changes: Any) -> PaperItem:
    return PaperItem(
        **{"name": "i", "paper": "P", "where": "Table 0", "title": "t", "finds": "-", **changes}, lines=lines
    )


def line(**changes: Any) -> PaperLine:
    return PaperLine.model_validate({"row": "r", "quantity": "share", "title": "share", **changes})


def test_a_line_says_what_is_printed_counted_and_measured_and_a_row_is_named_once() -> None:
    tiny = Estimate(mean=2.5e-16, low=-1e-17, high=1.0)
    shown = {
        ("r", "", "", "", "0.2500\n0.125 to 0.375"): line(measured=ABOVE),
        ("", "higher", "", "yes", "+0.2500\n+0.1250 to +0.3750"): line(
            printed="higher", measured=ABOVE, reproduces="yes", is_difference=True
        ),
        ("", "unchanged", "", "no", f"2.5e{MINUS}16\n{MINUS}1.0e{MINUS}17 to 1.000"): line(
            printed="unchanged", measured=tiny, reproduces="no"
        ),
        ("", "", "", "", "0.0000\n0.000 to 0.000"): line(measured=Estimate(mean=0.0, low=0.0, high=0.0)),
        ("", "12", "12.3000", "yes", ""): line(printed="12", printed_value=12.0, counted=12.3, agrees=True),
        ("s", "12", "13", "no", ""): line(row="s", printed="12", counted=13, agrees=False),
    }
    expected = [[row, "share", *cells] for row, *cells in shown]
    assert item_table(item(*shown.values())).rows == expected


def test_page_and_markdown_are_complete_and_the_page_escaped() -> None:
    command = "widthwise paper item --scale small"
    params = {"quantity": "params", "title": "parameters", "printed": "28M", "printed_value": 28e6}
    measured = Estimate(mean=-0.0123, low=-0.02, high=-0.004)
    lines = [
        line(row="a", **params, counted=28.3e6, agrees=True),
        line(row="b", title="difference", printed="3.430", printed_value=3.43, measured=measured),
    ]
    experiment = PaperExperiment(scale="small", recipe="some", folder="some", command=command, n_seeds=2)
    about = {"paper": "A paper, arXiv:0", "where": "Table 7", "title": "widths & <depths>", "finds": "x < y"}
    shown = item(*lines, **about, experiment=experiment, remarks=["It differs."])
    page = item_page(shown).html()
    HTMLParser().feed(page)
    assert "widths &amp; &lt;depths&gt;" in page
    for text in ("3.430", f"{MINUS}0.0123", "It differs.", command, "2 seeds"):
        assert text in page
    markdown = all_items([shown, shown])
    assert markdown.count("## A paper, arXiv:0\n") == 1
    assert markdown.count("### Table 7") == 2
    assert "| a | parameters | 28M | 28.3M | yes |  |" in markdown
    assert "benchmarks/results/some" in markdown
