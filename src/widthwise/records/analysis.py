"""`analysis.json`: statistics of activations inside trained models on one text. result.json holds some of them too."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import ClassVar, NamedTuple

import pydantic

from widthwise.records.record import FiniteOrNone, Number, Record, ReportRecord, finite


class LayerWidths(Record):
    """The widths that one dynamic-width layer chose for held-out tokens, as fractions of d_ff."""

    layer: int = pydantic.Field(ge=1)
    d_ff: int
    mean: float
    sd: float
    min: float
    max: float
    histogram: Sequence[float]
    """Share of the tokens in each of equally wide bins from 0 to 1."""
    floor_share: float
    """Share of the tokens at the narrowest width that the layer allows."""
    ceiling_share: float
    """Share of the tokens at the full width."""
    dead_share: float
    """Share of the hidden units that no token used."""
    max_units: int
    """Hidden units that the widest token used."""
    gain: FiniteOrNone = None
    """Learned parameter of the layer; None if it has none, like `bias` and `temperature`."""
    bias: FiniteOrNone = None
    temperature: FiniteOrNone = None


class ForcedLoss(Record):
    """Held-out loss if every token uses the same fraction of the hidden width."""

    fraction: float
    loss: float


class TokenWidths(Record):
    """Statistics of the dynamic-width layers of a model over held-out text."""

    n_tokens: int
    mean_fraction: float
    token_variance_share: FiniteOrNone = None
    """Share of the variance of the fractions that is between tokens; the rest is between layers."""
    flops_per_token: Mapping[str, float]
    """Kind of count, such as full or executed -> FLOPs of these layers."""
    layers: Sequence[LayerWidths] = pydantic.Field(min_length=1)
    by_frequency_decile: Sequence[FiniteOrNone] = ()
    """Mean fraction by frequency of the token, the most frequent tenth first."""
    by_token_class: Mapping[str, float] = pydantic.Field(default_factory=dict)
    forced: Sequence[ForcedLoss] = ()


class CarrySpectrum(Record):
    """Spectral radius and norm of the carry of a site, and of the product of all carries up to and including it.

    Means over a sample of tokens.
    """

    radius: FiniteOrNone
    norm: FiniteOrNone
    product_radius: FiniteOrNone
    product_norm: FiniteOrNone


class SiteSlots(Record):
    """Reads and writes of one sublayer on a stream of slots. `read`, `carry` and `write` have one row per slot."""

    name: str
    reach: Sequence[float]
    """Weights with which this sublayer reads the embedding and every earlier sublayer."""
    reach_sd: Sequence[float]
    mean_distance: FiniteOrNone
    plain_distance: float
    """Mean distance with equal weights."""
    read: Sequence[Sequence[float]]
    carry: Sequence[Sequence[float]]
    write: Sequence[Sequence[float]]
    sd: Mapping[str, Sequence[float]]
    """read, carry or write -> standard deviation over tokens of each row."""
    window_share: FiniteOrNone
    """Weight of the last n_slots sources divided by the weight of all sources."""
    gate_distance: FiniteOrNone
    """Mean distance of the absolute carries and writes from the nearer of 0 and 1; 0 if routing is hard."""
    identity_distance: FiniteOrNone
    """Mean Frobenius norm of a carry minus the identity, divided by the root of n_slots."""
    carry_entropy: FiniteOrNone
    """Mean entropy, in nats, of the rows of absolute carries: 0 for a permutation, log(n_slots) for a mean."""
    spectrum: CarrySpectrum


class VirtualWidth(Record):
    """How a model with hyper-connections uses its stream."""

    n_tokens: int
    n_slots: int
    slot_width: int
    dynamic: bool | None = None
    """True if coefficients depend on the token."""
    sites: Sequence[SiteSlots] = pydantic.Field(min_length=1)


class Activations(Record):
    """The hidden units of one gated map of a layer's feed-forward, over all tokens."""

    layer: int = pydantic.Field(ge=1)
    block: int = pydantic.Field(ge=1)
    d_ff: int = pydantic.Field(ge=1)
    density: Sequence[FiniteOrNone]
    """Share of the activations beyond each of `Analysis.thresholds`."""
    utilisation: Sequence[FiniteOrNone]
    """For each unit, the share of the tokens for which its activation exceeds `Analysis.utilisation_threshold`."""
    dead_share: FiniteOrNone
    """Share of the units that no token activates beyond that threshold."""
    participation: FiniteOrNone
    """Effective number of units that carry the energy: (sum of energies)^2 / sum of squared energies."""
    participation_share: FiniteOrNone


class LayerUnits(NamedTuple):
    """All hidden units of a layer's feed-forward, over all of its maps. Unknown numbers are NaN."""

    depth: int
    """The layer, from 1."""
    d_ff: int
    utilisation: Sequence[float]
    """Share of tokens for which each unit is active, the most used first."""
    density: float
    """Share of the activations beyond the threshold of utilisation."""
    densities: Sequence[float]
    """Share of the activations beyond each of `Analysis.thresholds`."""
    dead_share: float
    participation: float
    """Effective number of units, summed over the maps."""
    participation_share: float


