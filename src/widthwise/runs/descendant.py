"""A run that continues another one in a new folder, and what it takes over."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widthwise.data.config import open_data
from widthwise.data.loader import Loader
from widthwise.files import new_folder, write_atomic
from widthwise.growth.plan import GrowthPlan
from widthwise.model.decoder import Decoder
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import KEY, TOKENIZER_KEY, has_seen_data, identity_of
from widthwise.runs.environment import environment
from widthwise.runs.import_ import IMPORTED
from widthwise.runs.trained import check_tokenizer
from widthwise.training import checkpoint
from widthwise.training.objective import carried_state
from widthwise.training.observer import Observer
from widthwise.training.state import RunState
from widthwise.yaml_io import to_yaml


@dataclass(frozen=True)
class Feed:
    """The data of a run that continues another one."""

    loader: dict[str, int]
    """State of the data loader; empty if the data begin anew."""
    identity: dict[str, Any]
    """The entries of environment.json on the data, and on what the model was imported from."""
    notes: tuple[str, ...] = ()


def continued_feed(run: RunDir, old: Recipe, new: Recipe, loader: dict[str, int], observer: Observer) -> Feed:
    """Continues the data of a run where it stands if the recipes agree, and begins other data from the start.

    Data that stay the same need not be there. loader: the state of the run's loader, empty where it has seen no data.
    Raises UserError where the data cannot be had, or have another tokenizer.
    """
    recorded = run.environment()
    origin = {key: recorded[key] for key in (KEY, TOKENIZER_KEY, IMPORTED) if key in recorded}
    if not has_seen_data(run):
        if old.data != new.data and origin.get(TOKENIZER_KEY) is not None:
            check_tokenizer(run, open_data(new.data, observer.preparing).tokenizer)
        return Feed(loader, origin)
    settings = [(recipe.data, recipe.seq_len, recipe.train.batch_size, recipe.train.seed) for recipe in (old, new)]
    if settings[0] == settings[1]:
        return Feed(loader, origin)
    data = open_data(new.data, observer.preparing)
    check_tokenizer(run, data.tokenizer)
    identity = identity_of(data)
    train = new.train
    new_loader = Loader(data.train, seq_len=new.seq_len, batch_size=train.batch_size, seed=train.seed)
    fresh, differing = new_loader.state_dict(), new_loader.differing(loader)
    if not differing:
        return Feed(loader, {**origin, **identity.record()})
    if differing == ["batch_size"]:
        seen = loader["step"] * loader["batch_size"]
        return Feed({**fresh, "step": -(-seen // fresh["batch_size"])}, {**origin, **identity.record()})
    return Feed(fresh, {**origin, **identity.record()}, (f"data begin anew: other {', '.join(differing)} than before",))


def batches_from(recipe: Recipe, step: int, n: int, observer: Observer) -> list[Tensor]:
    """The n batches after so many steps: integers (batch_size, seq_len + 1). Raises UserError without data."""
    data, train = open_data(recipe.data, observer.preparing), recipe.train
    loader = Loader(data.train, seq_len=recipe.seq_len, batch_size=train.batch_size, seed=train.seed)
    return [loader.batch(step + place) for place in range(n)]


def continued_state(state: RunState, recipe: Recipe, plan: GrowthPlan, feed: Feed, before: TrainConfig) -> RunState:
    """The state at which the new run begins. before: the train section of the old run."""
    return RunState(
        **{
            **state.as_data(),
            "window_steps": recipe.train.loss_window_steps,
            "loader": feed.loader,
            "width_prices": carried_state(state.width_prices, before, recipe.train, plan),
            "grad_norms": [],
            "n_skipped": 0,
        }
    )


def write_run(
    source: RunDir,
    out: Path,
    recipe: Recipe,
    identity: Mapping[str, Any],
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    state: RunState,
    record: Mapping[str, Any],
    files: Mapping[str, str],
) -> None:
    """Makes the folder of a run with a checkpoint of the step of `state`, whole or not at all.

    record: of metrics.jsonl, behind those of the source up to that step; files: further ones by name. Torch's random
    state is saved too.
    """
    with new_folder(out) as folder:
        partial = RunDir(folder)
        if source.tokenizer_folder.is_dir():
            shutil.copytree(source.tokenizer_folder, partial.tokenizer_folder)
        earlier = [each for each in source.metrics() if each["step"] <= state.step]
        partial.metrics_file.append([*earlier, dict(record)])
        partial.metrics_file.fsync()
        partial.begin(to_yaml(recipe), {**environment(), **identity})
        checkpoint.save(partial.checkpoints, state.step, model, optimizer, state.as_data(), partial.seal())
        for name, content in files.items():
            write_atomic(partial.path / name, content)
