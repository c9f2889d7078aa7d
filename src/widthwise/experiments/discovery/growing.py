"""Discovery by growth: a narrow uniform model grows, part by part, where it would gain the most."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import UserError, checked_copy
from widthwise.data.config import open_data
from widthwise.experiments.discovery.method import Method, Task, check_uniform, sizes_of
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
    from torch import Tensor

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
        check_uniform(task.base)
        residual = task.base.explicit_model.residual
        if not isinstance(residual.layout, PrefixLayout):
            raise UserError(f"model.residual.kind: got {residual.kind!r}; layers of different width need plain")
        if task.cost(self._start(task)) >= task.budget:
            raise UserError(f"discover.method.start_width: got {self.start_width:g}; leaves nothing to grow by")
        if task.steps < self.n_stages:
            raise UserError(
                f"discover.steps: got {task.steps}; must be at least one for each of {self.n_stages} stages"
            )

    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        from widthwise.runs.source import Source  # needs torch, which a recipe's schema does not

        model, stages, flops, run = self._start(task), list[Stage](), 0.0, None
        for number in range(1, self.n_stages + 1):
            recipe = self._recipe(task, model, number)
            run = self._trained(recipe, run, RunDir(folder / f"stage-{number}"), observer)
            source = Source.of(run.path)
            allowed = task.cost(self._start(task))
            allowed += (task.budget - allowed) * number / self.n_stages
            candidates, spent = self._candidates(task, source)
            taken = self._taken(task, model, candidates, allowed, task.base.train.seed + number)
            stages.append(_stage(task, model, run, [each.with_changes(is_taken=each in taken) for each in candidates]))
            model, flops = self._grown(task, model, taken), flops + spent
        assert run is not None
        layers = [sizes_of(layer) for layer in model.layers]
        stages.append(Stage(step=task.steps, layers=layers, cost=task.cost(model)))
        spent = Source.of(run.path).spent
        return Found(curve=task.curve(layers), stages=stages, tokens=spent.tokens, flops=flops + spent.training_flops)

    def _start(self, task: Task) -> ModelConfig:
        template = task.template
        quantum = template.attention.quantum
        width = max(1, round(self.start_width * template.d_model / quantum)) * quantum
        shape = ExplicitShape(widths=(width,) * template.n_layers)
        return template.model_copy(update={"shape": shape}).resolve(task.base.seq_len)

    def _parts(self, task: Task) -> list[Part]:
        template, uniform = task.template, task.base.explicit_model.layers[0]
        quantum = template.attention.unit

        def step(size: int, quantum: int) -> int:
            return max(1, round(self.step * size / quantum)) * quantum

        sizes = sizes_of(uniform)
        return [
            WidthPart("width", step(uniform.d_model, 1)),
            HeadsPart("attention", step(int(sizes.attention), quantum)),
            HiddenPart("hidden", step(int(sizes.hidden) // len(uniform.ffn.hidden_widths), 1)),
        ]

    def _recipe(self, task: Task, model: ModelConfig, number: int) -> Recipe:
        """That of a stage: at a constant rate, because the search ends in a model that nobody keeps."""
        base = task.base
        train = checked_copy(base.train, "train", steps=self._end(task, number), validate_every=None)
        schedule = ConstantSchedule(warmup_steps=min(base.schedule.warmup_steps, max(0, self._end(task, 1) - 1)))
        return checked_copy(base, "recipe", model=model, train=train, schedule=schedule)

    def _end(self, task: Task, number: int) -> int:
        return round(task.steps * number / self.n_stages)

    def _trained(self, recipe: Recipe, before: RunDir | None, run: RunDir, observer: Observer) -> RunDir:
        """The run of a stage, grown from that of the stage before it and trained to its end."""
        from widthwise.runs.conversion import carry_out
        from widthwise.runs.grow import GrowOptions, growth_intended
        from widthwise.runs.source import Source
        from widthwise.runs.train import resume, train_or_resume

        if before is None:
            train_or_resume(recipe, run.path, observer)
            return run
        if not run.exists:
            source = Source.of(before.path)
            options = GrowOptions(seed=recipe.train.seed, rewarmup_steps=0)
            carry_out(source, growth_intended(source, recipe, options), run.path, observer)
        resume(run.path, observer)
        return run

    def _candidates(self, task: Task, source: "Source") -> tuple[list[Candidate], float]:
        """Every part of every layer that can grow, with its gain and cost; and the FLOPs of measuring them."""
        from widthwise.growth.gain import first_order_gains
        from widthwise.growth.plan.model_plan import plan_growth

        weights, _, state = source.load()
        batches, model = _next_batches(source.recipe, state.step, self.n_batches), source.model
        found, flops, cost = [], 0.0, task.cost(model)
        for part in self._parts(task):
            indices = [index for index in range(model.n_layers) if part.can_grow(model, index)]
            if not indices:
                continue
            plan = plan_growth(model, part.grown(model, *indices))
            gains = first_order_gains(plan, weights, batches, seed=task.base.train.seed)
            flops += plan.new.cost().training_flops(task.base.seq_len) * batches[0][:, 1:].numel() * len(batches)
            found += [
                Candidate(
                    layer=index,
                    part=part.name,
                    gain=_of_layer(gains, index),
                    cost=task.cost(part.grown(model, index)) - cost,
                )
                for index in indices
            ]
        return found, flops

    def _taken(
        self, task: Task, model: ModelConfig, candidates: Sequence[Candidate], allowed: float, seed: int
    ) -> list[Candidate]:
        """The candidates that are grown, in order; some again where one round of all does not spend what is allowed."""
        parts, ordered = {part.name: part for part in self._parts(task)}, ORDERS[self.order]
        ranked, taken = ordered(candidates, np.random.default_rng(seed)), list[Candidate]()
        while True:
            n_before = len(taken)
            for each in ranked:
                part = parts[each.part]
                if part.can_grow(model, each.layer) and task.cost(grown := part.grown(model, each.layer)) <= allowed:
                    model, taken = grown, [*taken, each]
            if len(taken) == n_before:
                return taken

    def _grown(self, task: Task, model: ModelConfig, taken: Sequence[Candidate]) -> ModelConfig:
        parts = {part.name: part for part in self._parts(task)}
        for each in taken:
            model = parts[each.part].grown(model, each.layer)
        return model


def _of_layer(gains: Mapping[str, float], index: int) -> float:
    return sum(gain for name, gain in gains.items() if name.startswith(f"layers.{index}."))


def _next_batches(recipe: Recipe, step: int, n: int) -> "list[Tensor]":
    """The batches that follow those of the run."""
    from widthwise.data.loader import Loader

    data, train = open_data(recipe.data), recipe.train
    loader = Loader(data.train, seq_len=recipe.seq_len, batch_size=train.batch_size, seed=train.seed)
    return [loader.batch(step + place) for place in range(n)]


def _stage(task: Task, model: ModelConfig, run: RunDir, candidates: Sequence[Candidate]) -> Stage:
    result = run.result()
    assert result is not None
    assert result.steps is not None
    return Stage(
        step=result.steps,
        layers=[sizes_of(layer) for layer in model.layers],
        cost=task.cost(model),
        loss=result.val_loss,
        candidates=candidates,
    )
