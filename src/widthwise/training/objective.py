"""The objective of a step: the loss of its passes over a batch, and a price on the width that tokens use."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.growth.plan import GrowthPlan
from widthwise.kernels.linear_cross_entropy import Teacher
from widthwise.model.config import ModelConfig
from widthwise.model.context import Choices
from widthwise.model.decoder import Loss
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.recipe.train_section import TrainConfig
from widthwise.recipe.width_training import NestedConfig, WidthBudgetConfig
from widthwise.training.step_statistics import ChoiceMeans


class Objective:
    """The objective of one model: the sum over the passes of a step.

    Most models have one pass and nothing that joins its loss; a width budget and nested training need dynamic-width
    layers. A budget waits until growth lets tokens choose.
    """

    def __init__(self, config: TrainConfig, model: ModelConfig, device: torch.device):
        budget, nested = config.width_budget, config.nested
        self.z_loss, self.pull = config.z_loss, None if nested is None else nested.pull
        self._budget = None if budget is None or not chooses_width(model) else WidthBudget(budget, model, device)
        self._nested = None if nested is None else NestedPasses(nested, model)

    def draw_passes(self) -> Sequence[float | None]:
        """The width fraction that each pass of the next step forces; None leaves it to the tokens.

        Where narrow passes have a teacher, the pass at full width comes first.
        """
        return (None,) if self._nested is None else self._nested.draw()

    def teacher(self, first: Loss) -> Teacher | None:
        """Return the teacher of the later passes, made of the first pass's `hidden`; None where they learn from targets
        alone."""
        if self.pull is None or first.hidden is None:
            return None
        return Teacher(first.hidden, self.pull.weight, self.pull.temperature)

    def term(self, loss: Loss, width_fraction: float | None) -> Tensor:
        """The term of one pass, a scalar to differentiate. The budget joins only where tokens chose their widths."""
        if self._budget is None or width_fraction is not None:
            return loss.objective
        return loss.objective + self._budget.term(loss.choices)

    def end_step(self, choices: ChoiceMeans) -> None:
        """Takes in what the layers chose over the whole batch."""
        if self._budget is not None:
            self._budget.end_step(self._budget.used(choices.means()))

    def state(self) -> list[float]:
        """The state that a checkpoint keeps. Waits for the device."""
        return [] if self._budget is None else self._budget.prices.tolist()

    def load_state(self, state: Sequence[float]) -> None:
        """Restores a `state`."""
        if self._budget is not None:
            self._budget.load_state(state)

    def record(self) -> dict[str, Any]:
        """The entries of a training record."""
        return {} if self._budget is None else self._budget.record()


def carried_state(state: Sequence[float], before: TrainConfig, after: TrainConfig, plan: GrowthPlan) -> list[float]:
    """The state of an objective for the model that a plan grows; that of a new one where the budgets differ in kind.

    With a price for each dynamic-width layer, added layers start at the mean.
    """
    old, new = before.width_budget, after.width_budget
    if new is None:
        return []
    if not state or old is None or (old.kind, old.is_layerwise) != (new.kind, new.is_layerwise):
        return Objective(after, plan.new, torch.device("cpu")).state()
    if not new.is_layerwise:
        return list(state)
    by_layer = dict(zip((layer.index for layer in dynamic_layers(plan.old)), state))
    mean = sum(state) / len(state)
    sources = (plan.correspondence.layers[layer.index] for layer in dynamic_layers(plan.new))
    return [mean if source is None else by_layer.get(source, mean) for source in sources]


class WidthBudget:
    """A width budget applied to one model. Its tensors stay on the device, so that no step waits for them."""

    def __init__(self, config: WidthBudgetConfig, model: ModelConfig, device: torch.device):
        self.config = config
        self._layers = dynamic_layers(model)
        shares = torch.tensor(flops_shares(self._layers), dtype=torch.float64, device=device)
        self._shares = shares
        self._averages = torch.diag(torch.ones_like(shares)) if config.is_layerwise else shares[None]
        """(n_terms, n_layers), from the means of the layers to the means of the terms."""
        self._weights = shares if config.is_layerwise else shares.new_ones(1)
        self.prices = torch.zeros_like(self._weights)
        """(n_terms,) the current price of each term."""

    def term(self, choices: Sequence[Choices]) -> Tensor:
        """Return the budget's term of a forward pass: a scalar with the gradient of the layers' fractions."""
        fractions = self.used(choices)
        means = torch.stack([fraction.mean() for fraction in fractions]).double()
        term = self._weights @ self.config.term(self._averages @ means, self.prices)
        if self.config.spread:
            variances = torch.stack([fraction.var(correction=0) for fraction in fractions]).double()
            term = term - self.config.spread * (self._shares @ variances)
        return term

    def used(self, choices: Sequence[Choices]) -> list[Tensor]:
        """The fraction that each dynamic layer uses. choices: those of all layers, or their means."""
        return [choices[layer.index]["width_fraction"] for layer in self._layers]

    def load_state(self, prices: Sequence[float]) -> None:
        """Restore the prices that a checkpoint keeps. Raises UserError for another number of them."""
        if len(prices) != len(self.prices):
            raise UserError(f"resume: the saved width_prices are {len(prices)}; must be {len(self.prices)}")
        self.prices = self.prices.new_tensor(prices)

    def record(self) -> dict[str, Any]:
        """Return the entries of a training record. width_price: of the next step, or one for each dynamic layer."""
        if not self.config.has_price:
            return {}
        prices = self.prices.tolist()
        return {"width_price": prices if self.config.is_layerwise else prices[0]}

    def end_step(self, means: Sequence[Tensor]) -> None:
        """Moves the prices. means: each dynamic layer's mean fraction over the whole batch."""
        self.prices = self.config.next_price(self._averages @ torch.stack(list(means)).double(), self.prices)


class NestedPasses:
    """Nested training of one model: draws the widths that a step forces."""

    def __init__(self, config: NestedConfig, model: ModelConfig):
        self._config = config
        self._fractions = forced_fractions(dynamic_layers(model), config.n_widths)

    def draw(self) -> list[float | None]:
        """The widths of one step, None for what tokens choose, which comes first unless the full width teaches it.

        Draws from torch's generator.
        """
        config, fractions = self._config, self._fractions
        between = fractions[config.sandwich : -1]
        drawn = between[int(torch.randint(len(between), ()))]
        first = [None] * config.chosen + [1.0]
        return first[:: -1 if config.pull else 1] + [drawn] + fractions[:1] * config.sandwich
