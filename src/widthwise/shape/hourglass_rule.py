"""The hourglass paper's budget in closed form, and the rule behind the sizes of its models.

The budget is what the matrices of the layers hold, with as many key-value heads as query heads:

    n_params = n_layers * d_model * (4 * d_model + 3 * n_blocks * d_hidden)

Norm gains, embedding and head are left out. Source: arXiv:2602.06471, section 3.2. The rule itself is not in the paper;
it was recovered from its tables, whose sizes `paper_sizes` gives to the unit. `ratio` is d_hidden / d_model.
"""

import math

from widthwise.config_io import UserError


def solved_d_model(n_params: float, n_layers: float, n_blocks: int, ratio: float) -> float:
    """The width, not rounded, at which the layers hold n_params."""
    return math.sqrt(n_params / (n_layers * (4 + 3 * n_blocks * ratio)))


def solved_n_layers(n_params: float, d_model: float, n_blocks: int, ratio: float) -> float:
    """The depth, not rounded, at which the layers hold n_params."""
    return n_params / (d_model**2 * (4 + 3 * n_blocks * ratio))


def solved_ratio(n_params: float, n_layers: float, n_blocks: int, d_model: float) -> float:
    """The ratio at which the layers hold n_params. Raises UserError where attention alone already holds as much."""
    limit = math.sqrt(n_params / (4 * n_layers))
    if d_model >= limit:
        raise UserError(
            f"d_model: got {d_model:g}; the attention of {n_layers:g} layers alone holds {n_params:,.0f} parameters at "
            f"{limit:.4g}, so it must be smaller"
        )
    return (n_params / (n_layers * d_model**2) - 4) / (3 * n_blocks)


def paper_d_hidden(n_params: float, n_layers: int, n_blocks: int, d_model: int) -> int:
    """The nearest whole hidden width at a given d_model. Raises what `solved_ratio` raises."""
    return round(solved_ratio(n_params, n_layers, n_blocks, d_model) * d_model)


def paper_sizes(n_params: float, n_layers: int, n_blocks: int, ratio: float, n_heads: int) -> tuple[int, int]:
    """(d_model, d_hidden): d_model to the nearest multiple of 2 * n_heads, then d_hidden from what is left."""
    quantum = 2 * n_heads
    d_model = quantum * round(solved_d_model(n_params, n_layers, n_blocks, ratio) / quantum)
    return d_model, paper_d_hidden(n_params, n_layers, n_blocks, d_model)
