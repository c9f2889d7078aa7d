"""What `widthwise analyze` prints: means over layers, one column per model."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from widthwise.records.analysis import parse_analysis
from widthwise.reports.analysis.tables import summary_table


def analysis_table(analysis: Mapping[str, Any]) -> Table:
    """The content of `analysis.json` as a table. Raises UserError where a key is missing or wrong."""
    summary = summary_table(parse_analysis(analysis))
    table = Table(title=summary.caption, box=SIMPLE_HEAD, show_edge=False)
    for i, title in enumerate(summary.header):
        table.add_column(Text(title), justify="right" if i else "left", overflow="fold")
    for row in summary.rows:
        table.add_row(*map(Text, row))
    return table
