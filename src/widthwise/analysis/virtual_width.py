"""Statistics of hyper-connections: the weights of all sources in the input of each site, and the mixing of slots.

The sources of a site are the embedding and the outputs of all earlier sublayers.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from widthwise.analysis.meters import Moments
from widthwise.analysis.subject import watched_reads
from widthwise.data.loader import NO_BOUNDARIES, Boundaries, HeldOut
from widthwise.kernels.dispatch import autocast
from widthwise.model.context import Stream
from widthwise.model.decoder import Decoder
from widthwise.model.eval_mode import evaluating
from widthwise.model.residual.hyper_connections_module import HyperConnection
from widthwise.model.residual.manifold_module import ManifoldConnection
from widthwise.model.residual.slots import SlotsConfig
from widthwise.records.analysis import CarrySpectrum, SiteSlots, VirtualWidth

SUBLAYERS = ("attention", "ffn")
N_DECIMALS = 6
SITES_PER_LAYER = 2
N_SPECTRA = 32
"""Largest number of tokens of a window whose carries are decomposed, at n_slots^3 operations each."""
SAMPLE_TOKENS = 4096
"""Number of analysed tokens: whole windows from the start of the validation text, at least one."""


class DepthWeights:
    """The weights of all sources in the stream of each token, updated site by site."""

    def __init__(self, identity: Tensor):
        """Start with the embedding alone. identity: (n_slots, n_slots), in the dtype of the coefficients."""
        self.weights = identity[None]
        self._widths = [len(identity)]

    def of_read(self, read: Tensor) -> list[Tensor]:
        """Return the weights (N, n_read, n_blocks) of each source, the embedding first. read: (N, n_slots, n_read)."""
        return list((read.mT @ self.weights).split(self._widths, dim=-1))

    def pass_site(self, deviation: Tensor, write: Tensor) -> None:
        """Update by one site. deviation: (N, n_slots, n_slots), carry minus identity; write: (N, n_slots, n_write)."""
        self.weights = torch.cat((self.weights + deviation.mT @ self.weights, write), dim=-1)
        self._widths.append(write.shape[-1])


def reach(weights: Tensor) -> Tensor:
    """Return the root mean square of the singular values, (N,); 1 for a plain residual. weights: (N, n_read, n)."""
    return torch.linalg.matrix_norm(weights) / math.sqrt(min(weights.shape[-2:]))


def mean_distance(reaches: Sequence[float]) -> float | None:
    """Return the mean distance of a site from its sources in layers, weighted by reach; None if it reads nothing.

    reaches: of all sources, the embedding first and the nearest, half a layer away, last.
    """
    total = sum(reaches)
    distances = ((len(reaches) - i) / SITES_PER_LAYER for i in range(len(reaches)))
    return sum(weight * distance for weight, distance in zip(reaches, distances)) / total if total else None


def sampled(matrices: Tensor) -> Tensor:
    """Return at most N_SPECTRA of the matrices (N, n, n), evenly spread, in fp64 on the CPU."""
    step = -(-len(matrices) // N_SPECTRA)
    return matrices[::step].to("cpu", torch.float64)


def spectra(carry: Tensor, product: Tensor) -> Tensor:
    """Return (N, 4): spectral radius and norm of carry (N, n, n), then of product (N, n, n)."""
    columns = []
    for matrices in (carry, product):
        columns.append(torch.linalg.eigvals(matrices).abs().amax(dim=-1))
        columns.append(torch.linalg.matrix_norm(matrices, ord=2))
    return torch.stack(columns, dim=-1)


def gate_distance(gates: Tensor) -> Tensor:
    """Return (N,): the mean distance of |gates| from the nearer of 0 and 1. gates: (N, n, k), carries and writes."""
    sizes = gates.abs()
    return torch.minimum(sizes, (sizes - 1).abs()).mean(dim=(-1, -2))


def carry_entropy(carry: Tensor) -> Tensor:
    """Return (N,): the mean entropy in nats of the rows, with absolute values that sum to 1. carry: (N, n, n)."""
    shares = carry.abs() / carry.abs().sum(dim=-1, keepdim=True)
    return torch.special.entr(shares).sum(dim=-1).mean(dim=-1)


def window_share(reaches: Sequence[float], n_slots: int) -> float | None:
    """Return the share of the last n_slots sources in the input of a site; None if it reads nothing.

    reaches: of all sources, the embedding first.
    """
    total = sum(reaches)
    return sum(reaches[-n_slots:]) / total if total else None


class VirtualWidthMeter:
    """Statistics of the sites of a model, without MTP heads, over all added tokens."""

    def __init__(self, model: Decoder, residual: SlotsConfig):
        """residual: the residual config of the model."""
        self._model = model
        self._residual = residual
        sites = hyper_connections(model)
        self._meters = [_SiteMeter(name, site.n_read, residual.n_slots) for name, site in sites.items()]
        self._n_tokens = 0

    @torch.no_grad()
    def add(self, tokens: Tensor, boundaries: Boundaries = NO_BOUNDARIES) -> None:
        """Run the model on tokens, integers (B, T), and add their statistics.

        Needs memory for n_slots^2 + n_slots * (blocks that all sites write) numbers per token.
        """
        weight = self._model.embedding.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        depth = DepthWeights(torch.eye(self._residual.n_slots, dtype=dtype, device=weight.device))

        def see(index: int, coefficients: Tensor) -> None:
            with torch.autocast(coefficients.device.type, enabled=False):
                self._meters[index].add(coefficients, depth, self._residual.multiplier)

        with watched_sites(self._model, see):
            self._model.stream(tokens, documents=boundaries.documents(tokens), positions=boundaries.positions(tokens))
        self._n_tokens += tokens.numel()

    def summary(self) -> VirtualWidth:
        """Return the `virtual_width` of a run's result; see docs/virtual_width.md."""
        return VirtualWidth(
            n_tokens=self._n_tokens,
            n_slots=self._residual.n_slots,
            slot_width=self._residual.slot_width,
            dynamic=getattr(self._residual, "dynamic", True),
            sites=[meter.summary() for meter in self._meters],
        )


