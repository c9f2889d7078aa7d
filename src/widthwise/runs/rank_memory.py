"""What one of several processes holds and sends in a training step, computed from shapes.

Weights, gradients and optimizer state are fp32, gathered and reduced as they are. A layer is gathered for its forward
and again for its backward pass; the next one is gathered meanwhile. The rest of the model, the root, stays gathered
from the forward to the end of the backward pass. Gradients stay whole until the last pass of a step, which reduces them
unit by unit: each whole one makes room for its shard. A process that is alone gathers and reduces nothing.
"""

from collections.abc import Sequence
from itertools import pairwise

from widthwise.kernels.linear_cross_entropy.fused import LOGITS_PER_CHUNK
from widthwise.model.axes import Linear
from widthwise.model.decoder import Decoder
from widthwise.model.recompute import RECOMPUTE
from widthwise.model.sharded_units import Unit, block_entries
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.recipe import TrainConfig
from widthwise.records.dry_run import RankMemory, StepTraffic
from widthwise.runs.layout import Layout

FP32_BYTES, BF16_BYTES = 4, 2


class ShardedModel:
    """A model without memory, with its optimizer, as processes divide it."""

    def __init__(self, model: Decoder, units: Sequence[Unit], optimizer: Optimizer):
        """units: of the model, the root last."""
        self._model, self._units, self._root = model, units, units[-1]
        self._activations = {kind: recompute.activations(model.config) for kind, recompute in RECOMPUTE.items()}
        self._hidden_matrices = optimizer.hidden_matrices(model)
        matrices = {module.weight for module in model.modules() if isinstance(module, Linear)}
        self._n_cast = sum(matrix.numel() for matrix in matrices - {model.head.weight})

    @property
    def n_params(self) -> int:
        return sum(unit.n_params for unit in self._units)

    def block_entries(self, n_shards: int) -> int:
        """Entries that each process holds, padding included."""
        return sum(unit.block_entries(n_shards) for unit in self._units)

    def memory(self, train: TrainConfig, seq_len: int, layout: Layout) -> RankMemory:
        """Bytes of the process that holds the most."""
        n_shards, is_bf16 = layout.n_shards, train.precision == "bf16"
        n_held = self.block_entries(n_shards)
        n_without = sum(block_entries(matrix.shape, n_shards) for matrix in self._hidden_matrices)
        n_tokens = layout.micro_batch_size * seq_len
        kept = self._activations[train.activation_checkpointing]
        buffers = [self._loss_bytes(n_tokens, is_bf16)]
        if not layout.is_alone:
            buffers.append(self._layer_bytes(n_shards))
        return RankMemory(
            parameter_bytes=FP32_BYTES * n_held,
            gradient_bytes=FP32_BYTES * (self.n_params if layout.n_passes > 1 else n_held),
            optimizer_bytes=FP32_BYTES * (2 * n_held - n_without),
            root_bytes=0 if layout.is_alone else FP32_BYTES * self._root.gathered_entries(n_shards),
            cast_weight_bytes=BF16_BYTES * self._n_cast if is_bf16 else 0,
            activation_bytes=round(n_tokens * kept.activation_bytes(BF16_BYTES if is_bf16 else FP32_BYTES)),
            buffer_bytes=max(buffers),
        )

    def traffic(self, layout: Layout) -> StepTraffic:
        """Bytes that a process sends in a step.

        In a ring of n, gathering, scattering or broadcasting B bytes sends (n - 1) / n of them from each process, and
        reducing B bytes for all sends twice as much.
        """
        n, n_replicas = layout.n_shards, layout.n_replicas
        held, root = FP32_BYTES * self.block_entries(n), FP32_BYTES * self._root.block_entries(n)
        updates = FP32_BYTES * sum(block_entries(matrix.shape, n) for matrix in self._hidden_matrices)
        whole_updates = FP32_BYTES * sum(matrix.numel() for matrix in self._hidden_matrices)
        return StepTraffic(
            all_gather_bytes=(n - 1) * (layout.n_passes * (2 * held - root) + updates),
            reduce_scatter_bytes=(n - 1) * held,
            all_reduce_bytes=2 * (n_replicas - 1) * held // n_replicas,
            broadcast_bytes=(n - 1) * whole_updates // n,
        )

    def _loss_bytes(self, n_tokens: int, is_bf16: bool) -> int:
        """Of the loss of each head: the gradient of its matrix, kept for the backward pass, and chunks of logits.

        A chunk holds logits and their log-softmax in fp32 and, in bf16, the gradient; while a second chunk is computed,
        the first is still there but for its logits. In bf16 the head's matrix is copied.
        """
        n_vocab, n_weights = self._model.head.weight.shape[0], self._model.head.weight.numel()
        copy_bytes = BF16_BYTES if is_bf16 else 0
        n_rows = max(1, LOGITS_PER_CHUNK["cuda"] // n_vocab)
        logit_bytes = 2 * FP32_BYTES + copy_bytes
        if n_rows < n_tokens:
            logit_bytes += FP32_BYTES + copy_bytes
        gradients = (1 + len(self._model.depths)) * FP32_BYTES * n_weights
        return gradients + copy_bytes * n_weights + logit_bytes * min(n_rows, n_tokens) * n_vocab

    def _layer_bytes(self, n_shards: int) -> int:
        """In the backward pass: two layers gathered, the gradients of one and their copy on the way, and the root's."""
        gathered = [unit.gathered_entries(n_shards) for unit in self._units[:-1]]
        neighbours = max(map(sum, pairwise([0, *gathered])))
        return FP32_BYTES * (neighbours + 2 * max(gathered) + self._root.n_params)
