"""What joins the loss of the tokens in a step: a price on width, and passes at forced widths."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from widthwise.model.config import ModelConfig
from widthwise.model.ffn.interface import Choices
from widthwise.model.token_widths import dynamic_layers, flops_shares, forced_fractions, width_fractions
from widthwise.recipe.nested import NestedConfig
from widthwise.recipe.width_budget import WidthBudgetConfig


class WidthBudget:
    """A budget at work on one model. Its tensors stay on the device: no step waits for them."""

    def __init__(self, config: WidthBudgetConfig, model: ModelConfig, device: torch.device):
        self.config = config
        shares = torch.tensor(flops_shares(dynamic_layers(model)), dtype=torch.float64, device=device)
        self._shares = shares
        self._averages = torch.diag(torch.ones_like(shares)) if config.is_layerwise else shares[None]
        """(n_terms, n_layers), from the means of the layers to the means of the terms."""
        self._weights = shares if config.is_layerwise else shares.new_ones(1)
        self.prices = torch.zeros_like(self._weights)
        """(n_terms,)"""

    def term(self, choices: Sequence[Choices]) -> Tensor:
        """What joins the objective of a forward pass: a scalar with the gradient of the layers' fractions."""
        fractions = width_fractions(choices)
        means = torch.stack([fraction.mean() for fraction in fractions]).double()
        term = self._weights @ self.config.term(self._averages @ means, self.prices)
        if self.config.spread:
            variances = torch.stack([fraction.var(correction=0) for fraction in fractions]).double()
            term = term - self.config.spread * (self._shares @ variances)
        return term

    def state(self) -> list[float]:
        """The prices, as a checkpoint keeps them. Waits for the device."""
        return self.prices.tolist()

    def load_state(self, prices: Sequence[float]) -> None:
        """Goes on with the prices of `state`."""
        self.prices = self.prices.new_tensor(prices)

    def record(self) -> dict[str, Any]:
        """What a training record says. width_price: the price of the next step, or one a dynamic layer."""
        if not self.config.has_price:
            return {}
        prices = self.state()
        return {"width_price": prices if self.config.is_layerwise else prices[0]}

    def end_step(self, means: Sequence[Tensor | None]) -> None:
        """Moves the prices. means: of each layer, the mean fraction over the whole batch; None where there is none."""
        dynamic = torch.stack([mean for mean in means if mean is not None]).double()
        self.prices = self.config.next_price(self._averages @ dynamic, self.prices)


class NestedPasses:
    """Nested training at work on one model."""

    def __init__(self, config: NestedConfig, model: ModelConfig):
        self._config = config
        self._fractions = forced_fractions(dynamic_layers(model), config.n_widths)

    def draw(self) -> list[float | None]:
        """The widths of one step, None for what tokens choose; draws from torch's generator."""
        config, fractions = self._config, self._fractions
        between = fractions[config.sandwich : -1]
        drawn = between[int(torch.randint(len(between), ()))]
        return [None] * config.chosen + [1.0, drawn] + fractions[:1] * config.sandwich
