"""Memory and traffic of one rank in a training step, computed from shapes.

Memory is a table with a row for each moment of a step and a column for each group of tensors. The peak is the row with
the largest sum.

| moment   | gradients         | casts to bf16  | activations                 | buffers                | teacher    |
|----------|-------------------|----------------|-----------------------------|------------------------|------------|
| teacher  |                   |                |                             | packing                | own pass   |
| loss     |                   | all            | kept by all layers          | loss or layer; packing | its logits |
| layers.i | of layers i to n  | of layers to i | kept by layers to i, and of | layer; packing         |            |
|          | (and of the head) |                | the larger sublayer of i    |                        |            |
| update   | all               |                |                             | layer or old weights   |            |

Every row also has the parameters and the optimizer state, both fp32, the root if processes share the model, and the
weights of the teacher. A step of several passes has all gradients in every row.

A layer is gathered in fp32 for its forward and again for its backward pass, while the next one is prefetched. The
root, which is the rest of the model, stays gathered from the forward to the end of the backward pass. Gradients stay
whole until the last pass of a step, which reduces them unit by unit and replaces each by its shard. A single process
gathers and reduces nothing.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise

from widthwise.computing import ActivationCheckpointing
from widthwise.kernels.linear_cross_entropy import rows_per_chunk
from widthwise.mistakes import UserError
from widthwise.model.axes import Linear
from widthwise.model.cost import Cost
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.recompute import RECOMPUTE, activations_of
from widthwise.model.shards import block_entries, sharded_units
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.cost import Layout, RankMemory, StepTraffic

FP32_BYTES = 4
BF16_BYTES = 2
LOGITS_OF_TEACHER = 6
"""fp32 tensors of the size of a chunk's logits that the loss holds for a teacher: its logits, the logarithms of both
predictions, its probabilities, their product with the difference, and the gradient of the previous chunk."""


def step_layout(train: TrainConfig, n_devices: int) -> Layout:
    """Return the layout of a train section. Raises UserError for numbers that do not divide each other."""
    if n_devices < 1:
        raise UserError(f"--devices: got {n_devices}; must be at least 1")
    batch_size = train.rows_of_process(n_devices)
    micro_batch_size = min(train.sequences_per_pass, batch_size)
    return Layout(
        n_devices=n_devices,
        n_shards=train.shards,
        batch_size=batch_size,
        micro_batch_size=micro_batch_size,
        n_passes=batch_size // micro_batch_size * train.n_passes,
    )


class ShardedModel:
    """The model of a recipe on the meta device, with its optimizer, sharded over processes."""

    def __init__(self, recipe: Recipe, device_type: str = "cuda", model: Decoder | None = None):
        """device_type: cuda or cpu; the loss uses smaller chunks on a CPU. model: default: the last one of the recipe,
        which is the largest if it grows.
        """
        self.recipe = recipe
        model = model or blueprint(recipe.final_model)
        self.model = model
        self._layers = list(sharded_units(model.named_layers(), model))
        self._root = self._layers.pop()
        self._freezes_entries = recipe.freezes(recipe.phases[-1])
        self._rows_per_chunk = rows_per_chunk(device_type, model.head.weight.shape[0])
        self._hidden_matrices = recipe.optimizer.hidden_matrices(model)
        """Parameters whose optimizer state is one number per entry (Muon), not two."""
        matrices = {module.weight for module in model.modules() if isinstance(module, Linear)} - {model.head.weight}
        units = (*self._layers, self._root)
        self.n_params = sum(unit.n_params for unit in units)
        self._n_cast = [sum(weight.numel() for weight in matrices.intersection(unit.parameters)) for unit in units]
        """For each layer, and last for the root, the number of entries that are cast to bf16."""

    def block_entries(self, n_shards: int) -> int:
        """Return the number of entries that each process holds, including padding."""
        return sum(unit.block_entries(n_shards) for unit in (*self._layers, self._root))

    def memory(self, train: TrainConfig, n_devices: int = 1) -> RankMemory:
        """Return the row with the largest sum, for the process that needs the most memory."""
        return max(self._memory_table(train, step_layout(train, n_devices)), key=lambda row: row.total_bytes)

    def _memory_table(self, train: TrainConfig, layout: Layout) -> Iterator[RankMemory]:
        """Yield a row for each moment of a step, in order; see the top of this file."""
        config = self.model.config
        seq_len = self.recipe.seq_len
        n_shards = layout.n_shards
        n_entries = self.block_entries(n_shards)
        head = self.model.head.weight.numel()
        n_tokens = layout.micro_batch_size * seq_len
        n_bytes = number_bytes(train)
        masks = n_entries if self._freezes_entries else 0  # a byte for each entry
        teacher = self._teacher_bytes(train, n_tokens)  # 0 for moments without an entry
        layer = root = 0
        if layout.n_devices > 1:
            # In the backward pass: two gathered layers, the gradients of one layer twice, of the root once.
            gathered = [n_shards * unit.block_entries(n_shards) for unit in self._layers]
            neighbours = max(map(sum, pairwise([0, *gathered])))
            layer = FP32_BYTES * (neighbours + 2 * max(gathered) + self._root.n_params)
            root = FP32_BYTES * n_shards * self._root.block_entries(n_shards)

        def row(moment: str, n_gradients: int, n_cast: int, saved: Cost, buffers: int) -> RankMemory:
            return RankMemory(
                moment=moment,
                parameter_bytes=FP32_BYTES * n_entries,
                gradient_bytes=FP32_BYTES * (self.n_params if layout.n_passes > 1 else n_gradients),
                optimizer_bytes=FP32_BYTES * (2 * n_entries - self._hidden_entries(n_shards)),
                root_bytes=root,
                cast_weight_bytes=0 if train.precision == "fp32" else BF16_BYTES * n_cast,
                activation_bytes=round(n_tokens * saved.activation_bytes(n_bytes)),
                buffer_bytes=buffers + masks,
                teacher_bytes=teacher["weights"] + teacher[moment],
            )

        packing = self._packing_bytes(layout.micro_batch_size, seq_len, n_bytes)
        if teacher:
            yield row("teacher", 0, 0, Cost(), packing)
        all_saved = RECOMPUTE[train.activation_checkpointing].kept_activations(config)
        loss = max(self._loss_bytes(n_tokens, train), layer)
        yield row("loss", 0, sum(self._n_cast), all_saved, loss + packing)
        # Sharded, the root's gradients count as buffers until the end.
        n_gradients = head if layout.n_devices == 1 else 0
        for i, saved in reversed(list(enumerate(self._saved_at_layers(train.activation_checkpointing)))):
            n_gradients += self._layers[i].block_entries(n_shards)
            n_cast = sum(self._n_cast[: i + 1])
            yield row(self._layers[i].name, n_gradients, n_cast, saved, layer + packing)
        tied = FP32_BYTES * head if config.tie_embeddings else 0  # two gradients before they are added
        old_weights = 0
        if self._freezes_entries:  # all old entries, and two copies of the moved entries of one tensor
            largest = max(block_entries(parameter.shape, n_shards) for parameter in self.model.parameters())
            old_weights = FP32_BYTES * (n_entries + 2 * largest)
        yield row("update", n_entries, 0, Cost(), max(tied, layer, old_weights))

    def _teacher_bytes(self, train: TrainConfig, n_tokens: int) -> Counter[str]:
        """Return the bytes of a teacher: `weights`, which are held in every moment, and further bytes by moment.

        The result is empty without a teacher.
        """
        if train.distill is None or train.distill.sizes is None:
            return Counter()
        sizes = train.distill.sizes
        n_bytes = number_bytes(train)
        n_logits = min(self._rows_per_chunk, n_tokens) * self.model.head.weight.shape[0]
        logits = LOGITS_OF_TEACHER * FP32_BYTES * n_logits + n_bytes * n_tokens * sizes.d_model
        weights = n_bytes * -(-sizes.params // train.shards)
        layers = 0
        if train.shards > 1:
            weights += n_bytes * sizes.root_params
            layers = 2 * n_bytes * sizes.layer_params  # two layers are gathered at a time
        return Counter(weights=weights, teacher=layers + n_bytes * n_tokens * sizes.pass_elements, loss=logits)

    def _saved_at_layers(self, kind: ActivationCheckpointing) -> list[Cost]:
        """Return the activations per token in memory in the backward pass of each layer and MTP head, in forward order.

        These are the saved activations of the layer and all layers before it, its recomputed activations, and the
        gradients of the activations of its larger sublayer.
        """
        config = self.model.config
        recompute = RECOMPUTE[kind]
        layers = config.layer_costs()
        if config.mtp is not None:
            layers += [config.mtp.layer.costs(config.residual, config.d_model)] * config.mtp.n_depths
        sublayers = [max(costs["attention"], costs["ffn"], key=Cost.activation_bytes) for costs in layers]
        embedding = config.end_costs()["embedding"]
        _, *saved = accumulate(recompute.kept_by_layer(config), initial=embedding)
        return [
            up_to_layer + (recomputed + activations_of(sublayer))
            for up_to_layer, recomputed, sublayer in zip(saved, recompute.recomputed(config), sublayers, strict=False)
        ]

    def _hidden_entries(self, n_shards: int) -> int:
        return sum(block_entries(matrix.shape, n_shards) for matrix in self._hidden_matrices)

    def weight_traffic_bytes(self, train: TrainConfig, n_devices: int) -> int:
        """Return a lower bound of the bytes that a step moves between a device and its memory, for weights alone.

        A pass reads the weights forward and backward and adds to the gradients; the update reads weights, gradients
        and optimizer state and writes weights and optimizer state.
        """
        layout = step_layout(train, n_devices)
        of_passes = layout.n_passes * 4 * self.n_params
        of_update = 7 * self.block_entries(layout.n_shards) - 2 * self._hidden_entries(layout.n_shards)
        return FP32_BYTES * (of_passes + of_update)

    def traffic(self, train: TrainConfig, n_devices: int) -> StepTraffic:
        """Return the bytes that a process sends in a step. Every pass gathers the layers of a teacher.

        In a ring of n processes, each sends (n - 1) / n of B bytes to gather, scatter or broadcast them, and twice as
        much to all-reduce them.
        """
        layout = step_layout(train, n_devices)
        n = layout.n_shards
        n_replicas = layout.n_replicas
        held = FP32_BYTES * self.block_entries(n)
        root = FP32_BYTES * self._root.block_entries(n)
        sizes = train.distill and train.distill.sizes
        teacher = 0 if sizes is None else number_bytes(train) * (sizes.params - sizes.root_params)
        updates = FP32_BYTES * self._hidden_entries(n)
        whole_updates = FP32_BYTES * sum(matrix.numel() for matrix in self._hidden_matrices)
        return StepTraffic(
            all_gather_bytes=(n - 1) * (layout.n_passes * (2 * held - root + -(-teacher // n)) + updates),
            reduce_scatter_bytes=(n - 1) * held,
            all_reduce_bytes=2 * (n_replicas - 1) * held // n_replicas,
            broadcast_bytes=(n - 1) * whole_updates // n,
        )

    def _loss_bytes(self, n_tokens: int, train: TrainConfig) -> int:
        """Return the bytes of the loss: for each head the gradient of its matrix, and chunks of logits.

        A chunk holds logits and probabilities in fp32, and in bf16 the gradient of the logits. The part of the chunk in
        the gradient of the head's matrix is computed and added; then the logits of the next chunk are computed, while
        all tensors of this chunk except its logits are still in memory. In bf16 the head's matrix is copied. When the
        backward pass begins, the chunks are freed and one gradient of the matrix exists twice.
        """
        n_vocab = self.model.head.weight.shape[0]
        n_weights = self.model.head.weight.numel()
        copy_bytes = 0 if train.precision == "fp32" else BF16_BYTES
        n_rows = self._rows_per_chunk
        n_logits = min(n_rows, n_tokens) * n_vocab
        chunk = (2 * FP32_BYTES + copy_bytes) * n_logits
        next_chunk = (FP32_BYTES + copy_bytes) * n_logits if n_rows < n_tokens else 0
        chunks = copy_bytes * n_weights + chunk + max(next_chunk, (copy_bytes or FP32_BYTES) * n_weights)
        gradients = (1 + len(self.model.depths)) * FP32_BYTES * n_weights
        return gradients + max(chunks, FP32_BYTES * n_weights)

    def _packing_bytes(self, n_rows: int, seq_len: int, bytes_per_element: int) -> int:
        """Return the bytes of masks for documents and windows, and of a rotary table for every row."""
        config = self.model.config
        layers = config.layers if config.mtp is None else (*config.layers, config.mtp.layer)
        ropes = {layer.attention.rope for layer in layers}
        n_factors = sum(2 * rope.head_dim for rope in ropes if rope is not None)
        windows = {layer.attention.window for layer in layers if layer.attention.score_cap is None}
        if self.recipe.data.mask_documents:
            mask_bytes = bytes_per_element * n_rows * seq_len**2 * len(windows)
        else:
            mask_bytes = seq_len**2 * sum(window is not None and window < seq_len for window in windows)
        if self.recipe.data.reset_positions:
            return mask_bytes + FP32_BYTES * n_rows * seq_len * n_factors
        return mask_bytes


def number_bytes(train: TrainConfig) -> int:
    """Return the bytes of an element in the precision of a run's matrix products."""
    return FP32_BYTES if train.precision == "fp32" else BF16_BYTES
