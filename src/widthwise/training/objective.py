"""The objective of a step: the loss of its passes over a batch, a price on the width that tokens use, and a teacher."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from widthwise.data.loader import Boundaries
from widthwise.kernels.dispatch import autocast
from widthwise.kernels.linear_cross_entropy import Teacher
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.context import Choices
from widthwise.model.decoder import Decoder, Loss, allocate, blueprint
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.model.execution import evaluating
from widthwise.recipe.objective import WidthBudgetConfig
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint
from widthwise.training.checkpoint_folder import latest_valid, step_of
from widthwise.training.processes import ALONE, Processes
from widthwise.training.step_statistics import ChoiceMeans

TEACHER_KEY = "teacher_step"
"""Key in `environment.json` of the step of the teacher's checkpoint; absent in a cut model before its training."""


class LoadedTeacher:
    """The teacher of a run, with the precision and the sharding of its student."""

    def __init__(self, recipe: Recipe, processes: Processes = ALONE):
        """Load the newest good checkpoint of the teacher that the student's recipe names. Called by all processes.

        Raises UserError if there is none.
        """
        assert recipe.train.distill is not None
        self._config = recipe.train.distill
        run = RunDir(self._config.teacher)
        path, damages = latest_valid(run.checkpoints, processes)
        if path is None:
            reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
            error = UserError(f"train.distill.teacher: {run.checkpoints}: no checkpoint to load ({reasons})")
            raise processes.on_every_rank(error)
        self.step = step_of(path)
        processes.all_gather(lambda: self._load(recipe, run, path, processes))

    def _load(self, recipe: Recipe, run: RunDir, path: Path, processes: Processes) -> None:
        """Build the model and load its weights. recipe: of the student."""
        self._model = blueprint(saved_recipe(run).model_at(self.step)).requires_grad_(False)
        if recipe.train.settled_precision == "bf16":
            self._model.to(torch.bfloat16)
        if processes.n_shards > 1:
            processes.shard_model(self._model)
        allocate(self._model, processes.device, processes.n_shards)
        checkpoint.load_weights(path, self._model)

    def read(self, tokens: Tensor, documents: Tensor | None, positions: Tensor | None) -> Teacher:
        """Return the teacher's hidden states and output head for tokens, integers (B, T).

        documents, positions: see `Decoder.stream`.
        """
        model = self._model
        with evaluating(model):
            hidden = model.exit(model.stream(tokens, documents=documents, positions=positions))
        return Teacher(hidden, model.logit_head, self._config.weight, self._config.temperature)


