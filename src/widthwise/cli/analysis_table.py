"""What `widthwise analyze` prints: means over layers, one column per model."""

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from widthwise.records.analysis import Analysis
from widthwise.reports.analysis.tables import summary_table


def analysis_table(analysis: Analysis) -> Table:
    """Means over layers as a table."""
    summary = summary_table(analysis)
    table = Table(title=summary.caption, box=SIMPLE_HEAD, show_edge=False)
    for i, title in enumerate(summary.header):
        table.add_column(Text(title), justify="right" if i else "left", overflow="fold")
    for row in summary.rows:
        table.add_row(*map(Text, row))
    return table
