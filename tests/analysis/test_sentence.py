"""The answer of an analysis in words."""

from typing import Any

from widthwise.analysis.findings import RESERVATION, sentence
from widthwise.records.analysis import AnalysedModel


def model(name: str, values: list[float | None], valley: dict[str, Any] | None = None, **units: Any) -> AnalysedModel:
    """values: entropies of all depths. Every layer has a block of 10 units, 4 effective, and one of 30, 2 effective."""
    blocks = [
        {"block": 1, "d_ff": 10, "participation": 4.0, "utilisation": [0.5] * 10},
        {"block": 2, "d_ff": 30, "participation": 2.0, "utilisation": [0.1] * 30},
    ]
    unused = {"density": [], "dead_share": None, "participation_share": None}
    layers = range(1, len(values))
    data = {
        "name": name,
        "source": name,
        "kind": "run",
        "step": None,
        "d_model": 8,
        "widths": [8] * len(layers),
        "n_tokens": 5,
        "stream": [{"depth": i, "width": 8, "rank": 5, "entropy": value} for i, value in enumerate(values)],
        "activations": [{"layer": layer, **unused, **block, **units} for layer in layers for block in blocks],
        "logit_lens": [],
        "sinks": [],
        "valley": valley,
    }
    return AnalysedModel.model_validate(data)


def test_blocks_of_a_layer_count_together_and_outer_layers_not() -> None:
    first, *rest = sentence([model("a", [9.0, 9.0, 0.2, 0.3, 0.4, 9.0, 9.0])], 0.1).splitlines()
    # Layers 2 to 4 of 6; 6 of 40 units; (10 * 0.5 + 30 * 0.1) / 40.
    assert first == (
        "In the middle half of the layers of a: the normalised matrix entropy of the stream is 0.300; the "
        "participation ratio over d_ff is 0.150; the share of activations beyond 0.1 is 0.200. Over all layers the "
        "stream of a has no compression valley."
    )
    assert rest == [RESERVATION]


def test_every_further_model_is_compared_with_the_first() -> None:
    valley = {"depth": 2, "entropy": 0.25, "drop": 0.125, "rise": 0.5}
    models = [
        model("base", [0.9, 0.25, 0.25, 0.9], valley),
        model("x", [0.5, 0.5, 0.5, 0.5], participation=1.0),
        model("y", [None] * 4, participation=None),
    ]
    x, y, _ = sentence(models, 0.5).splitlines()
    assert x.startswith("In the middle half of the layers of x, beside base: ")
    assert "entropy of the stream is 0.500, higher than 0.250;" in x
    assert "over d_ff is 0.050, lower than 0.150;" in x
    assert "beyond 0.5 is 0.200, as 0.200." in x
    assert x.endswith(
        "the stream of x has no compression valley, that of base falls by 0.125 of that entropy into a valley after "
        "layer 2 and rises by 0.500."
    )
    assert y.startswith("In the middle half of the layers of y, beside base: the share of activations beyond 0.5 is")


def test_there_is_a_middle_at_any_depth() -> None:
    for n_layers, expected in ((1, 1.0), (2, 1.0), (3, 1.5), (4, 2.0), (8, 4.0)):
        line = sentence([model("a", [float(depth) for depth in range(n_layers + 1)])], 0.1)
        assert f"entropy of the stream is {expected:.3f};" in line
