"""Expansions of a model with random weights, and how far they change its function: ours, the paper's and naive ones.

Source: arXiv:2308.06103, Table 1 and Theorems 3.1 to 3.6. All in float64, on random tokens; changes of logits are
relative to the largest logit before, so that rounding is about 1e-16 of it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from papers.record import Demonstration, MeasuredExpansion
from widthwise.config_io import mistakes_at, mistakes_of
from widthwise.growth.bake import bake_plan
from widthwise.growth.certificate import N_SEQUENCES, N_TOKENS, certify, decoder_of, largest, liveness_of, logits_of
from widthwise.growth.describe import expansions
from widthwise.growth.plan import GrowthPlan, plan_growth, with_recipe_constants
from widthwise.model.axes import Norm
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.resizing import LivenessCounts
from widthwise.runs.environment import command_line, environment
from widthwise.shape.template import ModelChange, changed_section
from widthwise.training.observer import Observer

Weights = Mapping[str, Tensor]
WITHOUT_EPS = ("model.norm.eps=1e-30",)
"""Override: the eps must be above 0, and this one is far below the rounding of any mean square."""


def drawn_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Return the weights of an untrained model, each moved by as much as the embedding is large, so that no gain is 1
    and no bias 0 as they are before training."""
    model = blueprint(config).to(torch.float64).to_empty(device="cpu")
    model.tie()
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: weight.detach() + config.init.std * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        for name, weight in model.named_parameters()
    }


def as_printed(plan: GrowthPlan, grown: Weights) -> dict[str, Tensor]:
    """Return the weights of Table 1, for the larger model with constants of its own sizes.

    Keys and gains are scaled as the usual form of the grown model has them. New gains of old norms are 0, and the eps
    of the norms, which the paper leaves out, stays as it is. grown: the weights of the grown model.
    """
    norms = {f"{name}.weight" for name, module in blueprint(plan.new).named_modules() if isinstance(module, Norm)}
    widened = {name: plan.is_new()[name] for name in norms if plan.tensors[name].source}
    usual = dict(bake_plan(plan.new).weights(grown))
    return usual | {name: usual[name].masked_fill(is_new, 0.0) for name, is_new in widened.items()}


class Expansion:
    """One expansion of a model that is drawn from a seed."""

    def __init__(self, plan: GrowthPlan, wanted: ModelConfig, seed: int):
        """wanted: the larger model as a recipe describes it, with the attention scale and norms of its own sizes."""
        self.plan, self.wanted, self.seed = plan, wanted, seed
        self.old = drawn_weights(plan.old, seed)
        self.grown = dict(plan.weights(self.old, seed))
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(plan.old.vocab_size, (N_SEQUENCES, N_TOKENS), generator=generator)
        self._logits = self._logits_of(plan.old, self.old)

    def quantities(self, lr: float) -> dict[str, float]:
        """Return each quantity. lr: learning rate of the steps that show which new weights learn."""
        plan, grown, seed = self.plan, self.grown, self.seed
        certificate = certify(plan, self.old, grown, seq_len=N_TOKENS, lr=lr, seed=seed)
        usual, printed = bake_plan(plan.new), as_printed(plan, grown)
        larger = with_recipe_constants(plan, self.wanted)
        liveness = liveness_of(larger, printed, self.tokens, torch.float64, lr, seed)
        untrained, is_new = drawn_weights(self.wanted, seed + 1), plan.is_new()
        copied = {name: torch.where(is_new[name], untrained[name], weight) for name, weight in grown.items()}
        return {
            "change_of_logits": certificate.logit_difference / certificate.largest_logit,
            "change_of_logits_in_usual_form": self._change(usual.new, dict(usual.weights(grown))),
            "change_of_logits_as_printed": self.change_as_printed(),
            "change_of_logits_when_copied": self._change(self.wanted, copied),
            "change_of_gradients": certificate.gradient_difference,
            "share_that_learns": _share_alive(certificate.liveness),
            "share_that_learns_as_printed": _share_alive(liveness),
        }

    def change_as_printed(self) -> float:
        """Return the largest change of a logit, over the largest logit before, with the weights of Table 1."""
        return self._change(self.wanted, as_printed(self.plan, self.grown))

    def _change(self, config: ModelConfig, weights: Weights) -> float:
        return largest(self._logits_of(config, weights) - self._logits) / largest(self._logits)

    def _logits_of(self, config: ModelConfig, weights: Weights) -> Tensor:
        return logits_of(decoder_of(config, weights, torch.float64), self.tokens, self.seed)


def _share_alive(liveness: Mapping[str, LivenessCounts]) -> float:
    """Return the share of the new entries that learn, among those that the tokens can reach."""
    n_alive, n_dead = (sum(getattr(each, name) for each in liveness.values()) for name in ("n_alive", "n_dead"))
    return n_alive / (n_alive + n_dead)


def planned_expansions(recipe: Recipe, changes: Mapping[str, ModelChange]) -> dict[str, tuple[GrowthPlan, ModelConfig]]:
    """Return for each name how the model grows, and the larger model as a recipe describes it.

    changes: name -> changes to the model section. Raises UserError where it cannot grow so.
    """
    found = {}
    for name, change in changes.items():
        where = f"expansions.{name}"
        section = changed_section(recipe.model, change, where)
        with mistakes_at(where):
            wanted = section.resolve(recipe.seq_len)
        with mistakes_of(where):
            found[name] = plan_growth(recipe.final_model, wanted), wanted
    return found


def demonstrate(
    path: Path, overrides: Sequence[str], changes: Mapping[str, ModelChange], seeds: Sequence[int], observer: Observer
) -> Demonstration:
    """Return the quantities of all expansions of the model of a recipe, with every seed. Raises UserError where it
    cannot grow so."""
    recipe = load_recipe(path, overrides)
    found, plans_without_eps = {}, planned_expansions(load_recipe(path, (*overrides, *WITHOUT_EPS)), changes)
    for name, (plan, wanted) in planned_expansions(recipe, changes).items():
        observer.message(f"{name}: {'; '.join(expansions(plan))}")
        by_seed = []
        for seed in seeds:
            printed = Expansion(*plans_without_eps[name], seed).change_as_printed()
            own = Expansion(plan, wanted, seed).quantities(recipe.optimizer.lr)
            by_seed.append(own | {"change_of_logits_as_printed_without_eps": printed})
        found[name] = MeasuredExpansion(
            does=expansions(plan),
            params=int(plan.new.cost().params),
            quantities={key: [each[key] for each in by_seed] for key in by_seed[0]},
        )
    return Demonstration(
        command=command_line(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(),
        seeds=list(seeds),
        params=int(recipe.final_model.cost().params),
        expansions=found,
    )
