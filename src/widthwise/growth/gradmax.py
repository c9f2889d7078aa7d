"""New hidden units that begin with the largest gradient which weights of their size can have.

Of the two factors of a new unit of a gated feed-forward, its row of w_up and its column of w_down, one starts at 0. The
gradient of that one is M or its transpose times the other, where M, the sum over tokens of the activated gate times the
gradient of the output times the input, does not depend on either. So it is largest along the first singular vector of
M. The gate is drawn as usual. Each unit is orthogonal to those before it, as far as the width allows, or all would be
alike. Source: GradMax, Evci et al. 2022, arXiv:2201.05125, which has no gates, so that one M serves all units.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from torch.utils.hooks import RemovableHandle

from widthwise.config_io import UserError
from widthwise.growth.certify.measuring import decoder_of
from widthwise.growth.maps.axis_map import AxisMap
from widthwise.growth.plan.fresh import AsStarted
from widthwise.growth.plan.model_plan import GrowthPlan
from widthwise.growth.plan.tensor_plan import TensorPlan
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.ffn.glu_module import GLU
from widthwise.model.ffn.swiglu_module import SwiGLU

N_ITERATIONS = 30
"""Iterations of the power method. After so many the gradient is as large as along the singular vector to within a
percent or so, even where the next singular value is near."""
EXHAUSTED = 1e-6
"""Singular values below this part of the largest are those of directions that others have taken."""
MAX_TOKENS = 4096
"""Tokens of a batch that are looked at; at least one sequence."""


def with_largest_gradients(plan: GrowthPlan, old: Mapping[str, Tensor], seed: int, tokens: Tensor) -> GrowthPlan:
    """The plan with chosen weights of new units in place of drawn ones. They keep the size that they were drawn with.

    old: the old model's weights; seed: that of `GrowthPlan.weights`; tokens: (B, T + 1), whose loss has the gradient.
    All is computed on the CPU in fp32, so that the same run finds the same weights again. The caller's random state is
    not touched. Raises UserError as `new_units` does.
    """
    units = new_units(plan)
    weights = dict(plan.weights(old, seed))
    tokens = tokens[: max(1, MAX_TOKENS // tokens.shape[1])].cpu()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of random widths
        model = decoder_of(plan.new, weights, torch.float32)
        with _watched(model, [each.module for each in units]) as seen:
            model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
    tensors = {each.parameter: each.planned(weights[each.parameter], seen[each.module]) for each in units}
    return replace(plan, tensors=plan.tensors | tensors)


def new_units(plan: GrowthPlan) -> "list[NewUnits]":
    """Those that can be chosen, by feed-forward. Raises UserError if there are none."""
    parts = [name for name, part in blueprint(plan.new).named_modules() if isinstance(part, SwiGLU)]
    units = [found for name in parts if (found := _units_of(plan, name)) is not None]
    if not units:
        raise UserError(
            "new_weights: got gradmax; it chooses new hidden units of swiglu feed-forwards, of blocks and of shared "
            "experts, and this growth adds none"
        )
    return units


@dataclass
class _Seen:
    """What passes through a SwiGLU on its way forth and back; several calls, if blocks share their weights."""

    inputs: list[Tensor] = field(default_factory=list)
    gates: list[Tensor] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """Call -> gradient of what w_down gave in it; the last call comes back first."""

    activation: Callable[[Tensor], Tensor] = silu
    """The function that the gate goes through."""

    def watch(self, part: SwiGLU) -> list[RemovableHandle]:
        if isinstance(part, GLU):
            self.activation = part.activation

        def up(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            self.inputs.append(inputs[0])

        def gate(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            self.gates.append(output)

        def down(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            call = len(self.inputs) - 1
            output.register_hook(lambda gradient: self.gradients.__setitem__(call, gradient))

        return [
            part.w_up.register_forward_hook(up),
            part.w_gate.register_forward_hook(gate),
            part.w_down.register_forward_hook(down),
        ]

    def tokens(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (N, d_model), activated gates (N, d_ff) and gradients (N, d_out) of all tokens, in float64."""
        gradients = [self.gradients[call] for call in range(len(self.inputs))]
        inputs, gates, back = (
            torch.cat([_flat(each) for each in part]) for part in (self.inputs, self.gates, gradients)
        )
        return inputs, self.activation(gates), back


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().double().flatten(0, -2)


