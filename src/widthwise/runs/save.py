"""Run directories at step 0, on which every verb works: of a model in memory, or of a Hugging Face folder."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import UserError, checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.identity import IMPORTED, describe_difference, unseen_data
from widthwise.data.json_tokenizer import JsonTokenizer, open_tokenizer
from widthwise.data.mixture import OpenedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import file_sha256, new_folder, read_text
from widthwise.interop.hf_import import import_hf, optional_tokenizer
from widthwise.interop.hub import import_source
from widthwise.model.decoder import Decoder, allocate, blueprint, build
from widthwise.recipe.recipe import Recipe, load_recipe, parse_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment
from widthwise.runs.speed import faster_precision
from widthwise.runs.trained import check_known, check_tokens, check_vocabulary, usual_seq_len
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
    """Write a model, as a custom training loop leaves it, as a run directory at step 0, and return its path.

    `eval --text`, `analyze --text`, `generate`, `grow`, `export` and `resume` then work as on any run.
    tokenizer: as `PreparedData.tokenizer` gives it, or a spec such as `bytes` or the path of a tokenizer.json; without
    one only what needs no text works. recipe: how the run would be trained further, but for its model; gentle settings
    on the default corpus where not given. seq_len: tokens per window; the recipe's, or at most 1024, where not given.
    data: what it was trained on, if that is what the recipe names; then `eval` and `analyze` need no text, as they read
    the held-out part. The model stays as it is; weights are saved as fp32. Raises UserError for a mistake in the
    recipe, for a tokenizer with more tokens than the model knows or another than that of the data, and where `folder`
    exists.
    """
    known = open_tokenizer(str(tokenizer)) if isinstance(tokenizer, (str, Path)) else tokenizer
    if known is not None:
        check_known(known, model.config.vocab_size)
    resolved = _recipe(model, known, recipe, seq_len)
    provenance = _provenance(known, resolved, data)
    copied = build(model.config, seed=0)
    copied.set_weights((name, parameter.detach()) for name, parameter in model.named_parameters())
    write_first(Path(folder), resolved, copied, known, provenance)
    return Path(folder)


def _provenance(known: Tokenizer | None, recipe: Recipe, data: OpenedData | None) -> dict[str, Any]:
    """Return the entries of environment.json on the tokens that the model knows and the data that it has seen."""
    if data is None:
        return unseen_data(known)
    identity = data.identity
    named = open_data(recipe.data).identity
    if identity != named:
        given, other = describe_difference(identity, named)
        raise UserError(f"data: got {given}; the recipe names {other}")
    if known is None or (identity.tokenizer.spec, identity.tokenizer.id) != (known.spec, known.id):
        raise UserError(f"data: was tokenised by {identity.tokenizer.spec}, not by the tokenizer that is given")
    return identity.record()


def _recipe(
    model: Decoder, tokenizer: Tokenizer | None, given: Recipe | Path | str | None, seq_len: int | None
) -> Recipe:
    """The recipe of the run, checked."""
    if given is None:
        n_positions = None if model.positions is None else model.positions.n_positions
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
        "seq_len": usual_seq_len(n_positions),
        "optimizer": {"kind": "adamw", "lr": 2e-5},
        "schedule": {"kind": "wsd", "warmup_steps": 50},
        "train": {"steps": 1000, "batch_size": 8, "micro_batch_size": 1},
    }


def write_first(
    out: Path,
    recipe: Recipe,
    model: Decoder,
    tokenizer: Tokenizer | None,
    provenance: Mapping[str, Any],
    write_records: Callable[[Path], Mapping[str, Any]] = lambda folder: {},
) -> None:
    """Writes the run directory of a model at step 0, whole or not at all.

    recipe: resolved, with the model's config; provenance: entries of environment.json; write_records: adds files to the
    folder and returns more such entries.
    """
    recipe = recipe.settled(faster_precision)
    with new_folder(out) as folder:
        partial = RunDir(folder)
        partial.begin(to_yaml(recipe), {**environment(), **provenance, **write_records(folder)})
        if tokenizer is not None:
            tokenizer.save(partial.tokenizer_folder)
        optimizer = recipe.optimizer.build(model)
        state = RunState(recipe.train.loss_window_steps)
        with torch.random.fork_rng():
            torch.manual_seed(recipe.train.seed)  # the random state is part of the checkpoint
            snapshot = checkpoint.Snapshot.of(model, optimizer)
            checkpoint.write(partial.checkpoints, 0, snapshot, state.as_data(), partial.seal())


def import_run(
    source: Path | str,
    out: Path | str,
    recipe: Path | str | None = None,
    overrides: Sequence[str] = (),
    revision: str | None = None,
) -> dict[str, Any]:
    """Writes the model of a Hugging Face folder as a run directory at step 0, and returns a summary.

    source: the folder, or `org/name` or `hf://org/name` of the hub. recipe: the run takes all its sections but the
    model. revision: on the hub: branch, tag or commit. Raises UserError for what cannot be fetched, or not be imported
    exactly, and where `out` holds a run already.
    """
    run = RunDir(out)
    if run.exists:
        raise UserError(f"{run.path}: already holds a run; choose a new folder")
    if changed := [each for each in overrides if re.match(r"\s*model\b", each)]:
        raise UserError(f"{changed[0]}: the model is that of {source}; `widthwise grow` changes it after the import")
    imported = read_import(source, overrides, recipe, revision, run.tokenizer_folder / JsonTokenizer.file_name)
    config = imported.model.config
    tokenizer = imported.tokenizer
    write_first(run.path, imported.recipe, imported.model, tokenizer, {**unseen_data(tokenizer), **imported.origin})
    origin = imported.origin[IMPORTED]
    ignored = [] if tokenizer is None else [*map(tokenizer.name_of, range(config.vocab_size, tokenizer.vocab_size))]
    return {
        "run": str(run.path),
        **({"commit": origin["commit"]} if "commit" in origin else {}),
        "model_type": origin["model_type"],
        "params": int(config.inference_cost().params),
        "tokenizer": None if tokenizer is None else tokenizer.spec,
        "ignored_tokens": ignored,
    }


@dataclass(frozen=True)
class Beginning:
    """A model with which a new run begins, and what that run inherits."""

    name: str
    """Name of the run or the folder that the model comes from, or org/name on the hub."""
    step: int
    """Step of that run."""
    model: Decoder
    recipe: Recipe
    """The recipe of the new run, with this model."""
    tokenizer: Tokenizer | None
    is_free: bool
    """The model has seen no data in a run, so that another tokenizer with the same tokens will do."""
    origin: dict[str, Any]
    """The entry IMPORTED of environment.json, if there is one."""

    def check_tokenizer(self, given: Tokenizer) -> None:
        """Raise UserError for the tokenizer of other data if the model does not know its tokens."""
        if self.tokenizer is not None and self.tokenizer.id != given.id:
            check_tokens(self.tokenizer, given, self.is_free)
        check_vocabulary(self.model.config.vocab_size, given)


def read_import(
    source: Path | str,
    overrides: Sequence[str],
    recipe: Path | str | None = None,
    revision: str | None = None,
    tokenizer_path: Path | None = None,
    device: torch.device | str = "cpu",
    stays_narrow: bool = False,
) -> Beginning:
    """Read a Hugging Face folder, or a model of the hub, as a run at step 0.

    recipe: of further training, but for its model; gentle settings if omitted. tokenizer_path: the file by which the
    recipe names the tokenizer of its data; by default that of the folder. stays_narrow: keep weights in bf16 if all are
    and the run computes in bf16. Raises UserError for a model that cannot be imported exactly, and for mistakes in the
    recipe.
    """
    folder, origin = import_source(source, revision)
    imported = import_hf(folder)
    tokenizer = None
    if imported.tokenizer is not None:
        spec = f"{tokenizer_path or imported.tokenizer}{f'#{imported.eos}' if imported.eos else ''}"
        with optional_tokenizer():
            tokenizer = JsonTokenizer(spec, read_text(imported.tokenizer), str(imported.tokenizer), imported.eos)
        tokenizer.as_pretrained(imported.token_ids)
    sections = first_sections(imported.n_positions) if recipe is None else read_recipe(recipe)
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
        "files": {path.name: file_sha256(path) for path in files},
    }
    dtypes = {weight.dtype for weight in imported.weights.values()}
    is_narrow = stays_narrow and resolved.train.settled_precision == "bf16" and dtypes == {torch.bfloat16}
    model = blueprint(resolved.explicit_model).to(torch.bfloat16 if is_narrow else torch.float32)
    allocate(model, device)
    model.set_weights(imported.take_weights())
    return Beginning(origin["folder"], 0, model, resolved, tokenizer, True, {IMPORTED: record})
