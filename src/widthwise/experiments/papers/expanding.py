"""What an expansion does to a model with random weights: exactly, as the paper prints it, and naively.

Source: arXiv:2308.06103, Table 1 and Theorems 3.1 to 3.6. All in float64, on random tokens; changes of logits are
relative to the largest logit before, so that rounding is about 1e-16 of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from widthwise.growth.bake.baked import bake_plan
from widthwise.growth.certify.certificate import N_SEQUENCES, N_TOKENS, certify
from widthwise.growth.certify.measuring import decoder_of, largest, liveness_of, logits_of
from widthwise.growth.chosen import with_constants_of
from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.model.axes import Norm
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint
from widthwise.records.certificate import LivenessCounts

Weights = Mapping[str, Tensor]


def drawn_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Those of an untrained model, each moved by as much as the embedding is large, so that no gain is 1 and no bias 0
    as they are before training."""
    model = blueprint(config).to(torch.float64).to_empty(device="cpu")
    model.tie()
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight.detach() + config.init.std * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        for name, weight in model.named_parameters()
    }


def as_printed(plan: GrowthPlan, grown: Weights) -> dict[str, Tensor]:
    """The weights of Table 1, for the larger model with constants of its own sizes.

    Keys and gains are scaled as the usual form of the grown model has them. New gains of old norms are 0, and the eps
    of the norms, which the paper leaves out, stays as it is. grown: the weights of the grown model.
    """
    norms = {f"{name}.weight" for name, module in blueprint(plan.new).named_modules() if isinstance(module, Norm)}
    widened = {name: plan.is_new()[name] for name in norms if plan.tensors[name].source}
    usual = dict(bake_plan(plan.new).weights(grown))
    return usual | {name: usual[name].masked_fill(is_new, 0.0) for name, is_new in widened.items()}


@dataclass(frozen=True)
class Expanding:
    """One expansion of a model that is drawn from a seed."""

    plan: GrowthPlan
    wanted: ModelConfig
    """The larger model as a recipe describes it, with the attention scale and the norms of its own sizes."""
    seed: int
    lr: float
    """Learning rate of the steps that show which new weights learn."""

    def quantities(self) -> dict[str, float]:
        """Quantity -> its value."""
        certificate = certify(self.plan, self._old, self._grown, seq_len=N_TOKENS, lr=self.lr, seed=self.seed)
        usual = bake_plan(self.plan.new)
        printed = as_printed(self.plan, self._grown)
        larger = with_constants_of(self.wanted, self.plan)
        liveness = liveness_of(larger, printed, self._tokens, torch.float64, self.lr, self.seed)
        return {
            "change_of_logits": certificate.logit_difference / certificate.largest_logit,
            "change_of_logits_in_usual_form": self._change(usual.new, dict(usual.weights(self._grown))),
            "change_of_logits_as_printed": self.change_as_printed(),
            "change_of_logits_when_copied": self._change(self.wanted, self._copied()),
            "change_of_gradients": certificate.gradient_difference,
            "share_that_learns": _share_alive(certificate.liveness),
            "share_that_learns_as_printed": _share_alive(liveness),
        }

    def change_as_printed(self) -> float:
        """The largest change of a logit, over the largest logit before, with the weights of Table 1."""
        return self._change(self.wanted, as_printed(self.plan, self._grown))

    @cached_property
    def _old(self) -> Weights:
        return drawn_weights(self.plan.old, self.seed)

    @cached_property
    def _grown(self) -> Weights:
        return dict(self.plan.weights(self._old, self.seed))

    @cached_property
    def _tokens(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.plan.old.vocab_size, (N_SEQUENCES, N_TOKENS), generator=generator)

    def _copied(self) -> dict[str, Tensor]:
        """The old weights inside an untrained model of the larger size."""
        untrained, is_new = drawn_weights(self.wanted, self.seed + 1), self.plan.is_new()
        return {name: torch.where(is_new[name], untrained[name], weight) for name, weight in self._grown.items()}

    def _change(self, config: ModelConfig, weights: Weights) -> float:
        """The largest change of a logit, over the largest logit before."""
        return largest(self._logits(config, weights) - self._logits_before) / largest(self._logits_before)

    @cached_property
    def _logits_before(self) -> Tensor:
        return self._logits(self.plan.old, self._old)

    def _logits(self, config: ModelConfig, weights: Weights) -> Tensor:
        return logits_of(decoder_of(config, weights, torch.float64), self._tokens, self.seed)


def _share_alive(liveness: Mapping[str, LivenessCounts]) -> float:
    """The share of the new entries that learn, among those that the tokens can reach."""
    n_alive, n_dead = (sum(getattr(each, name) for each in liveness.values()) for name in ("n_alive", "n_dead"))
    return n_alive / (n_alive + n_dead)
