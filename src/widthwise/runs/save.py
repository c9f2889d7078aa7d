"""Writing run directories at step 0, from a model in memory or a Hugging Face folder."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.identity import IMPORTED, describe_difference, without_data
from widthwise.data.json_tokenizer import JsonTokenizer, open_tokenizer
from widthwise.data.mixture import OpenedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import FileRecord, new_folder, read_text
from widthwise.interop.hf_import import describe_folder, import_hf, import_source, optional_tokenizer
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder, allocate, blueprint, build
from widthwise.model.execution import unwrapped
from widthwise.recipe.recipe import Recipe, load_recipe, parse_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment, faster_precision
from widthwise.runs.open import check_fits_model, usual_seq_len
from widthwise.training import checkpoint
from widthwise.training.state import RunState
from widthwise.yaml_io import apply_overrides, read_recipe, to_yaml


def save_run(
    model: Decoder,
    tokenizer: Tokenizer | Path | str | None,
    folder: Path | str,
    recipe: Recipe | Path | str | None = None,
    seq_len: int | None = None,
    data: OpenedData | None = None,
) -> Path:
    """Write the model of a custom training loop as a run directory at step 0, and return its path.

    `eval --text`, `analyze --text`, `generate`, `grow`, `export` and `resume` work on it. Weights are saved as fp32;
    the model is not changed.

    tokenizer: a `PreparedData.tokenizer`, or a spec such as `bytes` or the path of a tokenizer.json; without one, only
    verbs that read no text work. recipe: for further training; its model is ignored. Default: gentle settings on the
    default corpus. seq_len: tokens per window; default: the recipe's, or at most 1024. data: the training data, if the
    recipe names them; then `eval` and `analyze` read their held-out part by default.

    Raises UserError for a mistake in the recipe, for a tokenizer with more tokens than the model or another tokenizer
    than the data, and if `folder` exists.
    """
    if isinstance(tokenizer, (str, Path)):
        tokenizer = open_tokenizer(str(tokenizer))
    if tokenizer is not None:
        check_fits_model(tokenizer, model.config.vocab_size)
    resolved = _recipe(model, tokenizer, recipe, seq_len)
    provenance = without_data(tokenizer)
    if data is not None:
        identity = data.identity
        recipe_identity = open_data(resolved.data).identity
        if identity != recipe_identity:
            passed, expected = describe_difference(identity, recipe_identity)
            raise UserError(f"data: got {passed}; the recipe names {expected}")
        if tokenizer is None or (identity.tokenizer.spec, identity.tokenizer.id) != (tokenizer.spec, tokenizer.id):
            raise UserError(f"data: was tokenised by {identity.tokenizer.spec}, not by the passed tokenizer")
        provenance = identity.record()
    copied = build(model.config, seed=0)
    copied.set_weights(unwrapped(model).named_parameters())
    write_new_run(Path(folder), resolved, copied, tokenizer, provenance)
    return Path(folder)


def _recipe(
    model: Decoder, tokenizer: Tokenizer | None, base: Recipe | Path | str | None, seq_len: int | None
) -> Recipe:
    """Return the checked recipe of the run. base: for further training; default: `default_sections`."""
    if base is None:
        positions = model.config.positions
        n_positions = None if positions is None else positions.n_positions
        data = {} if tokenizer is None else {"tokenizer": tokenizer.spec}
        sections = {**default_sections(n_positions), "model": to_data(model.config), "data": data}
        recipe = parse_recipe(sections, "save_run")
    else:
        base = base if isinstance(base, Recipe) else load_recipe(base)
        recipe = checked_copy(base, "recipe", model=model.config, growth=(), rewarmup=None)
    if seq_len is not None:
        recipe = checked_copy(recipe, "recipe", seq_len=seq_len)
    recipe.check()
    return recipe


def default_sections(n_positions: int | None) -> dict[str, Any]:
    """Return default sections of a recipe for further training at a low rate, without model and data.

    n_positions: tokens of the model's longest text; None: no limit.
    """
    return {
        "seq_len": usual_seq_len(n_positions),
        "optimizer": {"kind": "adamw", "lr": 2e-5},
        "schedule": {"kind": "wsd", "warmup_steps": 50},
        "train": {"steps": 1000, "batch_size": 8, "micro_batch_size": 1},
    }


def write_new_run(
    out: Path,
    recipe: Recipe,
    model: Decoder,
    tokenizer: Tokenizer | None,
    provenance: Mapping[str, Any],
    write_records: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write the run directory of a model at step 0 atomically.

    recipe: resolved, with the model's config; provenance: entries of environment.json; write_records: adds files to the
    folder.
    """
    recipe = recipe.settled(faster_precision)
    with new_folder(out) as folder:
        partial = RunDir(folder)
        write_records(folder)
        partial.begin(to_yaml(recipe), {**environment(), **provenance})
        if tokenizer is not None:
            tokenizer.save(partial.tokenizer_folder)
        optimizer = recipe.optimizer.build(model)
        state = RunState(window_steps=recipe.train.loss_window_steps)
        with torch.random.fork_rng():
            torch.manual_seed(recipe.train.seed)  # the random state is part of the checkpoint
            snapshot = checkpoint.take_snapshot(model, optimizer)
            checkpoint.write(partial.checkpoints, 0, snapshot, state.as_data(), partial.seal())


