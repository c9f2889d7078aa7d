"""Growth of models in the course of their runs: the loss across it, and what it was before and after."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from widthwise.reports.curves import Curve, by_step, mean_over_seeds
from widthwise.reports.formats import MISSING, TIMES, clean, fixed, ratio, shorten, si, signed, tick
from widthwise.reports.html import Panel, legend, sequence
from widthwise.reports.records import Certificate, Growth, Run, finite
from widthwise.reports.svg import CARD, INK, Style, draw, line_legend
from widthwise.reports.tables import Table

SHARE_SHOWN = 0.1
"""Of the steps of a run, on each side of a growth."""
FEWEST_STEPS = 12
"""On each side."""


@dataclass(frozen=True)
class GrowthSection:
    """What the page shows of growth."""

    figures: list[Panel]
    legend: list[tuple[Markup, str]]
    table: Table
    certificates: list[Table]


@dataclass(frozen=True)
class _Line:
    """A variant near a growth."""

    name: str
    style: Style
    seeds: list[Curve]
    """Training loss by step."""
    losses: tuple[float, float] | None
    """Held out, before and after, means over seeds; None where this variant did not grow there."""


def growth_section(runs: Mapping[str, Sequence[Run]], styles: Mapping[str, Style]) -> GrowthSection | None:
    """None where no model grew. runs: by variant, one a seed."""
    growths = {name: _growths(own) for name, own in runs.items()}
    steps = sorted({step for own in growths.values() for step in own})
    certified = {f"{name}, {run.path}": run.certificate for name, own in runs.items() for run in own if run.certificate}
    if not steps:
        return None
    lines = {step: _lines(step, runs, growths, styles) for step in steps}
    shown = {line.name for own in lines.values() for line in own}
    return GrowthSection(
        [panel for step in steps for panel in _panels(step, lines[step])],
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
    """What is asked of models that grow; None where none does."""
    grown = [shorten(name, 60) for name, run in runs.items() if run.growths]
    if not grown:
        return None
    verb, its = ("Does", "its") if len(grown) == 1 else ("Do", "their")
    return f"{verb} {sequence(grown)} compute after {its} growth what was computed before, and go on to learn?"


def growth_answers(runs: Mapping[str, Run]) -> list[str]:
    """A sentence for each certificate, one for each growth, and one for what came of them."""
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
        before, after = _losses(run, growth)
        change = f", {_shown(after)} right after (change {signed(after - before, 4)})" if np.isfinite(after) else ""
        what = f"{_NOUNS[growth.event].capitalize()} after step {growth.step:,}, {_sizes(growth)} parameters"
        yield f"{what}: held-out loss {_shown(before)} before{change}."
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


def _sizes(growth: Growth) -> str:
    return f"{si(growth.params_before)} to {si(growth.params_after)}"


def _losses(run: Run, growth: Growth) -> tuple[float, float]:
    """Held out, before and after; NaN where nobody measured it. A verb measures none, but its source may have."""
    if growth.event == "growth":
        return finite(growth.loss_before), finite(growth.loss_after)
    validated = by_step(run, "validation", "loss")
    return Curve(validated.x, np.where(validated.x == growth.step, validated.y, np.nan)).last, float("nan")


def _shown(loss: float) -> str:
    return fixed(loss, 4) if np.isfinite(loss) else MISSING


@dataclass(frozen=True)
class _Growth:
    """A growth with its held-out losses."""

    record: Growth
    before: float
    after: float


def _growths(runs: Sequence[Run]) -> dict[int, list[_Growth]]:
    """Step -> what happened there in each run."""
    found: dict[int, list[_Growth]] = {}
    for run in runs:
        for growth in run.growths:
            found.setdefault(growth.step, []).append(_Growth(growth, *_losses(run, growth)))
    return found


def _lines(
    step: int,
    runs: Mapping[str, Sequence[Run]],
    growths: Mapping[str, Mapping[int, list[_Growth]]],
    styles: Mapping[str, Style],
) -> list[_Line]:
    """What grew there, and what stayed as small as that was."""
    sizes = {growth.record.params_before for own in growths.values() for growth in own.get(step, ())}
    lines = []
    for name, own in runs.items():
        here = growths[name].get(step)
        cost = own[0].cost
        if here is None and (growths[name] or cost is None or cost.params["total"] not in sizes):
            continue
        reach = max(FEWEST_STEPS, SHARE_SHOWN * max(finite(run.result.steps) if run.result else 0 for run in own))
        seeds = [_near(by_step(run, "train", "loss"), step, reach) for run in own]
        lines.append(_Line(name, styles[name], seeds, None if here is None else _mean_losses(here)))
    return lines


def _near(curve: Curve, step: int, reach: float) -> Curve:
    kept = np.abs(curve.x - step) <= reach
    return Curve(curve.x[kept], curve.y[kept])


def _mean_losses(growths: Sequence[_Growth]) -> tuple[float, float]:
    return (
        float(np.mean([growth.before for growth in growths])),
        float(np.mean([growth.after for growth in growths])),
    )


def _panels(step: int, lines: Sequence[_Line]) -> list[Panel]:
    """The losses; and, where a model stayed as it was, what they are above its own on the same batches."""
    found = [Panel(f"Loss across the growth after step {step:,}", _figure(f"growth-{step}", step, lines, LOSS))]
    stayed = next((line for line in lines if line.losses is None), None)
    if stayed is None:
        return found
    name = shorten(stayed.name, 22)
    above = [_above(stayed, line) for line in lines]
    title, y_label = f"The same minus the loss of {name}", f"training loss minus that of {name}"
    return [*found, Panel(title, _figure(f"growth-{step}-above", step, above, y_label))]


LOSS = "training loss; squares: held-out loss"


def _above(stayed: _Line, line: _Line) -> _Line:
    """Until it grew, a model was the one that stayed: the held-out loss before is that of both."""
    losses = None if line.losses is None else (0.0, line.losses[1] - line.losses[0])
    seeds = [_difference(own, of_stayed) for own, of_stayed in zip(line.seeds, stayed.seeds)]
    return replace(line, seeds=seeds, losses=losses)


def _difference(curve: Curve, other: Curve) -> Curve:
    """At the steps that both have."""
    steps = np.intersect1d(curve.x, other.x)
    return Curve(steps, curve.y[np.isin(curve.x, steps)] - other.y[np.isin(other.x, steps)])


def _figure(key: str, step: int, lines: Sequence[_Line], y_label: str) -> Markup:
    def paint(axes: Axes) -> None:
        axes.axvline(step + 0.5, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        for line in lines:
            _paint(axes, step, line)
        axes.set_xlabel("step")
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
        axes.grid(axis="y")
        axes.tick_params(length=0)

    held_out = "; ".join(
        f"{shorten(line.name, 40)} {_shown(line.losses[0])} to {_shown(line.losses[1])}"
        for line in lines
        if line.losses is not None
    )
    label = (
        f"{y_label.capitalize()}, near step {step}, after which models grow. Held out, before and after: {held_out}."
    )
    return draw(key, label, (5.4, 3.4), paint, line_legend({line.name: line.style for line in lines}))


def _paint(axes: Axes, step: int, line: _Line) -> None:
    colour = line.style.colour
    if len(line.seeds) > 1:
        for curve in line.seeds:
            axes.plot(curve.x, curve.y, color=colour, linewidth=0.7, alpha=0.35)
    mean = mean_over_seeds(line.seeds)
    axes.plot(mean.x, mean.y, color=colour, linestyle=line.style.dash, linewidth=1.9)
    if line.losses is not None:
        before, after = line.losses
        axes.plot(step, before, "s", color=CARD, markeredgecolor=colour, markersize=8, markeredgewidth=1.6)
        axes.plot(step + 1, after, "s", color=colour, markersize=6.5, markeredgecolor=CARD, zorder=4)


def _table(growths: Mapping[str, Mapping[int, list[_Growth]]]) -> Table:
    rows = []
    for name, own in growths.items():
        for step, here in own.items():
            before, after = _mean_losses(here)
            change = max((growth.after - growth.before for growth in here), key=abs)
            growth = here[0].record
            rows.append(
                [
                    clean(name),
                    f"{step:,}",
                    growth.event,
                    _sizes(growth),
                    si(growth.training_flops),
                    _shown(before),
                    _shown(after),
                    f"{change:+.1e}" if np.isfinite(change) else MISSING,
                ]
            )
    header = ["Variant", "after step", "event", "parameters", "training FLOPs by then", "held-out before", "after"]
    return Table("Growth, mean over seeds", [*header, "largest change"], rows)


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
