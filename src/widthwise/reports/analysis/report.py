"""The report of an analysis: one page whose figures show all models together."""

from pathlib import Path

from widthwise.files import write_atomic
from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.reports.analysis import figures
from widthwise.reports.analysis.figures import course_figures, with_some_checkpoints
from widthwise.reports.analysis.tables import checkpoints_table, layer_table, summary_table
from widthwise.reports.page.formats import clean, fixed, si
from widthwise.reports.page.html import legend, render, sequence
from widthwise.reports.page.svg import styles
from widthwise.reports.run.dynamic_width import dynamic_width_section
from widthwise.reports.run.virtual_width import virtual_width_section


def write_analysis_report(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Reads `folder/analysis.json` and writes `report.html` into `out` (default: `folder`).

    Returns {"html": ...}. Raises UserError where something is missing or broken, before it writes anything.
    """
    folder, out = Path(folder), Path(out or folder)
    page = out / "report.html"
    write_atomic(page, _page(Analysis.read(folder)))
    return {"html": page}


def _page(whole: Analysis) -> str:
    analysis = with_some_checkpoints(whole)
    runs = list(whole.courses)
    of_runs = styles(runs, runs[0] if len(runs) > 1 else None)
    models, seq_len = analysis.models, analysis.text.seq_len
    names = [model.name for model in models]
    chosen = styles(names, names[0] if len(names) > 1 else None)
    by_name = {model.name: model for model in models}
    return render(
        "analysis/analysis.html",
        title=f"{analysis.title} · widthwise analysis",
        analysis=analysis,
        n_left_out=len(whole.models) - len(models),
        course=course_figures(whole, of_runs) if runs else [],
        course_legend=legend(of_runs),
        course_table=checkpoints_table(whole),
        question=_question(whole),
        even_attention=fixed(sum(1 / n for n in range(1, seq_len + 1)) / seq_len, 4),
        threshold=f"{analysis.utilisation_threshold:g}",
        summary=summary_table(analysis),
        legend=legend(chosen),
        activations=figures.activation_figures(analysis, chosen),
        utilisation=figures.utilisation_figures(analysis, chosen),
        stream=figures.stream_figures(analysis, chosen),
        lens=figures.lens_figures(analysis, chosen),
        sinks=figures.sink_figures(analysis, chosen),
        dynamic_width=dynamic_width_section(by_name, chosen),
        virtual_width=virtual_width_section(by_name, chosen),
        layer_tables=[layer_table(model, analysis.utilisation_threshold) for model in whole.models],
        models=[(clean(model.name), _described(model)) for model in whole.models],
    )


def _question(analysis: Analysis) -> str:
    names = list(dict.fromkeys(clean(model.run or model.name) for model in analysis.models))
    text = analysis.text
    does = "do" if len(names) > 1 else "does"
    when = ", in the course of training" if analysis.courses else ""
    return (
        f"What {does} {sequence(names)} do inside{when}, on {si(text.n_tokens)} tokens of {clean(text.source)} "
        f"in windows of {text.seq_len}?"
    )


def _described(model: AnalysedModel) -> str:
    step = "" if model.step is None else f", step {model.step}"
    return f"{clean(model.source)} ({clean(model.kind)}{step})"
