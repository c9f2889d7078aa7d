"""Discovery by growth: a narrow uniform model grows, part by part, where it would gain the most."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import UserError, checked_copy
from widthwise.experiments.discovery.method import Method, Task, sizes_of
from widthwise.experiments.discovery.parts import HeadsPart, HiddenPart, Part, WidthPart
from widthwise.model.config import ModelConfig
from widthwise.model.residual.interface import PrefixLayout
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.schedule import ConstantSchedule
from widthwise.records.discovery import Candidate, Found, Stage
from widthwise.run_dir import RunDir
from widthwise.shape.kinds import ExplicitShape
from widthwise.training.observer import Observer

if TYPE_CHECKING:
    from widthwise.runs.source import Source

Order = Callable[[Sequence[Candidate], np.random.Generator], Sequence[Candidate]]


def _by_gain(candidates: Sequence[Candidate], _: np.random.Generator) -> Sequence[Candidate]:
    return sorted(candidates, key=lambda each: each.gain / each.cost, reverse=True)


def _at_random(candidates: Sequence[Candidate], generator: np.random.Generator) -> Sequence[Candidate]:
    return [candidates[place] for place in generator.permutation(len(candidates))]


ORDERS: dict[str, Order] = {"gain": _by_gain, "random": _at_random}
"""How the candidates of a stage are put in order."""


class GrowingMethod(Method):
    """Trains a narrow model, and at the end of each stage grows what has the largest first-order gain per unit of the
    matched cost, exactly, until the budget is spent.

    A stage takes each candidate at most once, or all as often as another, so that no measurement decides more than a
    step.
    """

    kind: Literal["growing"] = "growing"
    start_width: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Width of all layers at first, over d_model."""
    step: Annotated[float, Field(gt=0, le=1)] = 0.125
    """By how much a part grows at a time, over its size in the uniform model."""
    n_stages: pydantic.PositiveInt = 8
    n_batches: Annotated[int, Field(ge=2, multiple_of=2)] = 8
    """Batches over which gains are measured."""
    order: Literal["gain", "random"] = "gain"
    """`random` grows the same parts by the same steps in an order that nothing has measured: a control."""

    def check(self, task: Task) -> None:
        residual = task.base.explicit_model.residual
        if not isinstance(residual.layout, PrefixLayout):
            raise UserError(f"model.residual.kind: got {residual.kind!r}; layers of different width need plain")
        if task.cost(self.start(task)) >= task.budget:
            raise UserError(f"discover.method.start_width: got {self.start_width:g}; leaves nothing to grow by")
        if task.steps < self.n_stages:
            raise UserError(
                f"discover.steps: got {task.steps}; must be at least one for each of {self.n_stages} stages"
            )

    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        return _Search(self, task, folder, observer).found()

    def start(self, task: Task) -> ModelConfig:
        """The narrow uniform model."""
        template = task.template
        quantum = template.attention.quantum
        width = max(1, round(self.start_width * template.d_model / quantum)) * quantum
        shape = ExplicitShape(widths=(width,) * template.n_layers)
        return template.model_copy(update={"shape": shape}).resolve(task.base.seq_len)

    def parts(self, task: Task) -> list[Part]:
        """What can grow in a layer, in steps that go by the sizes of the uniform model."""
        uniform = task.base.explicit_model.layers[0]

        def step(size: float, quantum: int) -> int:
            return max(1, round(self.step * size / quantum)) * quantum

        sizes = sizes_of(uniform)
        return [
            WidthPart("width", step(sizes.width, 1)),
            HeadsPart("attention", step(sizes.attention, task.template.attention.unit)),
            HiddenPart("hidden", step(sizes.hidden // len(uniform.ffn.hidden_widths), 1)),
        ]


class _Search:
    """A search under way: the parts and costs of its task are counted once."""

    def __init__(self, method: GrowingMethod, task: Task, folder: Path, observer: Observer):
        self.method, self.task, self.folder, self.observer = method, task, folder, observer
        self.model = method.start(task)
        self.parts = {part.name: part for part in method.parts(task)}
        self.first_cost, self.budget = task.cost(self.model), task.budget
        self.seed = task.base.train.seed

    def found(self) -> Found:
        """Trains and grows stage by stage. What was trained before is not trained again."""
        stages, flops, source = list[Stage](), 0.0, None
        for number in range(1, self.method.n_stages + 1):
            source = self._trained(number, source)
            candidates, spent = self._candidates(source)
            grown, taken = self._grown(candidates, number)
            stages.append(self._stage(source, [each.with_changes(is_taken=each in taken) for each in candidates]))
            self.model, flops = grown, flops + spent
        assert source is not None
        layers = [sizes_of(layer) for layer in self.model.layers]
        stages.append(Stage(step=self.task.steps, layers=layers, cost=self.task.cost(self.model)))
        spent = source.spent
        return Found(
            curve=self.task.curve(layers), stages=stages, tokens=spent.tokens, flops=flops + spent.training_flops
        )

    def _trained(self, number: int, before: "Source | None") -> "Source":
        """The run of a stage, grown from that of the stage before it, at its end."""
        from widthwise.runs.conversion import carry_out
        from widthwise.runs.grow import GrowOptions, growth_intended
        from widthwise.runs.source import Source
        from widthwise.runs.train import resume, train_or_resume

        run, recipe = RunDir(self.folder / f"stage-{number}"), self._recipe(number)
        if before is None:
            train_or_resume(recipe, run.path, self.observer)
        else:
            if not run.exists:
                options = GrowOptions(seed=self.seed, rewarmup_steps=0)
                carry_out(before, growth_intended(before, recipe, options), run.path, self.observer)
            resume(run.path, self.observer)
        return Source.of(run.path)

    def _recipe(self, number: int) -> Recipe:
        """That of a stage: at a constant rate, because the search ends in a model that nobody keeps."""
        base, ends = self.task.base, [round(self.task.steps * stage / self.method.n_stages) for stage in (1, number)]
        train = checked_copy(base.train, "train", steps=ends[1], validate_every=None)
        schedule = ConstantSchedule(warmup_steps=min(base.schedule.warmup_steps, ends[0] - 1))
        return checked_copy(base, "recipe", model=self.model, train=train, schedule=schedule)

    def _candidates(self, source: "Source") -> tuple[list[Candidate], float]:
        """Every part of every layer that can grow, with its gain and cost; and the FLOPs of measuring them."""
        from widthwise.growth.gain import first_order_gains
        from widthwise.growth.plan.model_plan import plan_growth
        from widthwise.runs.descendant import batches_from

        weights, _, state = source.load()
        batches = batches_from(source.recipe, state.step, self.method.n_batches, self.observer)
        n_tokens = sum(batch[:, 1:].numel() for batch in batches)
        found, flops, model, cost = [], 0.0, source.model, self.task.cost(source.model)
        for part in self.parts.values():
            indices = [index for index in range(model.n_layers) if part.can_grow(model, index)]
            if not indices:
                continue
            plan = plan_growth(model, part.grown(model, *indices))
            gains = first_order_gains(plan, weights, batches, seed=self.seed)
            flops += plan.new.cost().training_flops(source.recipe.seq_len) * n_tokens
            found += [
                Candidate(
                    layer=index,
                    part=part.name,
                    gain=_of_layer(gains, index),
                    cost=self.task.cost(part.grown(model, index)) - cost,
                )
                for index in indices
            ]
        return found, flops

    def _grown(self, candidates: Sequence[Candidate], number: int) -> tuple[ModelConfig, list[Candidate]]:
        """The model at the end of a stage, and the candidates that it took: rounds of all of them, until none fits."""
        allowed = self.first_cost + (self.budget - self.first_cost) * number / self.method.n_stages
        ranked = ORDERS[self.method.order](candidates, np.random.default_rng(self.seed + number))
        model, taken, n_before = self.model, list[Candidate](), -1
        while len(taken) > n_before:
            n_before = len(taken)
            for each in ranked:
                part = self.parts[each.part]
                if not part.can_grow(model, each.layer):
                    continue
                grown = part.grown(model, each.layer)
                if self.task.cost(grown) <= allowed:
                    model = grown
                    taken.append(each)
        return model, taken

    def _stage(self, source: "Source", candidates: Sequence[Candidate]) -> Stage:
        result = source.run.result()
        assert result is not None
        return Stage(
            step=source.step,
            layers=[sizes_of(layer) for layer in self.model.layers],
            cost=self.task.cost(self.model),
            loss=result.val_loss,
            candidates=candidates,
        )


def _of_layer(gains: Mapping[str, float], index: int) -> float:
    return sum(gain for name, gain in gains.items() if name.startswith(f"layers.{index}."))
