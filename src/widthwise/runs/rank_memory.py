"""Memory and traffic of one rank in a training step, computed from shapes.

Memory is a table: a row for each moment of a step, a column for each group of tensors. The peak is the row with the
largest sum.

| moment   | gradients         | casts to bf16  | activations                 | buffers                | teacher     |
|----------|-------------------|----------------|-----------------------------|------------------------|-------------|
| teacher  |                   |                |                             | packing                | own pass    |
| loss     |                   | all            | kept by all layers          | loss or layer; packing | its outputs |
| layers.i | of layers i to n  | of layers to i | kept by layers to i, and of | layer; packing         | differences |
|          | (and of the head) |                | the larger sublayer of i    |                        |             |
| update   | all               |                |                             | layer or old weights   |             |

In every row are the parameters and the optimizer state, both fp32, the root where processes share the model, and the
weights of the teacher. A step of several passes has all gradients in every row.

A layer is gathered for its forward and again for its backward pass, in fp32; the next one is gathered meanwhile. The
root, which is the rest of the model, stays gathered from the forward to the end of the backward pass. Gradients stay
whole until the last pass of a step, which reduces them unit by unit: each whole one makes room for its shard. A process
that is alone gathers and reduces nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

from widthwise.computing import ActivationCheckpointing
from widthwise.config_io import UserError
from widthwise.data.loader import AS_ONE_DOCUMENT, PackingConfig
from widthwise.kernels.linear_cross_entropy import rows_per_chunk
from widthwise.model.axes import Linear
from widthwise.model.cost import Cost
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.recompute import RECOMPUTE, activations_of
from widthwise.model.shards import block_entries, sharded_units
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.optimizers import hidden_matrices
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.cost import RankMemory, StepTraffic
from widthwise.training.devices import DEVICES_PER_NODE

FP32_BYTES, BF16_BYTES = 4, 2
LOGITS_OF_TEACHER = 6
"""Tensors of a chunk's logits, in fp32, that the loss holds at a time for a teacher: its logits, the logarithms of both
predictions, its probabilities, their product with the difference, and the gradient of the chunk before."""


@dataclass(frozen=True)
class Layout:
    """Division of a step among devices, one rank on each; neighbours share a replica."""

    n_devices: int
    n_shards: int
    """Devices that share one copy of the model."""
    batch_size: int
    """Sequences of a step that a device has."""
    micro_batch_size: int
    """Sequences of a forward pass."""
    n_passes_each: int
    """Passes over every sequence."""

    @classmethod
    def of(cls, train: TrainConfig, n_devices: int) -> "Layout":
        """Raises UserError where one number does not divide the other."""
        if n_devices < 1:
            raise UserError(f"--devices: got {n_devices}; must be at least 1")
        batch_size = train.rows_of_process(n_devices)
        micro_batch_size = min(train.sequences_per_pass, batch_size)
        return cls(n_devices, train.shards, batch_size, micro_batch_size, train.n_passes)

    @property
    def is_alone(self) -> bool:
        """True for a single process, which trains the plain model."""
        return self.n_devices == 1

    @property
    def n_replicas(self) -> int:
        """Copies of the model."""
        return self.n_devices // self.n_shards

    @property
    def n_passes(self) -> int:
        """Forward and backward passes of a device in a step."""
        return self.batch_size // self.micro_batch_size * self.n_passes_each

    @property
    def n_shards_in_node(self) -> int:
        """Devices of one node that share a copy."""
        return self.n_shards if self.n_devices <= DEVICES_PER_NODE else math.gcd(self.n_shards, DEVICES_PER_NODE)

    @property
    def n_replicas_in_node(self) -> int:
        """Devices of one node that hold the same shard of different copies."""
        return self.n_replicas if self.n_devices <= DEVICES_PER_NODE else DEVICES_PER_NODE // self.n_shards_in_node


class ShardedModel:
    """A model without memory, with its optimizer, as processes divide it."""

    def __init__(
        self,
        model: Decoder,
        optimizer: Optimizer,
        device_type: str = "cuda",
        packing: PackingConfig = AS_ONE_DOCUMENT,
        freezes_entries: bool = False,
    ):
        """device_type: cuda or cpu; the loss works in smaller chunks on a CPU. packing: how rows are read, as the data
        section of a recipe says. freezes_entries: whether some steps freeze the old entries of a growth.
        """
        self.model = model
        self._layers = list(sharded_units(model.named_layers(), model))
        self._root = self._layers.pop()
        self._packing = packing
        self._freezes_entries = freezes_entries
        self._rows_per_chunk = rows_per_chunk(device_type, model.head.weight.shape[0])
        self._hidden_matrices = hidden_matrices(optimizer, model)
        """Parameters for which the optimizer keeps one number for each entry, not two."""
        matrices = {module.weight for module in model.modules() if isinstance(module, Linear)} - {model.head.weight}
        units = (*self._layers, self._root)
        self._n_cast = [sum(each.numel() for each in matrices.intersection(unit.parameters)) for unit in units]
        """Entries of each layer, and last of the root, that bf16 copies."""

    @classmethod
    def of(cls, recipe: Recipe, device_type: str = "cuda") -> Self:
        """The model with which the run of a recipe ends; the largest, if it grows."""
        freezes_entries = recipe.freezes(recipe.phases[-1])
        return cls(blueprint(recipe.final_model), recipe.optimizer, device_type, recipe.data, freezes_entries)

    @property
    def n_params(self) -> int:
        return sum(unit.n_params for unit in (*self._layers, self._root))

    def block_entries(self, n_shards: int) -> int:
        """Entries that each process holds, padding included."""
        return sum(unit.block_entries(n_shards) for unit in (*self._layers, self._root))

    def memory(self, train: TrainConfig, seq_len: int, layout: Layout) -> RankMemory:
        """Return the row with the largest sum, of the process that holds the most."""
        return max(self.memory_table(train, seq_len, layout), key=lambda row: row.total_bytes)

    def memory_table(self, train: TrainConfig, seq_len: int, layout: Layout) -> Iterator[RankMemory]:
        """Yield a row for each moment of a step, in order; see the top of this file."""
        config, n_shards = self.model.config, layout.n_shards
        n_entries, head = self.block_entries(n_shards), self.model.head.weight.numel()
        n_tokens, n_bytes = layout.micro_batch_size * seq_len, number_bytes(train)
        marks = n_entries if self._freezes_entries else 0  # a byte for each entry
        teacher = self._teacher_bytes(train, n_tokens)
        layer = root = 0
        if not layout.is_alone:
            layer = self._layer_bytes(n_shards)
            root = FP32_BYTES * self._root.gathered_entries(n_shards)

        def row(moment: str, n_gradients: int, n_cast: int, kept: Cost, buffers: int, teacher: int) -> RankMemory:
            return RankMemory(
                moment=moment,
                parameter_bytes=FP32_BYTES * n_entries,
                gradient_bytes=FP32_BYTES * (self.n_params if layout.n_passes > 1 else n_gradients),
                optimizer_bytes=FP32_BYTES * (2 * n_entries - self._hidden_entries(n_shards)),
                root_bytes=root,
                cast_weight_bytes=0 if train.precision == "fp32" else BF16_BYTES * n_cast,
                activation_bytes=round(n_tokens * kept.activation_bytes(n_bytes)),
                buffer_bytes=buffers + marks,
                teacher_bytes=teacher,
            )

        packing = self._packing_bytes(layout.micro_batch_size, seq_len, n_bytes)
        if teacher:
            yield row("teacher", 0, 0, Cost(), packing, teacher["own pass"])
        all_kept = RECOMPUTE[train.activation_checkpointing].kept(config)
        loss = max(self._loss_bytes(n_tokens, train), layer)
        yield row("loss", 0, sum(self._n_cast), all_kept, loss + packing, teacher["loss"])
        n_gradients = head if layout.is_alone else 0  # sharded, the root's gradients count as buffers until the end
        for i, kept in reversed(list(enumerate(self._kept_at_layers(train.activation_checkpointing)))):
            n_gradients += self._layers[i].block_entries(n_shards)
            n_cast = sum(self._n_cast[: i + 1])
            yield row(self._layers[i].name, n_gradients, n_cast, kept, layer + packing, teacher["layers"])
        tied = FP32_BYTES * head if config.tie_embeddings else 0  # its two gradients, before they are added
        old_weights = 0
        if self._freezes_entries:  # all of them, and of one tensor the moved entries twice
            largest = max(block_entries(parameter.shape, n_shards) for parameter in self.model.parameters())
            old_weights = FP32_BYTES * (n_entries + 2 * largest)
        yield row("update", n_entries, 0, Cost(), max(tied, layer, old_weights), teacher["update"])

    def _teacher_bytes(self, train: TrainConfig, n_tokens: int) -> Counter[str]:
        """Return the bytes of a teacher by moment; empty without one. Its weights are divided as the student's are.

        Of each state that the student learns, the loss makes the difference in fp32, and the backward pass keeps it.
        """
        if train.distill is None or train.distill.sizes is None:
            return Counter()
        sizes, n_bytes = train.distill.sizes, number_bytes(train)
        n_states = {"none": 0, "last": 1, "all": self.model.config.n_layers}[train.distill.layers]
        n_coordinates = n_tokens * n_states * self.model.config.n_coordinates
        states, differences = n_bytes * n_coordinates, FP32_BYTES * n_coordinates
        n_logits = min(self._rows_per_chunk, n_tokens) * self.model.head.weight.shape[0]
        logits = LOGITS_OF_TEACHER * FP32_BYTES * n_logits + n_bytes * n_tokens * sizes.d_model
        weights, layers = n_bytes * -(-sizes.params // train.shards), 0
        if train.shards > 1:
            weights += n_bytes * sizes.root_params
            layers = 2 * n_bytes * sizes.layer_params  # two are gathered
        return Counter(
            {
                "own pass": weights + layers + states + n_bytes * n_tokens * sizes.pass_elements,
                "loss": weights + states + differences + logits,
                "layers": weights + differences,
                "update": weights,
            }
        )

    def _kept_at_layers(self, kind: ActivationCheckpointing) -> list[Cost]:
        """Return the tensors alive while the backward pass is at each layer and MTP head, per token.

        These are the activations that it and all before it have kept from the forward pass, those that it computes
        again, and the gradients of its larger sublayer's activations. In the order of the forward pass.
        """
        config, recompute = self.model.config, RECOMPUTE[kind]
        layers = config.layer_costs()
        if config.mtp is not None:
            layers += [config.mtp.layer.costs(config.residual, config.d_model)] * config.mtp.n_depths
        sublayers = [max(costs["attention"], costs["ffn"], key=Cost.activation_bytes) for costs in layers]
        kept = list(accumulate(recompute.kept_by_layer(config), initial=config.end_costs()["embedding"]))[1:]
        return [
            before + (again + activations_of(sublayer))
            for before, again, sublayer in zip(kept, recompute.recomputed(config), sublayers, strict=False)
        ]

    def _hidden_entries(self, n_shards: int) -> int:
        return sum(block_entries(matrix.shape, n_shards) for matrix in self._hidden_matrices)

    def weight_traffic_bytes(self, layout: Layout) -> int:
        """Least bytes that a step moves between a device and its memory, for weights alone.

        A pass reads them forward and backward and adds to the gradients; the update reads weights, gradients and the
        optimizer's state and writes all but gradients.
        """
        held = self.block_entries(layout.n_shards)
        n_without = self._hidden_entries(layout.n_shards)
        return FP32_BYTES * (layout.n_passes * 4 * self.n_params + 7 * held - 2 * n_without)

    def traffic(self, layout: Layout, train: TrainConfig | None = None) -> StepTraffic:
        """Bytes that a process sends in a step. train: may name a teacher, of which every pass gathers the layers.

        In a ring of n, gathering, scattering or broadcasting B bytes sends (n - 1) / n of them from each process, and
        reducing B bytes for all sends twice as much.
        """
        n, n_replicas = layout.n_shards, layout.n_replicas
        held, root = FP32_BYTES * self.block_entries(n), FP32_BYTES * self._root.block_entries(n)
        sizes = None if train is None or train.distill is None else train.distill.sizes
        taught = 0 if train is None or sizes is None else number_bytes(train) * (sizes.params - sizes.root_params)
        updates = FP32_BYTES * self._hidden_entries(n)
        whole_updates = FP32_BYTES * sum(matrix.numel() for matrix in self._hidden_matrices)
        return StepTraffic(
            all_gather_bytes=(n - 1) * (layout.n_passes * (2 * held - root + -(-taught // n)) + updates),
            reduce_scatter_bytes=(n - 1) * held,
            all_reduce_bytes=2 * (n_replicas - 1) * held // n_replicas,
            broadcast_bytes=(n - 1) * whole_updates // n,
        )

    def _loss_bytes(self, n_tokens: int, train: TrainConfig) -> int:
        """The loss of each head: the gradient of its matrix, kept for the backward pass, and chunks of logits.

        A chunk holds logits and probabilities in fp32 and, in bf16, the gradient. While the logits of the next are
        computed, all but its own logits is still there; before that its part of the matrix's gradient is made, and
        added. In bf16 the head's matrix is copied. When the backward pass begins, the chunks are gone and one gradient
        of the matrix is there twice.
        """
        n_vocab, n_weights = self.model.head.weight.shape[0], self.model.head.weight.numel()
        copy_bytes = 0 if train.precision == "fp32" else BF16_BYTES
        n_rows = self._rows_per_chunk
        n_logits = min(n_rows, n_tokens) * n_vocab
        chunk = (2 * FP32_BYTES + copy_bytes) * n_logits
        next_chunk = (FP32_BYTES + copy_bytes) * n_logits if n_rows < n_tokens else 0
        chunks = copy_bytes * n_weights + chunk + max(next_chunk, (copy_bytes or FP32_BYTES) * n_weights)
        gradients = (1 + len(self.model.depths)) * FP32_BYTES * n_weights
        return gradients + max(chunks, FP32_BYTES * n_weights)

    def _packing_bytes(self, n_rows: int, seq_len: int, bytes_per_element: int) -> int:
        """The mask that keeps documents apart, and rotary tables for every row where otherwise all share one."""
        config = self.model.config
        layers = config.layers if config.mtp is None else (*config.layers, config.mtp.layer)
        ropes = {layer.attention.rope for layer in layers}
        n_factors = sum(2 * rope.head_dim for rope in ropes if rope is not None)
        mask_bytes = bytes_per_element * n_rows * seq_len**2 if self._packing.mask_documents else 0
        return mask_bytes + (FP32_BYTES * n_rows * seq_len * n_factors if self._packing.reset_positions else 0)

    def _layer_bytes(self, n_shards: int) -> int:
        """In the backward pass: two layers gathered, the gradients of one and their copy on the way, and the root's."""
        gathered = [layer.gathered_entries(n_shards) for layer in self._layers]
        neighbours = max(map(sum, pairwise([0, *gathered])))
        return FP32_BYTES * (neighbours + 2 * max(gathered) + self._root.n_params)


def number_bytes(train: TrainConfig) -> int:
    """Bytes of a number in the type in which a run multiplies."""
    return FP32_BYTES if train.precision == "fp32" else BF16_BYTES


def memory_on_cpu(recipe: Recipe) -> RankMemory:
    """Bytes that a recipe's last model needs in one process on a CPU, besides the libraries."""
    sharded = ShardedModel.of(recipe, "cpu")
    return sharded.memory(recipe.train, recipe.seq_len, Layout.of(recipe.train, 1))
