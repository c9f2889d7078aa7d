"""How strongly hyper-connections carry the stream on, and how close their gates are to hard ones.

Source: virtual-width paper, arXiv:2511.11238, section 3.3, hard and soft depth windows. With gates that are 0 or 1 a
stream of n slots is a window over the last n updates; with carries whose spectral radius is below 1 the weight of an
update decays from site to site.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

N_SPECTRA = 32
"""Tokens of a window whose carries are decomposed, which takes n_slots^3 operations for each."""


def sampled(matrices: Tensor) -> Tensor:
    """(N, n, n), of all tokens -> at most N_SPECTRA of them, evenly spread, fp64 on the CPU."""
    step = -(-len(matrices) // N_SPECTRA)
    return matrices[::step].to("cpu", torch.float64)


def spectra(carry: Tensor, product: Tensor) -> Tensor:
    """(N, 4): spectral radius and norm of each token's carry (N, n, n), then those of its product (N, n, n)."""
    columns = [
        value
        for matrices in (carry, product)
        for value in (torch.linalg.eigvals(matrices).abs().amax(dim=-1), torch.linalg.matrix_norm(matrices, ord=2))
    ]
    return torch.stack(columns, dim=-1)


def gate_distance(gates: Tensor) -> Tensor:
    """gates: (N, n, k), carries and writes -> (N,): how far their sizes are from the nearer of 0 and 1, in the mean."""
    sizes = gates.abs()
    return torch.minimum(sizes, (sizes - 1).abs()).mean(dim=(-1, -2))


def window_share(reaches: Sequence[float], n_slots: int) -> float | None:
    """The share of what a site reads that the last n_slots sources before it wrote; None where it reads nothing.

    reaches: of all sources of the site, the embedding first.
    """
    total = sum(reaches)
    return sum(reaches[-n_slots:]) / total if total else None
