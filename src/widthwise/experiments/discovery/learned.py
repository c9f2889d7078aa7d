"""Discovery by learned widths: layers learn how much of the stream and how many hidden units they use, at a price."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from widthwise.config_io import UserError, checked_copy
from widthwise.experiments.discovery.learned_sizes import LEARNED_SIZES, LearnedSize
from widthwise.experiments.discovery.method import Method, Task, sizes_of
from widthwise.model.ffn.swiglu import SwiGLUTemplate
from widthwise.model.priced_layers import priced_layers
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.width_budget import LagrangianBudget
from widthwise.records.discovery import Found, LayerSizes, Stage
from widthwise.run_dir import RunDir
from widthwise.training.observer import Observer


class LearnedMethod(Method):
    """One model whose layers have room for more than the uniform one uses, begin with the use of as much, and trade it:
    a price keeps the mean of what they use where it is.

    A layer has one width in the stream and one number of hidden units for all tokens. Heads stay uniform.
    """

    kind: Literal["learned"] = "learned"
    sizes: Annotated[tuple[Literal["width", "hidden"], ...], Field(min_length=1, max_length=2)] = ("width", "hidden")
    """What a layer learns: its width in the stream, its hidden units, or both, which are traded for one another too.
    The other sizes stay those of the uniform model."""
    room: Annotated[float, Field(gt=1, le=16)] = 2.0
    """How much of each of these sizes a layer could use, over that of the uniform model."""
    min_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """The least that it may use, over what it could."""
    rate: Annotated[float, Field(gt=0)] = 0.03
    """By how much the price of what is used rises in a step while the mean is above its target."""
    width_lr: Annotated[float, Field(gt=0)] = 0.05
    """Learning rate of what the widths follow from, numbers of each layer of whose sigmoid they are. In a search of a
    few hundred steps the rate of the other weights would hardly move them."""

    @field_validator("sizes")
    @classmethod
    def _check_sizes(cls, sizes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(sizes)) < len(sizes):
            raise ValueError(f"got {list(sizes)}; each size at most once")
        return sizes

    @property
    def in_words(self) -> str:
        return "learned under a price on width"

    def check(self, task: Task) -> None:
        ffn = task.template.ffn
        if not isinstance(ffn, SwiGLUTemplate) or ffn.d_ff is not None:
            got = f"d_ff: {ffn.d_ff}" if isinstance(ffn, SwiGLUTemplate) else repr(ffn.kind)
            raise UserError(f"model.ffn: got {got}; learned widths are those of a swiglu with a ratio")
        for size in self._learned(task):
            size.check()
        self._recipe(task).check()

    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        from widthwise.runs.train import train_or_resume  # needs torch, which a recipe's schema does not

        recipe = self._recipe(task)
        result = train_or_resume(recipe, RunDir(folder / "learned").path, observer)
        uniform = sizes_of(task.base.explicit_model.layers[0])
        layers = [uniform] * task.template.n_layers
        for size in self._learned(task):
            used = size.found(result)
            layers = [layer.with_changes(**{size.name: own}) for layer, own in zip(layers, used, strict=True)]
        stages = [
            Stage(step=0, layers=[uniform] * len(layers), cost=task.budget),
            Stage(step=task.steps, layers=layers, cost=self._cost(task, layers), loss=result.val_loss),
        ]
        curve = task.curve(layers)
        if "width" not in self.sizes:
            curve = curve.with_changes(attention=None)  # it follows from the widths
        return Found(curve=curve, stages=stages, tokens=recipe.n_tokens, flops=recipe.training_flops)

    def _learned(self, task: Task) -> list[LearnedSize]:
        return [
            learned(task.template, self.room, self.min_fraction)
            for name, learned in LEARNED_SIZES.items()
            if name in self.sizes
        ]

    def _recipe(self, task: Task) -> Recipe:
        model, optimizer, base = task.template, task.base.optimizer, task.base
        starts = {"width": 1.0, "hidden": 1.0}
        for size in self._learned(task):
            model = size.given_room(model, base.explicit_model)
            optimizer = optimizer.with_rate_of(size.part, self.width_lr)
            starts[size.name] = 1 / size.room
        first = priced_layers(model.resolve(base.seq_len))[0]  # as all others
        budget = LagrangianBudget(target=first.share(starts["width"], starts["hidden"]), rate=self.rate)
        train = checked_copy(base.train, "train", steps=task.steps, width_budget=budget)
        return checked_copy(base, "recipe", model=model, train=train, optimizer=optimizer)

    def _cost(self, task: Task, layers: list[LayerSizes]) -> float:
        """That of a model whose layers have only what they use."""
        uniform = task.base.explicit_model
        narrowed = tuple(
            layer.model_copy(
                update={
                    **dict.fromkeys(("d_model", "d_in", "d_out"), max(1, round(sizes.width))),
                    "ffn": layer.ffn.model_copy(update={"d_ff": max(1, round(sizes.hidden))}),
                }
            )
            for layer, sizes in zip(uniform.layers, layers, strict=True)
        )
        return task.cost(uniform.model_copy(update={"layers": narrowed}))
