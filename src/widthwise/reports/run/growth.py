"""Growth of models on a page: question and answer, figures, and tables of the models before and after."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from widthwise.records.certificate import Certificate
from widthwise.records.record import finite
from widthwise.records.run import GrowthRecord, Run
from widthwise.reports.page.formats import MISSING, TIMES, capital, clean, fixed, ratio, shorten, si, signed
from widthwise.reports.page.html import Panel, legend, sequence
from widthwise.reports.page.inline import named
from widthwise.reports.page.plots import INCHES, SEED_ALPHA, SEED_WIDTH, Curve, by_step, label_axes, mean_over_seeds
from widthwise.reports.page.svg import CARD, INK, Style, draw, line_legend
from widthwise.reports.page.table import Table

SHARE_SHOWN = 0.1
"""Share of a run's steps that a figure shows on each side of a growth."""
FEWEST_STEPS = 12
"""Fewest steps shown on each side of a growth."""


@dataclass(frozen=True)
class MeasuredGrowth:
    """A growth with its held-out losses."""

    record: GrowthRecord
    before: float
    after: float


def measured_growths(runs: Sequence[Run]) -> dict[int, list[MeasuredGrowth]]:
    """Step -> the growths at this step, one per run."""
    found: dict[int, list[MeasuredGrowth]] = {}
    for run in runs:
        for growth in run.growths:
            found.setdefault(growth.step, []).append(MeasuredGrowth(growth, *held_out(run, growth)))
    return found


def held_out(run: Run, growth: GrowthRecord) -> tuple[float, float]:
    """Held-out losses before and after; NaN if not measured. Commands measure none, but the source run may have."""
    if growth.event == "growth":
        return finite(growth.loss_before), finite(growth.loss_after)
    validated = by_step(run, "validation", "loss")
    return Curve(validated.x, np.where(validated.x == growth.step, validated.y, np.nan)).last, float("nan")


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


@dataclass(frozen=True)
class _Line:
    """A variant near a growth."""

    name: str
    style: Style
    seeds: list[Curve]
    """Training loss by step."""
    seed_numbers: list[int | None]
    losses: tuple[float, float] | None
    """Held-out losses before and after, means over seeds; None if this variant did not grow there."""


def lines_at(
    step: int,
    runs: Mapping[str, Sequence[Run]],
    growths: Mapping[str, Mapping[int, Sequence[MeasuredGrowth]]],
    styles: Mapping[str, Style],
) -> list[_Line]:
    """The variants that grew at a step, and those that kept the size they had before it."""
    sizes = {growth.record.params_before for own in growths.values() for growth in own.get(step, ())}
    lines = []
    for name, own in runs.items():
        here = growths[name].get(step)
        cost = own[0].cost
        if here is None and (growths[name] or cost is None or cost.params["total"] not in sizes):
            continue
        curves = [by_step(run, "train", "loss") for run in own]
        reach = max(FEWEST_STEPS, SHARE_SHOWN * max(max(curve.x, default=0.0) for curve in curves))
        seeds = [_near(curve, step, reach) for curve in curves]
        seed_numbers = [run.result.seed if run.result else None for run in own]
        lines.append(_Line(name, styles[name], seeds, seed_numbers, _first_losses(here) if here else None))
    return lines


def _first_losses(here: Sequence[MeasuredGrowth]) -> tuple[float, float]:
    """Mean losses around the first event: one command may follow another at the same step."""
    return mean_losses([growth for growth in here if growth.record.event == here[0].record.event])


def _near(curve: Curve, step: int, reach: float) -> Curve:
    kept = np.abs(curve.x - step) <= reach
    return Curve(curve.x[kept], curve.y[kept])


def mean_losses(growths: Sequence[MeasuredGrowth]) -> tuple[float, float]:
    """Mean losses before and after; NaN if a run has none."""
    return (
        float(np.mean([growth.before for growth in growths])),
        float(np.mean([growth.after for growth in growths])),
    )


def growth_panels(step: int, lines: Sequence[_Line]) -> list[Panel]:
    """The losses; and, if a model with the same seeds did not grow, their difference to its losses."""
    found = [Panel(f"Loss across the growth after step {step:,}", _figure(f"growth-{step}", step, lines, LOSS))]
    stayed = next((line for line in lines if line.losses is None), None)
    paired = [line for line in lines if stayed and line.seed_numbers == stayed.seed_numbers]
    if stayed is None or len(paired) == 1:
        return found
    name = shorten(stayed.name, 22)
    above = [_above(stayed, line) for line in paired]
    title, y_label = f"The same minus the loss of {name}", f"minus that of {name}"
    return [*found, Panel(title, _figure(f"growth-{step}-above", step, above, y_label))]


LOSS = "training loss; squares: held out"


def _above(stayed: _Line, line: _Line) -> _Line:
    """Until it grew, a model was the one that stayed: the held-out loss before is that of both."""
    losses = None if line.losses is None else (0.0, line.losses[1] - line.losses[0])
    seeds = [_difference(own, of_stayed) for own, of_stayed in zip(line.seeds, stayed.seeds)]
    return replace(line, seeds=seeds, losses=losses)


def _difference(curve: Curve, other: Curve) -> Curve:
    """The difference of two curves at the steps that both have."""
    steps = np.intersect1d(curve.x, other.x)
    return Curve(steps, curve.y[np.isin(curve.x, steps)] - other.y[np.isin(other.x, steps)])


def _figure(key: str, step: int, lines: Sequence[_Line], y_label: str) -> Markup:
    def paint(axes: Axes) -> None:
        axes.axvline(step + 0.5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for line in lines:
            _paint(axes, step, line)
        label_axes(axes, "step", y_label, whole=True)

    losses = "; ".join(
        f"{shorten(line.name, 40)} {shown_loss(line.losses[0])} to {shown_loss(line.losses[1])}"
        for line in lines
        if line.losses is not None
    )
    label = f"{capital(y_label)}, near step {step}, after which models grow. Held out, before and after: {losses}."
    return draw(key, label, INCHES, paint, line_legend({line.name: line.style for line in lines}))


def _paint(axes: Axes, step: int, line: _Line) -> None:
    colour = line.style.colour
    if len(line.seeds) > 1:
        for curve, seed in zip(line.seeds, line.seed_numbers):
            label = named(line.name, "an unfinished run" if seed is None else f"seed {seed}")
            axes.plot(curve.x, curve.y, color=colour, linewidth=SEED_WIDTH, alpha=SEED_ALPHA, label=label)
    mean = mean_over_seeds(line.seeds)
    axes.plot(mean.x, mean.y, color=colour, linestyle=line.style.dash, linewidth=1.9, label=named(line.name))
    if line.losses is not None:
        before, after = line.losses
        look = {"color": CARD, "markeredgecolor": colour, "markersize": 8, "markeredgewidth": 1.6}
        axes.plot(step, before, "s", label=named(line.name, "held out, before"), **look)
        look = {"color": colour, "markeredgecolor": CARD, "markersize": 6.5, "zorder": 4}
        axes.plot(step + 1, after, "s", label=named(line.name, "held out, after"), **look)


def shown_loss(loss: float) -> str:
    """With four decimals, or as missing."""
    return fixed(loss, 4) if np.isfinite(loss) else MISSING