class StreamState(Record):
    """The residual stream at one depth: 0 before the first layer, l after layer l."""

    depth: int = pydantic.Field(ge=0)
    width: int
    """Coordinates written so far."""
    rank: int
    entropy: FiniteOrNone
    """Matrix entropy of the tokens' states over log(rank)."""
    participation: FiniteOrNone = None


class LensPoint(Record):
    """The prediction of final norm and head from the stream at one depth, in nats."""

    depth: int = pydantic.Field(ge=0)
    target_log_prob: FiniteOrNone
    entropy: FiniteOrNone
    kl_to_next: FiniteOrNone
    """Symmetrised KL divergence to the prediction at the next depth; None at the last."""


class BlockExit(Record):
    """The prediction of final norm and head after a feed-forward block that is not the last one of its layer."""

    layer: int = pydantic.Field(ge=1)
    block: int = pydantic.Field(ge=1)
    target_log_prob: FiniteOrNone
    """Mean log probability of the next token, in nats."""


class Sink(Record):
    """Attention of one layer to the first token, and the norm of that token's state after the layer."""

    layer: int = pydantic.Field(ge=1)
    first_token_share: FiniteOrNone
    """Mean over heads and queries."""
    heads: Sequence[FiniteOrNone]
    norm_ratio: FiniteOrNone
    """Norm of the first token's state divided by the mean norm of the other states."""

    @property
    def depth(self) -> int:
        return self.layer

    @property
    def strongest_head(self) -> float | None:
        return max((share for share in self.heads if share is not None), default=None)


class Valley(Record):
    """The depth with the lowest matrix entropy, between two higher values."""

    depth: int
    entropy: float
    drop: float
    """Highest entropy at an earlier depth minus `entropy`."""
    rise: float
    """Highest entropy at a later depth minus `entropy`."""


class AnalysedModel(Record):
    """One model of an analysis."""

    name: str = pydantic.Field(min_length=1)
    source: str
    kind: str
    step: int | None
    tokens: int | None = None
    """Tokens that the model was trained on; None if unknown."""
    run: str | None = None
    """Name of the run if its checkpoints are analysed one by one; otherwise None."""
    d_model: int
    widths: Sequence[int] = pydantic.Field(min_length=1)
    n_tokens: int
    activations: Sequence[Activations]
    stream: Sequence[StreamState]
    logit_lens: Sequence[LensPoint]
    block_exits: Sequence[BlockExit] = ()
    """Exits after single blocks, in layers whose feed-forward is a stack of blocks."""
    sinks: Sequence[Sink]
    exit_flops: Sequence[Number] | None = None
    """Forward FLOPs per token of an exit at each depth, including the head; None if unknown."""
    block_exit_flops: Sequence[Sequence[Number]] | None = None
    """The same for an exit after each block of each layer except its last block; None if unknown."""
    valley: Valley | None = None
    token_widths: TokenWidths | None = None
    virtual_width: VirtualWidth | None = None

    @property
    def n_layers(self) -> int:
        return len(self.widths)

    @property
    def units(self) -> Sequence[LayerUnits]:
        """Hidden units of each layer whose feed-forward was measured, first to last; means are weighted by d_ff."""
        layers = list[LayerUnits]()
        for layer in sorted({activations.layer for activations in self.activations}):
            maps = [activations for activations in self.activations if activations.layer == layer]
            sizes = [gated_map.d_ff for gated_map in maps]
            utilisation = [finite(share) for gated_map in maps for share in gated_map.utilisation]
            densities = zip(*(gated_map.density for gated_map in maps))  # of all maps at each threshold
            participation = sum(finite(gated_map.participation) for gated_map in maps)
            layers.append(
                LayerUnits(
                    depth=layer,
                    d_ff=sum(sizes),
                    utilisation=sorted(utilisation, reverse=True),
                    density=fmean(utilisation),
                    densities=[fmean(map(finite, shares), sizes) for shares in densities],
                    dead_share=fmean([finite(gated_map.dead_share) for gated_map in maps], sizes),
                    participation=participation,
                    participation_share=participation / sum(sizes),
                )
            )
        return layers


class AnalysedText(Record):
    """The text on which the models were analysed."""

    source: str
    seq_len: int = pydantic.Field(ge=1)
    n_tokens: int
    """Number of tokens by the tokenizer of the first model."""


class Analysis(ReportRecord):
    """Several models on the same text. Each model uses the tokenizer it was trained with."""

    file_name: ClassVar[str] = "analysis.json"

    text: AnalysedText
    thresholds: Sequence[float] = pydantic.Field(min_length=1)
    utilisation_threshold: float
    models: Sequence[AnalysedModel] = pydantic.Field(min_length=1)

    @property
    def checkpoints(self) -> Mapping[str, Sequence[AnalysedModel]]:
        """Run -> its checkpoints, ordered by tokens. Runs with a single checkpoint are skipped."""
        by_run: dict[str, list[AnalysedModel]] = {}
        for model in self.models:
            if model.run is not None and model.tokens is not None:
                by_run.setdefault(model.run, []).append(model)
        for models in by_run.values():
            models.sort(key=lambda model: model.tokens or 0)
        return {run: models for run, models in by_run.items() if len(models) > 1}
