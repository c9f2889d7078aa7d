"""The AdamW or Muon state of a grown or baked model, from the state of the old one.

For old entries it is exact: multiplying an entry by c divides its gradient by c, and n equal copies of an entry share
its gradient. What new entries start with is a choice (`Reset`).
"""

from collections.abc import Iterator, Mapping

from torch import Tensor

from widthwise.growth.choices import Reset
from widthwise.growth.plan import GrowthPlan
from widthwise.growth.tensor_plan import Split, TensorPlan
from widthwise.model.decoder import blueprint
from widthwise.model.mup import grouped_parameters

State = dict[str, dict[str, Tensor]]
"""By parameter: exp_avg, exp_avg_sq and step for AdamW, or momentum_buffer for Muon."""


def grown_states(
    plan: GrowthPlan, state: Mapping[str, Mapping[str, Tensor]], reset: Reset = "none"
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The optimizer state of the new model, one parameter at a time, with its name.

    Moments of old entries scale as their gradients do, and `step` is kept.

    reset, what new entries start with:
    - `none`: first moments and momentum 0; second moments at the mean of the old ones in the same tensor.
    - `new`: second moments 0 as well. Adam's bias correction follows `step` and does not make up for that: with betas
      (0.9, 0.999) a new entry first moves at 3.2 times the learning rate, then at up to 6.6 times; with (0.9, 0.95) at
      1.1 times at most. The rate should warm up again.
    - `all`: no state for any parameter, as at the start of a run.

    Tensors without an old entry get no state, nor do matrices that move from Muon to AdamW, such as those of a
    feed-forward that became experts; the optimizer starts them at step 0.
    """
    if reset == "all":
        return
    groups = grouped_parameters(blueprint(plan.new))
    for_muon = {name for group in groups if group.are_hidden_matrices for name in group.names}
    for name, tensor in plan.tensors.items():
        if tensor.source in state and not tensor.is_alien:
            old = state[tensor.source]
            if "momentum_buffer" not in old or name in for_muon:
                yield name, _carried(tensor, old, keeps_size=reset == "none")


def _carried(plan: TensorPlan | Split, state: Mapping[str, Tensor], keeps_size: bool) -> dict[str, Tensor]:
    first, second = _moment_factors(plan)
    grown = {}
    for part, old in state.items():
        if part == "exp_avg_sq":
            mean = float(old.double().mean()) * second if keeps_size else 0.0
            grown[part] = plan.carry(old, second, mean)
        elif part in ("exp_avg", "momentum_buffer"):
            grown[part] = plan.carry(old, first, 0.0)
        else:
            assert part == "step", part
            grown[part] = old.clone()
    return grown


def _moment_factors(plan: TensorPlan | Split) -> tuple[float, float]:
    """The factors of first moments (and momentum), and of second moments.

    Copies whose parts of a gradient differ are assumed to have independent ones, so that their squares add up to the
    old square; equal parts are each 1 / n_copies of the old gradient.
    """
    first = 1 / (plan.scale * plan.n_copies)
    return first, first**2 * (plan.n_copies if plan.copies_differ else 1)


def grown_factors(plan: GrowthPlan, factors: Mapping[str, float]) -> dict[str, float]:
    """By how much each parameter of the new model has been multiplied, for `optimizer.scaled`.

    factors: the same for the old model. Factors of 1 are left out.
    """
    found = {name: tensor.scale * factors.get(tensor.source, 1.0) for name, tensor in plan.tensors.items()}
    return {name: factor for name, factor in found.items() if factor != 1.0}
