"""Discovery by a surrogate: Optuna searches a few points of each curve with small models; the curve is carried over."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import UserError, to_data
from widthwise.data.extras import require
from widthwise.experiments.discovery.method import Method, Task, sizes_of
from widthwise.files import read_json_mapping, write_atomic
from widthwise.merging import merge
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.records.discovery import Curve, Found, Stage
from widthwise.records.record import Record, finite
from widthwise.run_dir import RunDir, RunDiverged
from widthwise.shape.template import ModelTemplate
from widthwise.training.observer import Observer, Relay

if TYPE_CHECKING:
    from widthwise.runs.data_shelf import DataShelf

TRIALS = "trials.json"
CURVES = ("widths", "hidden")


class Trial(Record):
    """A shape that was tried."""

    points: dict[str, float]
    """Name of a point -> its size in proportion to the others."""
    losses: dict[str, float]
    """Step -> held-out loss."""
    is_pruned: bool = False
    """It was given up before its last step."""
    is_diverged: bool = False
    tokens: int
    flops: float

    @property
    def loss(self) -> float:
        """The last; infinite where the trial diverged, so that the study looks elsewhere."""
        return math.inf if self.is_diverged else self.losses[max(self.losses, key=int)]

    @property
    def is_whole(self) -> bool:
        return not self.is_pruned and not self.is_diverged


class Pruned(Exception):
    """A trial is given up: no error."""


class SurrogateMethod(Method):
    """A study over the points of two curves, of widths and of hidden widths, with models of a smaller size if wanted.

    A trial whose loss is above the median of earlier ones at the same step is given up there: at the validations of the
    recipe's `train.validate_every`. Both choose by the held-out text of the recipe, on which rivals are judged too.
    """

    selects_held_out = True
    may_change = ("n_trials",)
    kind: Literal["surrogate"] = "surrogate"
    n_points: Annotated[int, Field(ge=2, le=16)] = 4
    """Points of each curve; between them it is straight."""
    n_trials: pydantic.PositiveInt = 24
    spread: Annotated[float, Field(gt=1, le=10)] = 2.0
    """Every point lies between 1 / spread and spread."""
    n_warmup_trials: pydantic.PositiveInt = 5
    """Trials before any is given up."""
    smaller: dict[str, Any] = Field(default_factory=dict)
    """Changes to the recipe for the models of the study, as {model: {d_model: 48}}. What learning rates and initial
    weights of the recipe become at another d_model follows from muP; what is changed here stays as it is said."""

    @property
    def in_words(self) -> str:
        return f"the best of {self.n_trials} models"

    def check(self, task: Task) -> None:
        model = self.smaller.get("model")
        if isinstance(model, dict) and "shape" in model:
            raise UserError("discover.method.smaller.model.shape: the study says the shapes; leave it out")
        require("optuna", "sweep")
        flat = dict.fromkeys(self._names, 1.0)
        self._recipe(task, flat).check()

    def find(self, task: Task, folder: Path, observer: Observer) -> Found:
        trials = self._trials(task, folder, observer)
        whole = [trial for trial in trials if trial.is_whole]
        if not whole:
            raise UserError(
                f"{folder}: none of the {len(trials)} trials was trained to its end without diverging; try a lower "
                "optimizer.lr or more schedule.warmup_steps in a new folder (--out)"
            )
        best = min(whole, key=lambda trial: trial.loss)
        return Found(
            curve=self._curve(best.points),
            stages=self._stages(task, trials),
            tokens=sum(trial.tokens for trial in trials),
            flops=sum(trial.flops for trial in trials),
        )

    def _trials(self, task: Task, folder: Path, observer: Observer) -> list[Trial]:
        """As many as are asked for. Those that were done before are not trained again, but the study draws their points
        again, so that it goes on as if it had never been interrupted."""
        from widthwise.runs.data_shelf import DataShelf  # needs torch, which a recipe's schema does not

        path, shelf, study = folder / TRIALS, DataShelf(), self._study(task)
        trials = [Trial.model_validate(each) for each in read_json_mapping(path)["trials"]] if path.exists() else []
        for number in range(1, self.n_trials + 1):
            asked = study.ask(self._distributions())
            if number > len(trials):
                run = folder / f"trial-{number:03d}"
                trials.append(self._tried(task, dict(asked.params), trials, run, observer, shelf))
                write_atomic(path, json.dumps({"trials": [each.to_data() for each in trials]}, indent=2) + "\n")
            elif trials[number - 1].points != asked.params:
                raise UserError(
                    f"{path}: trial {number} has other points than this version of Optuna draws; choose another folder "
                    "with --out"
                )
            study.tell(asked, trials[number - 1].loss)
        return trials[: self.n_trials]

    @property
    def _names(self) -> list[str]:
        return [f"{curve}_{place}" for curve in CURVES for place in range(1, self.n_points + 1)]

    def _distributions(self) -> dict[str, Any]:
        optuna: Any = require("optuna", "sweep")
        span = optuna.distributions.FloatDistribution(1 / self.spread, self.spread, log=True)
        return dict.fromkeys(self._names, span)

    def _study(self, task: Task) -> Any:
        """A study that knows no trial yet."""
        optuna: Any = require("optuna", "sweep")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=task.base.train.seed, multivariate=True))

    def _curve(self, points: dict[str, float]) -> Curve:
        return Curve(**{curve: [points[name] for name in self._names if name.startswith(curve)] for curve in CURVES})

    def _recipe(self, task: Task, points: dict[str, float]) -> Recipe:
        shape = {"kind": "curve", "match": task.match, "rounding": "balanced", **self._curve(points).to_data()}
        data = merge(to_data(task.base), {"train": {"steps": task.steps}})
        data = merge(merge(data, at_d_model(task.template, self.smaller.get("model"))), self.smaller)
        return parse_recipe(merge(data, {"model": {"shape": shape}}), "discover.method.smaller")

    def _tried(
        self,
        task: Task,
        points: dict[str, float],
        before: Sequence[Trial],
        folder: Path,
        observer: Observer,
        shelf: "DataShelf",
    ) -> Trial:
        from widthwise.runs.train import train_or_resume

        recipe = self._recipe(task, points)
        watching = _Watch(observer, before if len(before) >= self.n_warmup_trials else (), recipe.train.steps)
        try:
            result = train_or_resume(recipe, folder, watching, shelf)
        except Pruned:
            losses = _losses(folder)
            return _cut_short(recipe, int(max(losses, key=int)), points=points, losses=losses, is_pruned=True)
        except RunDiverged as error:
            observer.message(f"{error}; the study goes on without it")
            return _cut_short(recipe, error.step, points=points, losses=_losses(folder), is_diverged=True)
        losses = {**_losses(folder), str(recipe.train.steps): finite(result.val_loss)}
        return Trial(points=points, losses=losses, tokens=recipe.n_tokens, flops=recipe.training_flops)

    def _stages(self, task: Task, trials: Sequence[Trial]) -> list[Stage]:
        """One for each trial that was the best so far; steps are those of all trials until then."""
        stages, best, step = list[Stage](), math.inf, 0
        tokens_per_step = self._recipe(task, trials[0].points).tokens_per_step
        for trial in trials:
            step += trial.tokens // tokens_per_step
            if trial.is_whole and trial.loss < best:
                best, model = trial.loss, self._recipe(task, trial.points).explicit_model
                layers = [sizes_of(layer) for layer in model.layers]
                stages.append(Stage(step=step, layers=layers, cost=task.cost(model), loss=best))
        return stages


def _cut_short(recipe: Recipe, n_steps: int, **known: Any) -> Trial:
    """A trial that was trained for the first steps of its recipe alone."""
    return Trial(tokens=n_steps * recipe.tokens_per_step, flops=recipe.training_flops_until(n_steps), **known)


def at_d_model(template: ModelTemplate, change: Any) -> dict[str, Any]:
    """Changes to a recipe with which one learning rate of AdamW suits both the d_model of the template and that of a
    change to it, by muP: the multipliers of hidden matrices and logits follow the width. Source: Yang et al. 2022,
    arXiv:2203.03466, table 8. Muon needs none for its matrices (with `adjust_lr: original`).

    A change that has no d_model, or one that is no size, changes nothing; the recipe refuses the latter.
    """
    d_model = change.get("d_model") if isinstance(change, dict) else None
    if not isinstance(d_model, int) or d_model < 1 or d_model == template.d_model:
        return {}
    ratio = d_model / template.d_model
    init = {"width_multiplier": template.init.width_multiplier * ratio}
    return {"model": {"init": init, "logit_multiplier": template.logit_multiplier / ratio}}


def _losses(folder: Path) -> dict[str, float]:
    """Step -> held-out loss of a run, including those from before an interruption."""
    return {str(each["step"]): each["loss"] for each in RunDir(folder).metrics() if each["event"] == "validation"}


class _Watch(Relay):
    """Gives a trial up where its loss is above the median of others at a step before its last."""

    def __init__(self, observer: Observer, before: Sequence[Trial], last_step: int):
        super().__init__(observer)
        self._before, self._last_step = before, last_step

    def record(self, record: dict[str, Any]) -> None:
        super().record(record)
        if record["event"] != "validation" or record["step"] == self._last_step:
            return
        step = str(record["step"])
        others = sorted(trial.losses[step] for trial in self._before if step in trial.losses)
        if others and record["loss"] > others[len(others) // 2]:
            raise Pruned
