"""Which earlier updates a hyper-connected sublayer sees, and with which weights: its receptive field in depth.

With the coefficients that a token had, the input of site t is a sum over its sources (Eq. 13 of the virtual-width
paper, arXiv:2511.11238, unrolled and with every token's own coefficients):

    x_t = sum over s < t of W_ts z_s  +  W_te H_0        W_ts = read_t^T carry_(t-1)^T ... carry_(s+1)^T write_s

z_s is the update of site s as blocks, H_0 the slots that the embedding filled, W_te the same product of all carries
before t. The plain residual has W_ts = I on the coordinates that both sites own.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SITES_PER_LAYER = 2


class DepthWeights:
    """What the stream of each token holds of every source so far; goes along with the stream, site by site."""

    def __init__(self, identity: Tensor):
        """Before the first site: the embedding alone. identity: (n_slots, n_slots), in the type of coefficients."""
        self._held = identity[None]
        self._widths = [len(identity)]

    def of_read(self, read: Tensor) -> list[Tensor]:
        """read: (N, n_slots, n_read) -> for every source, the embedding first, W (N, n_read, blocks of the source)."""
        return list((read.mT @ self._held).split(self._widths, dim=-1))

    @property
    def of_embedding(self) -> Tensor:
        """(N or 1, n_slots, n_slots): the product of all carries so far, by which the first slots have become these."""
        return self._held[..., : self._widths[0]]

    def pass_site(self, deviation: Tensor, write: Tensor) -> None:
        """deviation: (N, n_slots, n_slots), the carry minus the identity; write: (N, n_slots, n_write)."""
        self._held = torch.cat((self._held + deviation.mT @ self._held, write), dim=-1)
        self._widths.append(write.shape[-1])


def reach(weights: Tensor) -> Tensor:
    """(N, n_read, n_source) -> (N,): root mean square of the singular values, 1 for the plain residual."""
    return torch.linalg.matrix_norm(weights) / math.sqrt(min(weights.shape[-2:]))


def mean_distance(reaches: Sequence[float]) -> float | None:
    """Layers between a site and what it reads, in the mean weighted by reach; None where it reads nothing.

    reaches: of all sources of the site, the embedding first and the nearest last, half a layer away.
    """
    total = sum(reaches)
    distances = ((len(reaches) - i) / SITES_PER_LAYER for i in range(len(reaches)))
    return sum(weight * distance for weight, distance in zip(reaches, distances)) / total if total else None
