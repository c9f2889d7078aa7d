"""The main table of a comparison as CSV and as LaTeX, with every text that comes from a user made harmless."""

from collections.abc import Sequence

from widthwise.records.record import Compared, Estimate, Variant
from widthwise.reports.comparison.main_table import cells, main_columns
from widthwise.reports.page.formats import MINUS, MISSING, TIMES, clean, percentage, ratio
from widthwise.reports.page.spreadsheet import csv_cell, csv_rows

_ESTIMATES = ("val_loss", "difference", "val_bits_per_byte", "train_loss", "tokens_per_second")
_RATIOS = (
    "params",
    "active_params",
    "flops",
    "training_flops",
    "average_width",
    "kv_bytes",
    "activation_bytes",
    "tokens_per_second",
)
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
}


def csv_text(comparison: Compared) -> str:
    """One row per variant, full precision, empty where a number is unknown."""
    rows = [_csv_row(variant) for variant in comparison.variants]
    return csv_rows(rows, list(rows[0]))


def _csv_row(variant: Variant) -> dict[str, str | float | None]:
    cost = variant.cost
    row: dict[str, str | float | None] = {"variant": csv_cell(variant.name), "verdict": variant.verdict}
    for key in _ESTIMATES:
        estimate: Estimate | None = getattr(variant, key)
        for part in ("mean", "low", "high"):
            row[f"{key}_{part}"] = getattr(estimate, part) if estimate else None
    row["params"] = cost.params["total"]
    row["params_active"] = cost.params.get("active")
    row["flops_per_token_forward"] = cost.flops_per_token.forward
    row["flops_per_token_forward_causal"] = cost.flops_per_token.forward_causal
    row["flops_per_token_training"] = cost.flops_per_token.training
    row["average_width"] = cost.average_width
    row["virtual_width"] = cost.virtual_width
    row["kv_bytes_per_token"] = cost.kv_bytes_per_token
    row["activation_bytes_per_token"] = cost.activation_bytes_per_token
    return row | {f"{key}_ratio": variant.ratio.get(key) for key in _RATIOS}


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands: no command, no comment, no alignment."""
    return "".join(_LATEX.get(letter, letter) for letter in clean(text))


def latex_text(comparison: Compared) -> str:
    r"""A `table` environment for a paper; needs \usepackage{booktabs} and T1 font encoding."""
    columns = main_columns(comparison)
    has_verdicts = comparison.baseline_variant is not None
    header = ["", *(column.title for column in columns), *(["Verdict"] if has_verdicts else [])]
    body = [line for variant in comparison.variants for line in _latex_lines(variant, comparison)]
    lines = [
        r"% needs \usepackage[T1]{fontenc} and \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering\small",
        rf"  \caption{{{latex_escape(_caption(comparison))}}}",
        rf"  \begin{{tabular}}{{l{'r' * len(columns)}{'l' if has_verdicts else ''}}}",
        r"    \toprule",
        _latex_row(header),
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _caption(comparison: Compared) -> str:
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    start = (
        f"{comparison.title}. Means over seeds {seeds}. Second lines: {percentage(comparison.confidence)} intervals of"
    )
    name = comparison.baseline
    if comparison.baseline_variant is None:
        return f"{start} losses."
    return f"{start} losses and of paired differences to {name}; otherwise the ratio to {name}."


def _latex_lines(variant: Variant, comparison: Compared) -> list[str]:
    row = cells(variant, comparison)
    verdict = [variant.verdict] if comparison.baseline_variant else []
    first = _latex_row([variant.name, *(cell.value for cell in row), *verdict])
    details = [ratio(cell.ratio) or cell.interval for cell in row]
    return [first, _latex_row(["", *details, *("" for _ in verdict)])] if any(details) else [first]


def _latex_row(texts: Sequence[str]) -> str:
    return "    " + " & ".join(latex_escape(text) for text in texts) + r" \\"
