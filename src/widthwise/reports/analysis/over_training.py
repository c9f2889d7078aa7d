"""The checkpoints of runs in an analysis: means over layers as curves over tokens, and which of them stand for all."""

from collections.abc import Mapping

import numpy as np

from widthwise.records.analysis import Analysis
from widthwise.reports.analysis.tables import means
from widthwise.reports.page.curves import Curve
from widthwise.reports.page.html import Panel, panels
from widthwise.reports.page.plots import Bundle, curve_figure
from widthwise.reports.page.svg import Style

N_SHOWN = 5
"""Checkpoints of a run that a figure over layers shows: more lines could not be told apart."""


def with_some_checkpoints(analysis: Analysis) -> Analysis:
    """The analysis with at most N_SHOWN checkpoints of each run, spread evenly from the first to the last."""
    left_out = set()
    for own in analysis.courses.values():
        shown = {round(i) for i in np.linspace(0, len(own) - 1, N_SHOWN)}
        left_out |= {model.name for i, model in enumerate(own) if i not in shown}
    return analysis.with_changes(models=[model for model in analysis.models if model.name not in left_out])


def course_figures(analysis: Analysis, styles: Mapping[str, Style]) -> list[Panel]:
    """A figure for each mean over layers, with a line for each run over the tokens of its checkpoints."""
    figures = {}
    for i, mean in enumerate(means(analysis)):
        bundles = []
        for run, models in analysis.courses.items():
            x = np.array([model.tokens for model in models], dtype=float)
            curve = Curve(x, np.array([mean.value(model) for model in models]))
            bundles.append(Bundle(run, styles[run], [curve], curve))
        title = mean.title[:1].upper() + mean.title[1:]
        figures[title] = curve_figure(f"course-{i}", bundles, "tokens", mean.title)
    return panels(figures)