def import_run(
    source: Path | str,
    out: Path | str,
    recipe: Path | str | None = None,
    overrides: Sequence[str] = (),
    revision: str | None = None,
) -> dict[str, Any]:
    """Write the model of a Hugging Face folder as a run directory at step 0, and return a summary.

    source: the folder, or `org/name` or `hf://org/name` of the hub. recipe: for further training; its model is ignored.
    revision: branch, tag or commit on the hub. Raises UserError for a model that cannot be fetched or cannot be
    imported exactly, and if `out` already holds a run.
    """
    run = RunDir(out)
    if run.exists:
        raise UserError(f"{run.path}: already holds a run; choose a new folder")
    for override in overrides:
        if re.match(r"\s*model\b", override):
            raise UserError(f"{override}: {source} defines the model; `widthwise grow` changes it after the import")
    imported = read_import(source, overrides, recipe, revision, run.tokenizer_folder / JsonTokenizer.file_name)
    config = imported.model.config
    tokenizer = imported.tokenizer
    write_new_run(run.path, imported.recipe, imported.model, tokenizer, {**without_data(tokenizer), **imported.origin})
    origin = imported.origin[IMPORTED]
    ignored = [] if tokenizer is None else [*map(tokenizer.name_of, range(config.vocab_size, tokenizer.vocab_size))]
    return {
        "run": str(run.path),
        **({"commit": origin["commit"]} if "commit" in origin else {}),
        "model_type": origin["model_type"],
        "params": int(config.cost().params),
        "tokenizer": None if tokenizer is None else tokenizer.spec,
        "ignored_tokens": ignored,
    }


def import_plan(source: Path | str, revision: str | None = None) -> dict[str, Any]:
    """Return a summary of a Hugging Face folder or a model of the hub, read from its config.json alone.

    Raises UserError for a model that cannot be imported.
    """
    folder, origin = import_source(source, revision, config_only=True)
    return {**origin, **describe_folder(folder)}


@dataclass(frozen=True)
class InitialModel:
    """The initial model of a new run, which comes from another run or a Hugging Face folder."""

    name: str
    """Name of that run or folder, or org/name on the hub."""
    step: int
    """Step of that run; 0 for a folder."""
    model: Decoder
    recipe: Recipe
    """The recipe of the new run, with this model."""
    tokenizer: Tokenizer | None
    allow_same_tokens: bool
    """Accept data whose tokenizer has the same tokens, because the model was not trained in a run."""
    origin: dict[str, Any]
    """A dict with the entry IMPORTED of environment.json; empty for a model that was trained here."""


def read_import(
    source: Path | str,
    overrides: Sequence[str],
    recipe: Path | str | None = None,
    revision: str | None = None,
    tokenizer_path: Path | None = None,
    device: torch.device | str = "cpu",
    keep_bf16: bool = False,
) -> InitialModel:
    """Read a Hugging Face folder, or a model of the hub, as a run at step 0.

    recipe: for further training; its model is ignored; default: `default_sections`. tokenizer_path: the file of the
    tokenizer that the recipe names for its data; default: the folder's. keep_bf16: keep weights in bf16 if all are bf16
    and the run computes in bf16. Raises UserError for a model that cannot be imported exactly, and for mistakes in the
    recipe.
    """
    folder, origin = import_source(source, revision)
    imported = import_hf(folder)
    tokenizer = None
    if imported.tokenizer is not None:
        end = f"#{imported.eos}" if imported.eos else ""
        spec = f"{tokenizer_path or imported.tokenizer}{end}"
        with optional_tokenizer():
            tokenizer = JsonTokenizer(spec, read_text(imported.tokenizer), str(imported.tokenizer), imported.eos)
        tokenizer.as_pretrained(imported.token_ids)
    sections = default_sections(imported.n_positions) if recipe is None else read_recipe(recipe)
    apply_overrides(sections, overrides)
    data = dict(sections.get("data") or {})
    if tokenizer is not None and all(data.get(key) is None for key in ("path", "mixture", "tokenizer")):
        data["tokenizer"] = tokenizer.spec
    where = str(recipe or (origin["folder"] if "commit" in origin else folder))
    resolved = parse_recipe({**sections, "model": to_data(imported.config), "data": data}, where).resolved()
    resolved.check()
    resolved = resolved.settled(faster_precision)
    files = sorted((*folder.glob("*.json"), *folder.glob("*.safetensors")))
    record = {
        **origin,
        "model_type": imported.model_type,
        "n_positions": imported.n_positions,
        "token_ids": imported.token_ids,
        "config_token_ids": imported.config_token_ids,
        "settings": imported.settings,
        "files": {path.name: FileRecord.of(path).sha256 for path in files},
    }
    dtypes = {weight.dtype for weight in imported.weights.values()}
    is_bf16 = keep_bf16 and resolved.train.settled_precision == "bf16" and dtypes == {torch.bfloat16}
    model = blueprint(resolved.explicit_model).to(torch.bfloat16 if is_bf16 else torch.float32)
    allocate(model, device)
    model.set_weights(imported.take_weights())
    return InitialModel(origin["folder"], 0, model, resolved, tokenizer, True, {IMPORTED: record})
