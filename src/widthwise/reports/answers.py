"""The answers of experiments in words: the question, what is better than the baseline, and what casts doubt on it."""

from collections.abc import Iterator, Sequence

from widthwise.experiments.matching import LARGEST_MISMATCH
from widthwise.records.estimate import FEWEST_SEEDS, NO_VERDICT, Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import QUANTITY, TITLES
from widthwise.records.record import finite
from widthwise.reports.formats import capital, clean, counted, fixed, sequence
from widthwise.reports.main_table import settings_of

MOST_SETTINGS = 5
"""Settings that a sentence names; the table has all."""


def answer(found: Outcome) -> list[str]:
    """Return a few sentences that answer in words, each with one number at most, and the settings that differ."""
    if found.kind == "sweep":
        return [*_of_sweep(found), *_of_settings(found)]
    if found.kind == "ladder":
        return [*_of_ladder(found), *_of_settings(found)]
    beside = [*_of_family(found), *_beside_baseline(found), *_at_equal_loss(found)]
    return [*beside, *_of_tuning(found), *_of_settings(found)]


def _of_settings(found: Outcome) -> Iterator[str]:
    """Yield which variants differ from the baseline in more than the model, those with the same settings together."""
    alike: dict[tuple[str, ...], list[Variant]] = {}
    for each in found.variants:
        alike.setdefault(tuple(settings_of(each)), []).append(each)
    for settings, group in alike.items():
        if settings:
            more = f" and {counted(len(settings) - MOST_SETTINGS, 'further setting')}"
            shown = sequence(settings) if len(settings) <= MOST_SETTINGS else ", ".join(settings[:MOST_SETTINGS]) + more
            verb = "differs" if len(group) == 1 else "differ"
            yield f"{_names(group)} {verb} from {clean(found.baseline_words or 'the baseline')} in {shown}."


def _beside_baseline(found: Outcome) -> list[str]:
    """Return what is better than the baseline, and what is not."""
    compared = [each for each in found.variants if each.difference is not None]
    if not compared:
        best = min(found.variants, key=lambda each: (each.val_loss.mean is None, each.val_loss.mean), default=None)
        if best is None or best.val_loss.mean is None:
            return []
        only = f"{clean(best.name)} ends at a held-out loss of {fixed(best.val_loss.mean, 4)}."
        return [only if len(found.variants) == 1 else f"Of {len(found.variants)}, " + only]
    by_verdict: dict[str, list[Variant]] = {}
    for each in sorted(compared, key=lambda each: finite(each.difference and each.difference.mean)):
        by_verdict.setdefault(each.verdict or "cannot tell", []).append(each)
    baseline, seeds = clean(found.baseline_words or ""), counted(len(found.seeds), "seed")
    if "no verdict" in by_verdict:
        best = by_verdict["no verdict"][0]
        than = f"{_apart(best.difference or Estimate(mean=None))} {baseline}"
        lowest = "" if len(compared) == 1 else f" of {len(compared)} has the lowest held-out loss and"
        return [f"{clean(best.name)}{lowest} ends {than}; with {seeds} there is no verdict."]
    parts = []
    for verdict, phrase in (("better", "below"), ("worse", "above")):
        if group := by_verdict.get(verdict):
            first = group[0] if verdict == "better" else group[-1]
            size = fixed(abs(finite(first.difference and first.difference.mean)), 4)
            most = f", {clean(first.name)} the most" if len(group) > 1 else ""
            verb = "ends" if len(group) == 1 else "end"
            parts.append(f"{_names(group)} {verb} {phrase} {baseline}{most}, by {size} nats.")
    if "better" not in by_verdict:
        parts.insert(0, f"Nothing here is shown to be better than {baseline}.")
    rest = [f"{_names(group)} tie with it" for group in [by_verdict.get("tie")] if group]
    rest += [f"{seeds} cannot tell {_names(group)} from it" for group in [by_verdict.get("cannot tell")] if group]
    return [*parts, *([f"{capital(' and '.join(rest))}."] if rest else [])]


def _at_equal_loss(found: Outcome) -> list[str]:
    """Return the tokens that the best variant needs for the baseline's loss, if they are surely fewer."""
    better = [each for each in found.variants if each.verdict == "better" and "val_loss" in each.at_equal_loss]
    best = min(better, key=lambda each: finite(each.val_loss.mean), default=None)
    if best is None or not finite((tokens := best.at_equal_loss["val_loss"].tokens_ratio).high) < 1:
        return []
    words = clean(found.baseline_words or "")
    return [f"{clean(best.name)} needs {fixed(tokens.mean, 3)} times the tokens of {words} for the same held-out loss."]


def _of_tuning(outcome: Outcome) -> list[str]:
    """Return which variants have a value at an end of the grid from which it was chosen."""
    if outcome.tuning is None:
        return []
    ended = [clean(each.name) for each in outcome.tuning.variants if each.is_at_limit]
    if not ended:
        return []
    verb = "was" if len(ended) == 1 else "were"
    return [f"{sequence(ended)} {verb} best at the last value that was tried: a better one may lie beyond."]


def _names(group: Sequence[Variant]) -> str:
    """Return the names of a few, or how many they are."""
    return sequence([clean(each.name) for each in group]) if len(group) <= 4 else f"{len(group)} variants"


