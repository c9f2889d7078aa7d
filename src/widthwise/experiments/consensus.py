"""The mean profile of several searches, and how alike they are."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from widthwise.experiments.statistics import seed_interval
from widthwise.records.discovery import Consensus, Curve, Discovery, LayerSizes
from widthwise.shape.profile import along


def consensus(searches: Mapping[str, Discovery], texts: Sequence[str]) -> Consensus:
    """Return the mean of searches matched in one quantity; its command is known where it is written.

    searches: folder -> its search; texts: equal for two that read the same one. Profiles of fewer layers are stretched
    on straight lines.
    """
    curves = [each.found.curve for each in searches.values()]
    n_layers = max(len(each.widths) for each in curves)
    sizes = np.array([_sizes(each, n_layers) for each in curves])  # (n_searches, 3, n_layers)
    levels = sizes.mean(axis=2)
    relative = (sizes / levels[:, :, None]).round(12)  # layers that are alike differ by no last digit
    profiles = dict(zip(LayerSizes.model_fields, relative.swapaxes(0, 1)))
    widths, *others = relative.mean(axis=0)
    shares = (levels[:, 1:] / levels[:, :1]).mean(axis=0)
    attention, hidden = (share * own / widths for share, own in zip(shares, others))
    return Consensus(
        command="",
        searches=list(searches),
        match=next(iter(searches.values())).match,
        profiles={size: [seed_interval(values) for values in own.T.tolist()] for size, own in profiles.items()},
        correlations={size: _correlations(own, texts) for size, own in profiles.items()},
        curve=Curve(widths=widths.tolist(), attention=attention.tolist(), hidden=hidden.tolist()),
    )


def _sizes(curve: Curve, n_layers: int) -> list[np.ndarray]:
    """Return width, attention and hidden units, each (n_layers,) over what the uniform model has."""
    factors = (1.0, curve.attention or 1.0, curve.hidden or 1.0)
    return [along(np.multiply(own, curve.widths).tolist(), n_layers) for own in factors]


def _correlations(profiles: np.ndarray, texts: Sequence[str]) -> dict[str, float]:
    """Return the mean correlation of two searches; an even profile has none. profiles: (n_searches, n_layers)."""
    found = dict[str, list[float]]()
    for (own, text), (theirs, other) in combinations(zip(profiles, texts, strict=True), 2):
        if np.ptp(own) and np.ptp(theirs):
            pair = "same text" if text == other else "different texts"
            found.setdefault(pair, []).append(float(np.corrcoef(own, theirs)[0, 1]))
    return {pair: float(np.mean(values)) for pair, values in sorted(found.items(), reverse=True)}
