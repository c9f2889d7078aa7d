"""Tables for a paper, in LaTeX that runs nothing and prints every text as it stands."""

from collections.abc import Sequence

from widthwise.reports.page.formats import MINUS, MISSING, TIMES, clean

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",  # after \\ a bracket or a star would be read as its argument
    "]": "{]}",
    "*": "{*}",
    "`": r"\textasciigrave{}",
    MINUS: "$-$",
    MISSING: "--",
    TIMES: r"$\times$",
    "…": r"\ldots{}",
    "†": r"\dag{}",
}


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands: no command, no comment, no alignment."""
    return "".join(_LATEX.get(letter, letter) for letter in clean(text))


def escaped_row(texts: Sequence[str]) -> str:
    """A line of a table from plain texts."""
    return latex_row([latex_escape(text) for text in texts])


def latex_row(cells: Sequence[str]) -> str:
    """A line of a table from cells that are LaTeX already."""
    return "    " + " & ".join(cells) + r" \\"


def latex_table(caption: str, layout: str, head: Sequence[str], body: Sequence[str]) -> str:
    """A `table` environment.

    caption: plain text. layout: a letter for every column but the first, which names the row. head and body: lines.
    """
    lines = [
        r"% needs \usepackage[T1]{fontenc} and \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering\small",
        rf"  \caption{{{latex_escape(caption)}}}",
        rf"  \begin{{tabular}}{{l{layout}}}",
        r"    \toprule",
        *head,
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
