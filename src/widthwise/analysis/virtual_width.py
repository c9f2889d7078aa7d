"""Statistics of hyper-connections: the weights of all sources in the input of each site, and the mixing of slots.

The sources of a site are the embedding and the outputs of all earlier sublayers.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from widthwise.analysis.hooks import hook_reads
from widthwise.analysis.meters import Moments
from widthwise.data.loader import NO_BOUNDARIES, Boundaries, HeldOut
from widthwise.kernels.dispatch import autocast, without_autocast
from widthwise.model.context import Stream
from widthwise.model.decoder import Decoder
from widthwise.model.execution import evaluating
from widthwise.model.residual.hyper_connections_module import HyperConnection
from widthwise.model.residual.manifold_module import ManifoldConnection
from widthwise.model.residual.slots import SlotsConfig
from widthwise.records.analysis import CarrySpectrum, SiteSlots, VirtualWidth

N_DECIMALS = 6
SITES_PER_LAYER = 2
N_SPECTRA = 32
"""Most tokens per window for which a CarrySpectrum is computed, at n_slots^3 operations each."""
SAMPLE_TOKENS = 4096
"""Number of analysed tokens: whole windows from the start of the validation text, at least one."""


class DepthWeights:
    """The weights of all sources in the stream of each of N tokens, updated site by site.

    weights: (N or 1, n_slots, blocks of all sources). The embedding has n_slots blocks, a sublayer n_write.
    """

    def __init__(self, identity: Tensor):
        """Start with the embedding alone. identity: (n_slots, n_slots), in the dtype of the coefficients."""
        self.weights = identity[None]
        self._n_blocks = [len(identity)]

    def in_input(self, read: Tensor) -> list[Tensor]:
        """Return the weights (N, n_read, n_blocks) of each source in the input of a site, the embedding first.

        read: (N, n_slots, n_read).
        """
        return list((read.mT @ self.weights).split(self._n_blocks, dim=-1))

    def update(self, deviation: Tensor, write: Tensor) -> None:
        """Apply one site. deviation: (N, n_slots, n_slots), carry minus identity; write: (N, n_slots, n_write)."""
        self.weights = torch.cat((self.weights + deviation.mT @ self.weights, write), dim=-1)
        self._n_blocks.append(write.shape[-1])


def nearness(reaches: Sequence[float], n_slots: int) -> tuple[float | None, float | None]:
    """Return the reach-weighted mean distance in layers to the sources, and the last n_slots sources' share of reach.

    None if the site reads nothing. reaches: the size of each source's weights in the input of the site, from the
    embedding to the nearest source, which is half a layer away.
    """
    total = sum(reaches)
    if not total:
        return None, None
    distances = ((len(reaches) - i) / SITES_PER_LAYER for i in range(len(reaches)))
    mean_distance = sum(reach * distance for reach, distance in zip(reaches, distances)) / total
    return mean_distance, sum(reaches[-n_slots:]) / total


def sampled(matrices: Tensor) -> Tensor:
    """Return at most N_SPECTRA of the matrices (N, n, n), evenly spread, in fp64 on the CPU."""
    step = math.ceil(len(matrices) / N_SPECTRA)
    return matrices[::step].to("cpu", torch.float64)


@torch.no_grad()
def virtual_width(model: Decoder, windows: Iterable[Tensor], boundaries: Boundaries = NO_BOUNDARIES) -> VirtualWidth:
    """Run a model with hyper-connections and return the statistics of its sites over all tokens, without MTP heads.

    windows: integers (B, T). Needs memory for n_slots^2 + n_slots * (blocks that all sites write) numbers per token.
    """
    residual = model.config.residual
    assert isinstance(residual, SlotsConfig)
    weight = model.embedding.weight
    identity = torch.eye(residual.n_slots, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    meters = [_SiteMeter(name, site.n_read, residual.n_slots) for name, site in hyper_connections(model).items()]

    def add(depth: DepthWeights, index: int, coefficients: Tensor) -> None:
        with without_autocast(coefficients):
            meters[index].add(coefficients, depth, residual.multiplier)

    n_tokens = 0
    for tokens in windows:
        with hook_sites(model, partial(add, DepthWeights(identity))):
            model.stream(tokens, documents=boundaries.documents(tokens), positions=boundaries.positions(tokens))
        n_tokens += tokens.numel()
    return VirtualWidth(
        n_tokens=n_tokens,
        n_slots=residual.n_slots,
        slot_width=residual.slot_width,
        dynamic=getattr(residual, "dynamic", True),  # a manifold residual has no static form
        sites=[meter.summary() for meter in meters],
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
        read, deviation, write = self._parts(coefficients)
        # Root mean squares of singular values: 1 for a plain residual.
        reaches = [
            torch.linalg.matrix_norm(weights) / math.sqrt(min(weights.shape[-2:])) for weights in depth.in_input(read)
        ]
        depth.update(deviation, multiplier * write)
        carry = deviation + torch.eye(self._n_slots, dtype=deviation.dtype, device=deviation.device)
        gates = torch.cat((carry, write), dim=-1).abs()  # all are 0 or 1 if routing is hard
        shares = carry.abs() / carry.abs().sum(dim=-1, keepdim=True)
        product = depth.weights[..., : self._n_slots]  # of all carries up to this site, transposed
        spectra = []  # radius and norm of the carry, then of the product
        for matrices in (sampled(carry), sampled(product)):
            spectra.append(torch.linalg.eigvals(matrices).abs().amax(dim=-1))
            spectra.append(torch.linalg.matrix_norm(matrices, ord=2))
        statistics = {
            "coefficients": coefficients,
            "reach": torch.stack(reaches, dim=-1),
            "gate_distance": torch.minimum(gates, (gates - 1).abs()).mean(dim=(-1, -2)),
            "identity_distance": torch.linalg.matrix_norm(deviation) / math.sqrt(self._n_slots),
            "carry_entropy": torch.special.entr(shares).sum(dim=-1).mean(dim=-1),
            "spectra": torch.stack(spectra, dim=-1),
        }
        for name, values in statistics.items():
            self._moments[name].add(values)

    def _parts(self, coefficients: Tensor) -> tuple[Tensor, ...]:
        """Split into read, carry (minus the identity) and write."""
        return torch.tensor_split(coefficients, (self._n_read, self._n_read + self._n_slots), dim=-1)

    def summary(self) -> SiteSlots:
        """Return the record of the site. `sd` has one number for each row of read, carry and write."""
        means = {name: moments.mean for name, moments in self._moments.items()}
        mean = means["coefficients"].cpu()
        read, deviation, write = self._parts(mean)
        carry = deviation + torch.eye(self._n_slots, dtype=mean.dtype)
        variances = self._parts(self._moments["coefficients"].variance.cpu())
        reaches = means["reach"].tolist()
        mean_distance, share = nearness(reaches, self._n_slots)
        radius, norm, product_radius, product_norm = _rounded(means["spectra"])
        sds = (_rounded(variance.mean(dim=-1).sqrt()) for variance in variances)
        return SiteSlots(
            name=self._name,
            reach=_rounded(means["reach"]),
            reach_sd=_rounded(self._moments["reach"].variance.sqrt()),
            mean_distance=mean_distance,
            plain_distance=(len(reaches) + 1) / (2 * SITES_PER_LAYER),  # `nearness` of equal reaches
            window_share=None if share is None else round(share, N_DECIMALS),
            **{name: _rounded(means[name]) for name in ("gate_distance", "identity_distance", "carry_entropy")},
            spectrum=CarrySpectrum(radius=radius, norm=norm, product_radius=product_radius, product_norm=product_norm),
            read=_rounded(read),
            carry=_rounded(carry),
            write=_rounded(write),
            sd=dict(zip(("read", "carry", "write"), sds)),
        )


def _rounded(values: Tensor) -> Any:
    """Return the values as plain data, rounded to N_DECIMALS."""
    return values.cpu().numpy().round(N_DECIMALS).tolist()


def hyper_connections(model: Decoder) -> dict[str, HyperConnection | ManifoldConnection]:
    """Return the sites by name, such as `layers.3.attention`, in the order of the stream."""
    sites = {}
    for i, layer in enumerate(model.layers):
        sites |= {f"layers.{i}.attention": layer.attention_residual, f"layers.{i}.ffn": layer.ffn_residual}
    return {name: site for name, site in sites.items() if isinstance(site, HyperConnection | ManifoldConnection)}


@contextmanager
def hook_sites(model: Decoder, callback: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call callback(index, coefficients) for each site in every forward pass; layers run uncompiled."""

    def on_read(index: int, site: HyperConnection | ManifoldConnection, stream: Stream) -> None:
        callback(index, site.coefficients(stream))

    with torch.compiler.set_stance("force_eager"), ExitStack() as stack:
        for index, site in enumerate(hyper_connections(model).values()):
            stack.enter_context(hook_reads(site, partial(on_read, index, site)))
        yield


def analyse_virtual_width(model: Decoder, held_out: HeldOut) -> VirtualWidth | None:
    """Return the `virtual_width` of result.json, or None without hyper-connections. See docs/virtual_width.md."""
    if not isinstance(model.config.residual, SlotsConfig):
        return None
    with evaluating(model) as device, autocast(device, held_out.precision):
        batches = held_out.batches(max(SAMPLE_TOKENS, held_out.seq_len))
        # One window at a time saves memory.
        windows = (window.to(device) for batch in batches for window in batch[:, :-1].split(1))
        return virtual_width(model, windows, held_out.boundaries)
