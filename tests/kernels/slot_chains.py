"""Sites of a stream of slots one after the other, by the hand-written forms and by the reference."""

from collections.abc import Sequence
from typing import Any

import torch
from comparing import random
from torch import Tensor

from widthwise.kernels.hyper_connections import read_slots, reference_write_slots, write_slots

MULTIPLIER = 0.7
Tables = Sequence[Tensor | None]


class Chain:
    """Sites whose sublayers are the sine of a matrix product; the last site is only read if it has no matrix."""

    def __init__(self, state: Tensor, forms: Sequence[Any], tables: Sequence[Tables], mixes: Sequence[Tensor]):
        self.state = state
        self.forms = forms
        self.tables = tables
        self.mixes = mixes
        tensors = [state, *(table for site in tables for table in site if table is not None), *mixes]
        self.inputs = [tensor.requires_grad_() for tensor in tensors]

    def _run(self, is_fused: bool, state_every: int = 1) -> Tensor:
        state = self.state
        for i, (form, tables) in enumerate(zip(self.forms, self.tables, strict=True)):
            x, kept = read_slots(state, form, tables, state_every) if is_fused else form.reference(state, *tables)
            if i == len(self.mixes):
                return x
            update = torch.sin(x.to(self.mixes[i].dtype) @ self.mixes[i])
            if is_fused:
                state = write_slots(kept, update, MULTIPLIER)
            else:
                state = reference_write_slots(state, update, kept, form.n_read, MULTIPLIER)
        return state

    def fused(self, state_every: int = 1) -> Tensor:
        return self._run(True, state_every)

    def reference(self) -> Tensor:
        return self._run(False)

    def gradients(self, out: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(out, self.inputs, random(*out.shape, seed=99, dtype=out.dtype)))

    def assert_same(self, ours: Tensor, truth: Tensor, tolerance: float) -> None:
        """Values and gradients."""
        results = [ours, *self.gradients(ours)], [truth, *self.gradients(truth)]
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