def _of_sweep(found: Outcome) -> list[str]:
    """Return which point is best, what it is beside the baseline, and what whole groups are."""
    ranked = [each for each in found.variants if each.name != found.baseline and each.has_loss]
    n_failed, n_open = (found.study.n_failed, found.study.n_open) if found.study else (0, 0)
    rest = [f"{counted(n_failed, 'point')} failed."] if n_failed else []
    rest += [f"{counted(n_open, 'point')} without a result."] if n_open else []
    if not ranked:
        return rest
    best, lines = ranked[0], []
    lead = f"{clean(best.name)} has the lowest held-out loss of {counted(len(ranked), 'point')}"
    if best.difference is None:
        lines.append(f"{lead}, {fixed(best.val_loss.mean, 4)}.")
    else:
        lines.append(f"{lead}, {_apart(best.difference)} {clean(found.baseline_words or '')}.")
    for each in found.judged:
        is_clear = each.verdict in ("better", "worse")
        if each.confidence > found.confidence:
            what = "it still stands" if is_clear else f"the difference to {clean(each.beside)} can be luck"
            wide = f"The best of many looks better than it is: with an interval widened for all, {what}."
            lines.append(f"{capital(NO_VERDICT)}." if each.verdict == "no verdict" else wide)
        elif each.name != best.name and is_clear:
            lines.append(
                f"On average the points of {clean(each.name)} end {_apart(each.difference)} {clean(each.beside)}."
            )
    return [*lines, *rest]


def _apart(difference: Estimate) -> str:
    """Return `0.0123 nats below`."""
    mean = finite(difference.mean)
    return f"{fixed(abs(mean), 4)} nats {'below' if mean < 0 else 'above'}"


def _of_ladder(found: Outcome) -> list[str]:
    """Return at how many sizes each group is better than the baseline's group."""
    lines = []
    for group in (each for each in found.groups if each != found.baseline_group):
        verdicts = [each.verdict or "cannot tell" for each in found.variants if each.group == group]
        counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
        lines.append(f"{clean(group)} beside {clean(found.baseline_group or '')}, size by size: {counts}.")
    return lines


def _of_family(found: Outcome) -> list[str]:
    if (family := found.family) is None:
        return []
    times = family.flops_alone / family.family_flops
    return [
        f"Trained from the start, over as many tokens, these models would take {times:.2f} times the training FLOPs."
    ]


def question(found: Outcome) -> str:
    """Return the question that an experiment puts, and how it was trained."""
    seeds = f"{counted(len(found.seeds), 'seed')} ({', '.join(map(str, found.seeds))})"
    matched = "" if found.matched in (None, "none") else f" at equal {TITLES.get(found.matched, clean(found.matched))}"
    asked = _asked(found, matched + _mismatch(found))
    return f"{asked}? Trained with {seeds}." if asked else f"Trained with {seeds}."


def _asked(found: Outcome, matched: str) -> str:
    if found.family is not None:
        sizes = [clean(each.name) for each in found.points if each.group == "grown"]
        verb = "does" if len(sizes) == 1 else "do"
        beside = {"tokens": "on as many tokens", "flops": "with as many training FLOPs", None: ""}[found.family.alone]
        beside = f", beside the same trained alone {beside}" if beside else ""
        return f"What {verb} {sequence(sizes)} cost and reach, grown from {clean(found.family.sources[0])}{beside}"
    if found.kind == "sweep":
        assert found.study is not None
        keys = list(dict.fromkeys(key for axes in found.axes.values() for key in axes))
        varied = f" over {sequence([clean(key) for key in keys])}" if keys else ""
        than = f", and is it lower than that of {clean(found.baseline)}" if found.baseline else ""
        n_points = found.study.n_points - (found.baseline is not None)
        return f"Which of {n_points} points{varied} reaches the lowest held-out loss{matched}{than}"
    if found.kind == "ladder":
        others = [clean(group) for group in found.groups if group != found.baseline_group]
        n_sizes = sum(point.group == found.baseline_group for point in found.points)
        than = f"{clean(found.baseline_group or '')} at each of {n_sizes} sizes"
    else:
        others = [clean(each.name) for each in found.variants if each.name != found.baseline]
        than = clean(found.baseline or "")
    verb = "Does" if len(others) == 1 else "Do"
    return f"{verb} {sequence(others)} reach a lower held-out loss than {than}{matched}" if others else ""


def _mismatch(found: Outcome) -> str:
    """Return how unequal points are in what they are said to match, if a search asked for no closer match."""
    if (matched := QUANTITY.get(found.matched or "none")) is None:
        return ""
    ratios = [matched.ratio(*pair) for pair in found.compared]
    largest = max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=0.0)
    return f", within {largest:.1%}" if largest > LARGEST_MISMATCH else ""


def badges(found: Outcome) -> list[str]:
    """Return what casts doubt on the answer, in a few words each."""
    n_doubted = sum(bool(each.doubts) for each in found.variants)
    return [
        *(["fewer than three seeds"] if len(found.seeds) < FEWEST_SEEDS else []),
        *([f"{counted(n_doubted, 'variant')} with a doubtful last loss: see !"] if n_doubted else []),
        *(["shared machine: speeds not comparable"] if any(each.shares_machine for each in found.variants) else []),
    ]
