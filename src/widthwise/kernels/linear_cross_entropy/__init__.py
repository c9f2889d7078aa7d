"""Head and cross-entropy, without holding all logits at once."""

from torch import Tensor

from widthwise.kernels.dispatch import reference_wanted
from widthwise.kernels.linear_cross_entropy import fused, reference
from widthwise.kernels.linear_cross_entropy.reference import Teacher as Teacher


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    multiplier: float,
    z_coefficient: float = 0.0,
    teacher: Teacher | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.linear_cross_entropy`."""
    form = reference if reference_wanted() else fused
    return form.linear_cross_entropy(hidden, weight, targets, multiplier, z_coefficient, teacher)
