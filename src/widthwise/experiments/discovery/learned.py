"""Discovery by learned widths: every layer learns how many hidden units it uses, and each has a price."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from widthwise.config_io import UserError, checked_copy
from widthwise.experiments.discovery.method import Method, Task, sizes_of
from widthwise.model.ffn.dynamic import DynamicTemplate
from widthwise.model.ffn.swiglu import SwiGLUTemplate
from widthwise.model.ffn.width_score import ConstScoreConfig
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.width_budget import LagrangianBudget
from widthwise.records.discovery import Found, LayerSizes, Stage
from widthwise.run_dir import RunDir
from widthwise.training.observer import Observer


class LearnedMethod(Method):
    """One model whose layers have more hidden units than the uniform one, begin with the use of as many, and trade
    them: a price keeps the mean where it is.

    A layer has one width for all tokens: a dynamic width whose score is constant. Stream and heads stay uniform.
    """

    kind: Literal["learned"] = "learned"
    room: Annotated[float, Field(gt=1, le=16)] = 2.0
    """Hidden units that a layer could use, over those of the uniform model."""
    min_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The fewest that it may use, over those it could."""
    rate: Annotated[float, Field(gt=0)] = 0.03
    """By how much the price of a unit rises in a step while the mean is above its target."""
    width_lr: Annotated[float, Field(gt=0)] = 0.05
    """Learning rate of what the widths follow from, a number a layer of whose sigmoid they are. In a search of a few
    hundred steps the rate of the other weights would hardly move it."""

    def check(self, task: Task) -> None:
        ffn = task.template.ffn
        if not isinstance(ffn, SwiGLUTemplate) or ffn.d_ff is not None:
            raise UserError(f"model.ffn: got {ffn.kind!r}; learned widths are those of a swiglu with a ratio")
        if self.min_fraction * self.room >= 1:
            raise UserError(
                f"discover.method.min_fraction: got {self.min_fraction:g}; must be below 1 / room = {1 / self.room:.3g}"
            )
        self._recipe(task).check()

    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        from widthwise.runs.train import train_or_resume  # needs torch, which a recipe's schema does not

        recipe = self._recipe(task)
        result = train_or_resume(recipe, RunDir(folder / "learned").path, observer)
        widths, uniform = result.token_widths, sizes_of(task.base.explicit_model.layers[0])
        assert widths is not None
        layers = [uniform.with_changes(hidden=each.mean * each.d_ff) for each in widths.layers]
        stages = [
            Stage(step=0, layers=[uniform] * len(layers), cost=task.budget),
            Stage(step=task.steps, layers=layers, cost=self._cost(task, layers), loss=result.val_loss),
        ]
        curve = task.curve(layers).with_changes(attention=None)
        return Found(curve=curve, stages=stages, tokens=recipe.n_tokens, flops=recipe.training_flops)

    def _recipe(self, task: Task) -> Recipe:
        ffn = task.template.ffn
        assert isinstance(ffn, SwiGLUTemplate)
        dynamic = DynamicTemplate(
            ratio=self.room * (ffn.ratio or ffn.usual_ratio),
            multiple_of=ffn.multiple_of,
            score=ConstScoreConfig(),
            min_fraction=self.min_fraction,
            start=(1 / self.room - self.min_fraction) / (1 - self.min_fraction),
        )
        budget = LagrangianBudget(target=1 / self.room, rate=self.rate)
        model = task.template.model_copy(update={"ffn": dynamic})
        train = checked_copy(task.base.train, "train", steps=task.steps, width_budget=budget)
        optimizer = task.base.optimizer.with_rate_of("ffn.bias", self.width_lr)
        return checked_copy(task.base, "recipe", model=model, train=train, optimizer=optimizer)

    def _cost(self, task: Task, layers: list[LayerSizes]) -> float:
        """That of a model whose layers have only the hidden units they use."""
        changes = {index: {"ffn": {"d_ff": max(1, round(each.hidden))}} for index, each in enumerate(layers)}
        return task.cost(task.template.model_copy(update={"layers": changes}).resolve(task.base.seq_len))