@contextmanager
def _watched(model: Decoder, names: Iterable[str]) -> Iterator[dict[str, _Seen]]:
    """By name of a SwiGLU, what passes through it in the block."""
    seen, handles = {name: _Seen() for name in names}, []
    for name, found in seen.items():
        part = model.get_submodule(name)
        assert isinstance(part, SwiGLU)
        handles += found.watch(part)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class NewUnits:
    """The free factor of the new units of a SwiGLU."""

    module: str
    plan: TensorPlan
    """The plan of the matrix that holds the factor."""
    are_rows: bool
    """Whether the factor is the rows of w_up, rather than the columns of w_down."""
    places: list[int]
    """Which hidden units they are, counted in the larger model."""

    @property
    def parameter(self) -> str:
        return f"{self.module}.{'w_up' if self.are_rows else 'w_down'}.weight"

    def planned(self, drawn: Tensor, seen: _Seen) -> TensorPlan:
        """The plan of the matrix with chosen weights of new units."""
        values = self._chosen(drawn, seen)

        def start(tensor: Tensor, generator: torch.Generator) -> None:
            tensor.copy_(values)

        return replace(self.plan, fresh=AsStarted(start))

    def _chosen(self, drawn: Tensor, seen: _Seen) -> Tensor:
        inputs, gates, gradients = seen.tokens()
        own, other = (inputs, gradients) if self.are_rows else (gradients, inputs)
        is_open = _is_open(self.plan.maps[1 if self.are_rows else 0])
        own, largest, nothing = own * is_open, 0.0, own.new_empty(0, own.shape[1])
        matrix, taken = drawn.detach().clone(), nothing
        units = matrix if self.are_rows else matrix.T
        for place in self.places:
            gradient = (gates[:, place, None] * other).T @ own
            start = units[place].double() * is_open
            vector, value = first_singular_vector(gradient, start, taken)
            if value <= EXHAUSTED * largest:  # no direction is left that would have a gradient
                taken = nothing
                vector, value = first_singular_vector(gradient, start, taken)
            if value > 0.0:  # else as drawn
                largest, taken = max(largest, value), torch.cat((taken, vector[None]))
                units[place] = (vector * start.norm()).to(matrix.dtype)
        return matrix


def first_singular_vector(matrix: Tensor, start: Tensor, taken: Tensor) -> tuple[Tensor, float]:
    """The first right singular vector of a matrix (m, n), and its singular value, orthogonal to those that are taken.

    start: (n,), where the power method begins; taken: (k, n), orthonormal. The vector has length 1; it is meaningless
    where the value is 0.
    """

    def left(vector: Tensor) -> Tensor:
        return vector - taken.T @ (taken @ vector)

    vector = left(start)
    length = vector.norm()
    for _ in range(N_ITERATIONS):
        vector = left(matrix.T @ (matrix @ vector))
        length = vector.norm()
        vector = vector / length.clamp(min=torch.finfo(vector.dtype).tiny)
    return vector, float(length.sqrt())


def _units_of(plan: GrowthPlan, module: str) -> NewUnits | None:
    """Those of a module of which one factor is 0 and the other drawn; None where there are none."""
    up, down = (plan.tensors.get(f"{module}.{name}.weight") for name in ("w_up", "w_down"))
    if not (isinstance(up, TensorPlan) and isinstance(down, TensorPlan)):
        return None
    rows, columns = up.maps[0], down.maps[1]
    for are_rows, factor, chosen in (
        (True, up, rows.is_free & columns.is_zero),
        (False, down, columns.is_free & rows.is_zero),
    ):
        if chosen.any():
            return NewUnits(module, factor, are_rows, torch.nonzero(chosen)[:, 0].tolist())
    return None


def _is_open(coordinates: AxisMap) -> Tensor:
    """bool: where the weights of new units may be chosen, along the stream."""
    is_averaged = (coordinates.index < 0) & (coordinates.average_over is not None)
    return ~(coordinates.is_zero | is_averaged)
