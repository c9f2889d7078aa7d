"""Growth of models on a page: question and answer, figures, and tables of the models before and after."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from widthwise.records.certificate import Certificate
from widthwise.records.run import GrowthRecord, Run
from widthwise.reports.page.formats import MISSING, TIMES, capital, clean, fixed, ratio, shorten, si, signed
from widthwise.reports.page.html import Panel, legend, sequence
from widthwise.reports.page.svg import Style
from widthwise.reports.page.table import Table
from widthwise.reports.run.growth_figures import (
    MeasuredGrowth,
    growth_panels,
    held_out,
    lines_at,
    mean_losses,
    measured_growths,
    shown_loss,
)


@dataclass(frozen=True)
class GrowthSection:
    """The part of a page on growth."""

    figures: list[Panel]
    legend: list[tuple[Markup, str]]
    table: Table
    certificates: list[Table]


def growth_section(runs: Mapping[str, Sequence[Run]], styles: Mapping[str, Style]) -> GrowthSection | None:
    """Text, figures and tables; None if no model grew. runs: variant -> one run per seed."""
    growths = {name: measured_growths(own) for name, own in runs.items()}
    steps = sorted({step for own in growths.values() for step in own})
    certified = {f"{name}, {run.path}": run.certificate for name, own in runs.items() for run in own if run.certificate}
    if not steps:
        return None
    lines = {step: lines_at(step, runs, growths, styles) for step in steps}
    shown = {line.name for own in lines.values() for line in own}
    return GrowthSection(
        [panel for step in steps for panel in growth_panels(step, lines[step])],
        legend({name: styles[name] for name in runs if name in shown}),
        _table(growths),
        [_certificate_table(name, certificate) for name, certificate in certified.items()],
    )


def growth_steps(runs: Iterable[Run]) -> list[float]:
    """Steps after which a model grew."""
    return sorted({float(growth.step) for run in runs for growth in run.growths})


def growth_flops(runs: Iterable[Run]) -> list[float]:
    """Training FLOPs after which a model grew, once for each of them."""
    return sorted({growth.training_flops for run in runs for growth in run.growths})


def growth_question(runs: Mapping[str, Run]) -> str | None:
    """The question that growth answers; None if no model grew."""
    grown = [shorten(name, 60) for name, run in runs.items() if run.growths]
    if not grown:
        return None
    verb, its = ("Does", "its") if len(grown) == 1 else ("Do", "their")
    return f"{verb} {sequence(grown)} compute after {its} growth what was computed before, and go on to learn?"


def growth_answers(runs: Mapping[str, Run]) -> list[str]:
    """A sentence for each certificate, one for each growth, and one for the final result."""
    grown = {name: run for name, run in runs.items() if run.growths}
    return [
        text if len(grown) == 1 else f"{shorten(name, 60)}: {text}"
        for name, run in grown.items()
        for text in _answers(run)
    ]


def _answers(run: Run) -> Iterator[str]:
    if run.certificate:
        yield _certified(run.certificate)
    for growth in run.growths:
        before, after = held_out(run, growth)
        change = f", {shown_loss(after)} right after (change {signed(after - before, 4)})" if np.isfinite(after) else ""
        what = f"{capital(_NOUNS[growth.event])} after step {growth.step:,}, {_sizes(growth)} parameters"
        yield f"{what}: held-out loss {shown_loss(before)} before{change}."
    if run.result and run.result.val_loss is not None and run.result.steps:
        yield f"At the end, after step {run.result.steps:,}, the held-out loss is {fixed(run.result.val_loss, 4)}."


def _certified(certificate: Certificate) -> str:
    found = "The function is preserved" if certificate.is_preserved else "The function CHANGED"
    return (
        f"{found}: logits differ by at most {certificate.logit_difference:.1e} (bound {certificate.logit_bound:.0e}), "
        f"gradients of old parameters by {certificate.gradient_difference:.1e} of the largest (bound "
        f"{certificate.gradient_bound:.0e})."
    )


_NOUNS = {"growth": "growth", "grown": "growth", "baked": "bake", "padded": "padding"}


def _sizes(growth: GrowthRecord) -> str:
    return f"{si(growth.params_before)} to {si(growth.params_after)}"


def _table(growths: Mapping[str, Mapping[int, list[MeasuredGrowth]]]) -> Table:
    by_event: dict[tuple[str, int, str], list[MeasuredGrowth]] = {}
    for name, own in growths.items():
        for step, here in own.items():
            for growth in here:
                by_event.setdefault((name, step, growth.record.event), []).append(growth)
    rows = [_row(name, same) for (name, _, _), same in by_event.items()]
    header = ["Variant", "after step", "event", "parameters", "training FLOPs by then", "held-out before", "after"]
    caption = "Growth, mean over seeds" if any(len(same) > 1 for same in by_event.values()) else "Growth"
    return Table(caption, [*header, "largest change"], rows, words={"event"})


def _row(name: str, same: Sequence[MeasuredGrowth]) -> list[str]:
    """same: the same growth of one variant in each of its runs."""
    before, after = mean_losses(same)
    change = max((growth.after - growth.before for growth in same), key=abs)
    growth = same[0].record
    return [
        clean(name),
        f"{growth.step:,}",
        growth.event,
        _sizes(growth),
        si(growth.training_flops),
        shown_loss(before),
        shown_loss(after),
        f"{change:+.1e}" if np.isfinite(change) else MISSING,
    ]


def _certificate_table(name: str, found: Certificate) -> Table:
    n_new, n_alive, n_dead, n_unjudged = (
        sum(getattr(each, count) for each in found.liveness.values())
        for count in ("n_new", "n_alive", "n_dead", "n_unjudged")
    )
    before, after = found.before, found.after
    rows = [
        ["largest logit", f"{found.largest_logit:.4g}", MISSING],
        ["largest difference of logits", f"{found.logit_difference:.1e}", f"{found.logit_bound:.0e}"],
        ["the same as stored in fp32", f"{found.stored_logit_difference:.1e}", f"{found.stored_logit_bound:.0e}"],
        [
            "largest difference of old gradients, over the largest gradient",
            f"{found.gradient_difference:.1e}",
            f"{found.gradient_bound:.0e}",
        ],
        ["function", "preserved" if found.is_preserved else "CHANGED", MISSING],
        ["new entries", f"{n_new:,}{', all 0: padding' if found.is_padding else ''}", MISSING],
        ["of these: learn", f"{n_alive:,}", MISSING],
        ["had no gradient", f"{n_dead:,}", MISSING],
        ["of tokens and positions not seen", f"{n_unjudged:,}", MISSING],
        ["parameters", f"{_to(before.params, after.params)}", MISSING],
        ["forward FLOPs per token", f"{_to(before.flops_per_token, after.flops_per_token)}", MISSING],
    ]
    tokens = f"{found.n_sequences} {TIMES} {found.n_tokens} random tokens, {clean(found.dtype)}"
    return Table(f"Certificate of {clean(name)}: {tokens}", ["Measured", "Value", "Bound"], rows)


def _to(before: float, after: float) -> str:
    return f"{before:,.0f} to {after:,.0f} ({ratio(after / before)})" if before else f"{before:,.0f} to {after:,.0f}"
