"""Held-out windows that a model with dynamic widths reads again and again, at widths of its own or at given ones."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from widthwise.data.held_out import HeldOut
from widthwise.kernels.precision import autocast
from widthwise.model.context import PassContext
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_modules import dynamic_modules, width_fractions
from widthwise.model.eval_mode import evaluating
from widthwise.model.ffn.width_choice_module import WidthChoosing


class Sample:
    """Windows, and a model in evaluation mode that reads them without gradients, as a validation would."""

    def __init__(self, model: Decoder, held_out: HeldOut, windows: Tensor):
        """windows: integers (n_windows, seq_len + 1)."""
        self.model, self.windows, self._held_out = model, windows, held_out

    def losses_and_widths(self, width_fraction: float | None) -> np.ndarray:
        """(1 + n_dynamic_layers, n_windows, seq_len): the losses, then the width fractions of each dynamic layer.

        width_fraction: what every layer uses instead of choosing.
        """

        def found(batch: Tensor, rows: slice) -> Tensor:
            loss = self.model.loss(batch[:, :-1], batch[:, 1:], 0.0, width_fraction, *self.told(batch))
            return torch.stack([loss.losses, *width_fractions(loss.choices)])

        return self.of_every_batch(found)

    def losses_at(self, fractions: np.ndarray) -> np.ndarray:
        """(n_windows, seq_len): the losses where every token has widths of its own, (n_dynamic_layers, n_windows,
        seq_len), instead of choosing."""

        def found(batch: Tensor, rows: slice) -> Tensor:
            with forced(self.model, fractions[:, rows]):
                return self.model.loss(batch[:, :-1], batch[:, 1:], 0.0, None, *self.told(batch)).losses[None]

        return self.of_every_batch(found)[0]

    def told(self, batch: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The documents and the positions of the tokens of a batch, where a validation tells them."""
        tokens, boundaries = batch[:, :-1], self._held_out.boundaries
        return boundaries.documents(tokens), boundaries.positions(tokens)

    def of_every_batch(self, find: Callable[[Tensor, slice], Tensor]) -> np.ndarray:
        """The results of `find` side by side, (n, n_windows, ...), in float64.

        find: windows (B, seq_len + 1) and their place among all -> (n, B, ...).
        """
        found, size = [], self._held_out.batch_size
        with evaluating(self.model) as device:
            for first in range(0, len(self.windows), size):
                rows = slice(first, min(first + size, len(self.windows)))
                with autocast(device, self._held_out.precision):
                    found.append(find(self.windows[rows].to(device), rows).double().cpu())
        return torch.cat(found, dim=1).numpy()


@contextmanager
def forced(model: Decoder, fractions: np.ndarray) -> Iterator[None]:
    """Tokens have these widths in passes of the model: (n_dynamic_layers, B, T), a layer's own for each token."""

    def instead(given: Tensor) -> Callable[[WidthChoosing, tuple[Tensor, PassContext]], tuple[Tensor, PassContext]]:
        return lambda module, inputs: (inputs[0], replace(inputs[1], width_fraction=given))

    device = model.embedding.weight.device
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, own in zip(dynamic_modules(model).values(), fractions):
            given = torch.from_numpy(np.ascontiguousarray(own, dtype=np.float32)).to(device)
            stack.enter_context(module.register_forward_pre_hook(instead(given)))
        yield


def windows_of(held_out: HeldOut, n_tokens: int) -> Tensor:
    """Whole windows from the front of the text, of at most so many tokens, but at least one."""
    return torch.cat(list(held_out.batches(max(n_tokens, held_out.seq_len))))


def shuffled(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """(n, ...): each of the n with its entries in random order."""
    random = np.random.default_rng(seed)
    return np.stack([random.permutation(each.ravel()).reshape(each.shape) for each in values])


def whole_layers(means: Sequence[float] | np.ndarray, like: np.ndarray) -> np.ndarray:
    """(n, ...): every entry of the i-th is means[i]."""
    return np.broadcast_to(np.asarray(means).reshape(-1, *[1] * (like.ndim - 1)), like.shape)