class Objective:
    """The objective of one model: the sum over the passes of a step.

    Most models have one pass and no further terms; a width budget and nested training need dynamic-width layers. A
    budget has no effect on a model in which no token chooses its width, as before growth adds such layers.
    """

    def __init__(
        self, config: TrainConfig, model: ModelConfig, device: torch.device, teacher: LoadedTeacher | None = None
    ):
        """teacher: required if the config has `distill`."""
        assert (teacher is None) == (config.distill is None)
        self._config = config
        self._budget: WidthBudget | None = None
        if config.width_budget is not None and chooses_width(model):
            self._budget = WidthBudget(config.width_budget, model, device)
        self._fractions: list[float] = []
        if config.nested is not None:
            self._fractions = forced_fractions(dynamic_layers(model), config.nested.n_widths)
        self.teacher = teacher

    def backward(
        self, model: Decoder, batch: Tensor, boundaries: Boundaries, processes: Processes
    ) -> tuple[Tensor, ChoiceMeans, Tensor]:
        """Add the gradient of the mean objective over a batch to the parameters of a model.

        The gradient does not depend on `train.micro_batch_size` or the number of processes, except for rounding and
        for terms that are not linear in the tokens: the balance loss of a mixture of experts and the damping of a
        width budget.

        batch: the rows of this process, integers (B, seq_len + 1).
        Returns results of the first pass on this process: the sum of the language-model losses, float64; the choices;
        and for each MTP head the sum of its losses and the number of its positions, float64 (2, n_depths).
        """
        loss = torch.zeros((), dtype=torch.float64, device=batch.device)
        choices = ChoiceMeans()
        mtp_sums = loss.new_zeros(2, len(model.depths))
        micro_batches = batch.split(self._config.sequences_per_pass)
        passes = self.draw_passes()
        for number, rows in enumerate(micro_batches, start=1):
            tokens = rows[:, :-1]
            targets = rows[:, 1:]
            documents = boundaries.documents(tokens)
            positions = boundaries.positions(tokens)
            for index, width_fraction in enumerate(passes):
                is_last = number == len(micro_batches) and index == len(passes) - 1
                processes.set_gradient_sync(model, is_last)
                with autocast(batch.device, self._config.settled_precision):
                    # Passed inline, so that the output of the teacher is freed before the backward pass.
                    forward = model.loss(
                        tokens,
                        targets,
                        self._config.z_loss,
                        width_fraction,
                        documents,
                        positions,
                        self.teacher and self.teacher.read(tokens, documents, positions),
                    )
                (self.of_pass(forward, width_fraction) * (len(rows) / len(batch))).backward()
                if index == 0:
                    loss += forward.losses.sum(dtype=torch.float64)
                    choices.add(forward.choices, len(rows))
                    for depth, mtp_losses in enumerate(forward.mtp_losses):
                        mtp_sums[0, depth] += mtp_losses.sum(dtype=torch.float64)
                        mtp_sums[1, depth] += mtp_losses.numel()
        return loss, choices, mtp_sums

    def draw_passes(self) -> Sequence[float | None]:
        """Draw the width fraction of each pass of the next step from torch's generator.

        None: each token chooses its width.
        """
        if self._config.nested is None:
            return (None,)
        # The largest fraction, 1.0, is always one of the passes.
        fraction = self._fractions[int(torch.randint(len(self._fractions) - 1, ()))]
        return [None, 1.0, fraction] if self._config.nested.chosen else [1.0, fraction]

    def of_pass(self, loss: Loss, width_fraction: float | None) -> Tensor:
        """Return the scalar of one pass to differentiate: with the term of the budget if tokens choose their widths."""
        if self._budget is None or width_fraction is not None:
            return loss.objective
        return loss.objective + self._budget.term(loss.choices)

    def end_step(self, choices: ChoiceMeans) -> None:
        """Update the price of a width budget. choices: of the whole batch."""
        if self._budget is not None:
            self._budget.end_step(choices.means())

    def state(self) -> list[float]:
        """Return the state for a checkpoint: the price of a width budget, if any. Waits for the device."""
        return [] if self._budget is None else self._budget.price.tolist()

    def load_state(self, state: Sequence[float]) -> None:
        """Restore a `state`. Without a price in it, as of a model that had no budget, the price stays 0."""
        if self._budget is not None and state:
            self._budget.price = self._budget.price.new_tensor(state)


class WidthBudget:
    """A width budget applied to one model. Its tensors stay on the device, so that no step waits for them."""

    def __init__(self, config: WidthBudgetConfig, model: ModelConfig, device: torch.device):
        self.config = config
        self._layers = dynamic_layers(model)
        self._shares = torch.tensor([flops_shares(self._layers)], dtype=torch.float64, device=device)
        """Share of each dynamic-width layer in their FLOPs, (1, n_dynamic_layers)."""
        self.price = self._shares.new_zeros(1)

    def term(self, choices: Sequence[Choices]) -> Tensor:
        """Return the term of the objective of a forward pass, a scalar differentiable by the width fractions.

        choices: of every layer.
        """
        excess = self._mean(choices) - self.config.target
        price = (self.price + self.config.damping * excess.detach()).clamp(min=0)
        return (price * excess).sum()

    def end_step(self, means: Sequence[Choices]) -> None:
        """Update the price. means: the choices of each layer, averaged over the whole batch."""
        excess = self._mean(means) - self.config.target
        self.price = (self.price + self.config.rate * excess).clamp(min=0)

    def _mean(self, choices: Sequence[Choices]) -> Tensor:
        """Return the mean width fraction of the dynamic-width layers, weighted by FLOPs, (1,)."""
        fractions = [choices[layer.index]["width_fraction"].mean() for layer in self._layers]
        return self._shares @ torch.stack(fractions).double()