@dataclass(eq=False)
class _SiteMeter:
    """Running statistics of one site over tokens."""

    _name: str
    _n_read: int
    _n_slots: int
    _moments: dict[str, Moments] = field(default_factory=lambda: defaultdict(Moments))

    def add(self, coefficients: Tensor, depth: DepthWeights, multiplier: float) -> None:
        """Add coefficients (..., n_slots, n_coefficients), and update `depth` by this site."""
        coefficients = coefficients.reshape(-1, *coefficients.shape[-2:])
        self._moments["coefficients"].add(coefficients)
        read, deviation, write = self._parts(coefficients)
        self._moments["reach"].add(torch.stack([reach(weights) for weights in depth.of_read(read)], dim=-1))
        depth.pass_site(deviation, multiplier * write)
        carry = deviation + torch.eye(self._n_slots, dtype=deviation.dtype, device=deviation.device)
        self._moments["gate_distance"].add(gate_distance(torch.cat((carry, write), dim=-1)))
        self._moments["identity_distance"].add(torch.linalg.matrix_norm(deviation) / math.sqrt(self._n_slots))
        self._moments["carry_entropy"].add(carry_entropy(carry))
        product_of_carries = depth.weights[..., : self._n_slots]
        self._moments["spectra"].add(spectra(sampled(carry), sampled(product_of_carries)))

    def _parts(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """Split into read, carry (minus the identity) and write."""
        return torch.tensor_split(coefficients, (self._n_read, self._n_read + self._n_slots), dim=-1)

    def summary(self) -> SiteSlots:
        """Return the record of the site. `sd` is over tokens, with one number per slot."""
        means = {name: moments.mean for name, moments in self._moments.items()}
        mean = means["coefficients"].cpu()
        read, deviation, write = self._parts(mean)
        carry = deviation + torch.eye(self._n_slots, dtype=mean.dtype)
        variances = self._parts(self._moments["coefficients"].variance.cpu())
        reaches = means["reach"].tolist()
        share = window_share(reaches, self._n_slots)
        radius, norm, product_radius, product_norm = _rounded(means["spectra"])
        sds = (_rounded(variance.mean(dim=-1).sqrt()) for variance in variances)
        return SiteSlots(
            name=self._name,
            reach=_rounded(means["reach"]),
            reach_sd=_rounded(self._moments["reach"].variance.sqrt()),
            mean_distance=mean_distance(reaches),
            plain_distance=(len(reaches) + 1) / (2 * SITES_PER_LAYER),
            window_share=None if share is None else round(share, N_DECIMALS),
            **{name: _rounded(means[name]) for name in ("gate_distance", "identity_distance", "carry_entropy")},
            spectrum=CarrySpectrum(radius=radius, norm=norm, product_radius=product_radius, product_norm=product_norm),
            read=_rounded(read),
            carry=_rounded(carry),
            write=_rounded(write),
            sd=dict(zip(("read", "carry", "write"), sds)),
        )


def _rounded(values: Tensor) -> Any:
    return values.cpu().numpy().round(N_DECIMALS).tolist()


def hyper_connections(model: Decoder) -> dict[str, HyperConnection | ManifoldConnection]:
    """Return the sites by name, such as `layers.3.attention`, in the order of the stream."""
    places = [(i, part, layer) for i, layer in enumerate(model.layers) for part in SUBLAYERS]
    named = {f"layers.{i}.{part}": getattr(layer, f"{part}_residual") for i, part, layer in places}
    return {name: site for name, site in named.items() if isinstance(site, HyperConnection | ManifoldConnection)}


@contextmanager
def watched_sites(model: Decoder, see: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call see(index, coefficients) for each site in every forward pass; layers run uncompiled."""

    def show(index: int, site: HyperConnection | ManifoldConnection, stream: Stream) -> None:
        see(index, site.coefficients(stream))

    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for index, site in enumerate(hyper_connections(model).values()):
            stack.enter_context(watched_reads(site, partial(show, index, site)))
        yield


def analyse_virtual_width(model: Decoder, held_out: HeldOut) -> VirtualWidth | None:
    """Return the `virtual_width` of a result; None for a model without hyper-connections."""
    residual = model.config.residual
    if not isinstance(residual, SlotsConfig):
        return None
    meter = VirtualWidthMeter(model, residual)
    with evaluating(model) as device:
        for batch in held_out.batches(max(SAMPLE_TOKENS, held_out.seq_len)):
            for window in batch[:, :-1].split(1):  # one window at a time, to save memory
                with autocast(device, held_out.precision):
                    meter.add(window.to(device), held_out.boundaries)
    return meter.summary()
