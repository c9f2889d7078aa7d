"""The state of AdamW or Muon for a grown or baked model, from that of the model before.

What follows from the gradients is exact: where an entry is multiplied by c its gradient is divided by c, and n equal
copies of an entry share its gradient. What new entries start with is a choice.
"""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from widthwise.growth.plan.model_plan import Plan
from widthwise.growth.plan.tensor_plan import Split, TensorPlan
from widthwise.model.decoder import blueprint
from widthwise.model.mup import parameter_groups

State = dict[str, dict[str, Tensor]]
"""By parameter: exp_avg, exp_avg_sq and step of AdamW, or momentum_buffer of Muon."""
Reset = Literal["none", "new", "all"]


def grown_state(plan: Plan, state: Mapping[str, Mapping[str, Tensor]], reset: Reset = "none") -> State:
    """The state of the new model. An optimizer begins at step 0 with tensors that get none: those of which no entry is
    old, and matrices that Muon had and gives to AdamW, as those of a feed-forward that became experts.

    Moments of old entries are divided as their gradients are, and `step` is kept. reset `none`: the first moments and
    the momentum of new entries are 0, their second moments the mean of the old ones of the tensor. With 0 there, as
    with `new`, Adam's bias correction, which follows `step`, would not make up for it: after betas (0.9, 0.999) a new
    entry first moves at 3.2 times the rate and then at up to 6.6 times, with (0.9, 0.95) at most at 1.1 times, so that
    the rate should warm up again. `all`: no state at all, as at the start of a run.
    """
    if reset == "all":
        return {}
    groups = parameter_groups(blueprint(plan.new))
    for_muon = {name for group in groups if group.are_hidden_matrices for name in group.names}
    return {
        name: _carried(tensor, state[tensor.source], keeps_size=reset == "none")
        for name, tensor in plan.tensors.items()
        if tensor.source in state
        and not tensor.is_alien
        and ("momentum_buffer" not in state[tensor.source] or name in for_muon)
    }


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
    """What growth multiplies first moments and momenta by, and second moments.

    Copies that get different parts of a gradient are taken to get independent ones, whose squares add up.
    """
    first = 1 / (plan.scale * plan.n_copies)
    return first, first**2 * (plan.n_copies if plan.copies_differ else 1)


def grown_factors(plan: Plan, factors: Mapping[str, float]) -> dict[str, float]:
    """What the parameters of the new model have been multiplied by, for `optimizer.scaled`.

    factors: those of the old one. Parameters with factor 1 are left out.
    """
    found = {name: tensor.scale * factors.get(tensor.source, 1.0) for name, tensor in plan.tensors.items()}
    return {name: factor for name, factor in found.items() if factor != 1.0}
