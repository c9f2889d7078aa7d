"""Saving a model in memory as a run directory at step 0, so that every verb works on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import UserError, checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.mixture import OpenedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import open_tokenizer
from widthwise.files import new_folder
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.recipe import Recipe, load_recipe, parse_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import KEY, TOKENIZER_KEY, TokenizerIdentity, identity_of
from widthwise.runs.environment import environment
from widthwise.runs.speed import faster_precision
from widthwise.training import checkpoint
from widthwise.training.state import RunState
from widthwise.yaml_io import to_yaml

LONGEST_SEQUENCE = 1024
"""Most tokens per training sequence, if no recipe gives their number."""


def save_run(
    model: Decoder,
    tokenizer: Tokenizer | Path | str | None,
    folder: Path | str,
    recipe: Recipe | Path | str | None = None,
    seq_len: int | None = None,
    data: OpenedData | None = None,
) -> Path:
    """Writes a model, as a training loop of one's own leaves it, as a run directory at step 0, and returns its path.

    `eval --text`, `analyze --text`, `generate`, `grow`, `pad`, `export` and `resume` then work as on any run.
    tokenizer: as `PreparedData.tokenizer` gives it, or a spec such as `bytes` or the path of a tokenizer.json; without
    one only what needs no text works. recipe: how the run would be trained further, but for its model; gentle settings
    on the default corpus where not given. seq_len: tokens per window; the recipe's, or at most 1024, where not given.
    data: what it was trained on, if that is what the recipe names; then `eval` and `analyze` need no text, as they read
    the held-out part. The model stays as it is; weights are saved as fp32. Raises UserError for a mistake in the
    recipe, for a tokenizer with more tokens than the model knows or another than that of the data, and where `folder`
    exists.
    """
    known = open_tokenizer(str(tokenizer)) if isinstance(tokenizer, (str, Path)) else tokenizer
    if known is not None and known.vocab_size > model.config.vocab_size:
        raise UserError(
            f"tokenizer {known.spec}: has {known.vocab_size} tokens; must have at most vocab_size = "
            f"{model.config.vocab_size} of the model"
        )
    resolved = _recipe(model, known, recipe, seq_len)
    provenance = _provenance(known, resolved, data)
    copied = build(model.config, seed=0)
    copied.set_weights((name, parameter.detach()) for name, parameter in model.named_parameters())
    write_first(Path(folder), resolved, copied, known, provenance)
    return Path(folder)


def _provenance(tokenizer: Tokenizer | None, recipe: Recipe, data: OpenedData | None) -> dict[str, Any]:
    """The entries of environment.json that say which tokens the model knows, and which data it has seen."""
    known = None if tokenizer is None else TokenizerIdentity(spec=tokenizer.spec, id=tokenizer.id)
    if data is None:
        return {KEY: None, TOKENIZER_KEY: known and to_data(known)}
    identity, named = identity_of(data), identity_of(open_data(recipe.data))
    if identity != named:
        given, other = identity.compared(named)
        raise UserError(f"data: got {given}; the recipe names {other}")
    if identity.tokenizer != known:
        raise UserError(f"data: was tokenised by {identity.tokenizer.spec}, not by the tokenizer that is given")
    return identity.record()


def _recipe(
    model: Decoder, tokenizer: Tokenizer | None, given: Recipe | Path | str | None, seq_len: int | None
) -> Recipe:
    """The recipe of the run, checked."""
    if given is None:
        n_positions = None if model.config.positions is None else model.config.positions.n_positions
        data = {} if tokenizer is None else {"tokenizer": tokenizer.spec}
        begun = parse_recipe({**first_sections(n_positions), "model": to_data(model.config), "data": data}, "save_run")
    else:
        base = given if isinstance(given, Recipe) else load_recipe(given)
        begun = checked_copy(base, "recipe", model=model.config, growth=(), rewarmup=None)
    resolved = begun if seq_len is None else checked_copy(begun, "recipe", seq_len=seq_len)
    resolved.check()
    return resolved


def first_sections(n_positions: int | None) -> dict[str, Any]:
    """A recipe but for its model and data, where none is given: gentle further training.

    n_positions: the longest context of the model, in tokens; None: any.
    """
    return {
        "seq_len": LONGEST_SEQUENCE if n_positions is None else min(LONGEST_SEQUENCE, n_positions),
        "optimizer": {"kind": "adamw", "lr": 2e-5},
        "schedule": {"kind": "wsd", "warmup_steps": 50},
        "train": {"steps": 1000, "batch_size": 8, "micro_batch_size": 1},
    }


def write_first(
    out: Path, recipe: Recipe, model: Decoder, tokenizer: Tokenizer | None, provenance: Mapping[str, Any]
) -> None:
    """Writes the run directory of a model at step 0, whole or not at all.

    recipe: resolved, with the model's config; provenance: entries of environment.json.
    """
    recipe = recipe.settled(faster_precision)
    with new_folder(out) as folder:
        partial = RunDir(folder)
        partial.begin(to_yaml(recipe), {**environment(), **provenance})
        if tokenizer is not None:
            tokenizer.save(partial.tokenizer_folder)
        optimizer = recipe.optimizer.build(model)
        state = RunState(recipe.train.loss_window_steps)
        with torch.random.fork_rng():
            torch.manual_seed(recipe.train.seed)  # the random state is part of the checkpoint
            checkpoint.save(partial.checkpoints, 0, model, optimizer, state.as_data(), partial.seal())
