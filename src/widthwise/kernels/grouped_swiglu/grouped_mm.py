"""Matrix products over consecutive groups of rows, as one operator.

A wrapper around `torch.nn.functional.grouped_mm`, which requires strides that are multiples of 16 bytes, has no fp64
form, can be traced in bf16 only, and is invisible to torch's FLOP counter.
"""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.flop_counter import register_flop_formula

ALIGNMENT_BYTES = 16


@torch.library.custom_op("widthwise::grouped_mm", mutates_args=())
def grouped_mm(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Group g is rows ends[g - 1] to ends[g] (exclusive). ends: int32 (n_groups,), ascending, the last one n_rows.

    a: (n_rows, k), b: (n_groups, k, n) -> (n_rows, n): each row times the matrix of its group.
    a: (m, n_rows), b: (n_rows, n) -> (n_groups, m, n): one product over the rows of each group, 0 for an empty group.
    """
    if a.dtype == torch.float64:
        return _group_by_group(a, b, ends)
    return torch.nn.functional.grouped_mm(_aligned(a), _aligned(b), offs=ends).contiguous()


@grouped_mm.register_fake
def _(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    n_groups = () if b.dim() == 3 else (len(ends),)
    return a.new_empty(*n_groups, a.shape[0], b.shape[-1])


@register_flop_formula(torch.ops.widthwise.grouped_mm)
def _(a_shape: torch.Size, b_shape: torch.Size, *_: object, **__: object) -> int:
    return 2 * a_shape[0] * a_shape[1] * b_shape[-1]


def _aligned(matrices: Tensor) -> Tensor:
    """The same values, with rows (or columns, if those are contiguous) that start at multiples of 16 bytes."""
    if matrices.stride(-1) != 1:
        return _aligned(matrices.mT).mT
    n_columns, unit = matrices.shape[-1], ALIGNMENT_BYTES // matrices.element_size()
    if matrices.stride(-2) % unit == 0:
        return matrices
    return pad(matrices, (0, unit - n_columns % unit))[..., :n_columns]


def _group_by_group(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """The same products in a loop over the groups."""
    groups = [slice(start, end) for start, end in pairwise([0, *ends.tolist()])]
    if b.dim() == 3:
        return torch.cat([a[rows] @ matrix for rows, matrix in zip(groups, b)])
    return torch.stack([a[:, rows] @ b[rows] for rows in groups])
