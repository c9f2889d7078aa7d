"""Importing a Hugging Face folder as a run directory at step 0."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, to_data
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import file_sha256, read_text
from widthwise.interop.hf_import import Imported, import_hf
from widthwise.model.decoder import build
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import KEY, TOKENIZER_KEY
from widthwise.runs.save import first_sections, write_first
from widthwise.yaml_io import apply_overrides, read_recipe

IMPORTED = "imported"
"""Where `environment.json` says what a run was imported from."""


def import_run(
    source: Path | str, out: Path | str, recipe: Path | str | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Writes the model of a Hugging Face folder as a run directory at step 0, and returns a summary.

    recipe: the run takes all its sections but the model. Raises UserError for what cannot be imported exactly, and
    where `out` holds a run already.
    """
    run = RunDir(out)
    if run.exists:
        raise UserError(f"{run.path}: holds a run already; name a new folder")
    imported = import_hf(source)
    tokenizer = _tokenizer(imported, run)
    sections = first_sections(imported.n_positions) if recipe is None else read_recipe(recipe)
    apply_overrides(sections, overrides)
    resolved = _recipe(imported, tokenizer, sections, str(recipe or source))
    model = build(resolved.explicit_model, seed=0)
    model.set_weights(imported.weights.items())
    write_first(run.path, resolved, model, tokenizer, _provenance(Path(source), imported, tokenizer))
    return {
        "run": str(run.path),
        "model_type": imported.model_type,
        "params": int(resolved.explicit_model.inference_cost().params),
        "tokenizer": None if tokenizer is None else tokenizer.spec,
    }


def _tokenizer(imported: Imported, run: RunDir) -> Tokenizer | None:
    """Under the name by which data for the run are prepared with it."""
    if imported.tokenizer is None:
        return None
    eos = f"#{imported.eos}" if imported.eos else ""
    spec = f"{run.tokenizer_folder / JsonTokenizer.file_name}{eos}"
    return JsonTokenizer(spec, read_text(imported.tokenizer), str(imported.tokenizer), imported.eos)


def _recipe(imported: Imported, tokenizer: Tokenizer | None, sections: dict[str, Any], where: str) -> Recipe:
    """With the imported model, and its tokenizer unless the recipe names data that have one."""
    data = dict(sections.get("data") or {})
    if tokenizer is not None and all(data.get(key) is None for key in ("path", "mixture", "tokenizer")):
        data["tokenizer"] = tokenizer.spec
    recipe = parse_recipe({**sections, "model": to_data(imported.config), "data": data}, where).resolved()
    recipe.check()
    return recipe


def _provenance(source: Path, imported: Imported, tokenizer: Tokenizer | None) -> dict[str, Any]:
    files = sorted((*source.glob("*.json"), *source.glob("*.safetensors")))
    return {
        KEY: None,
        TOKENIZER_KEY: None if tokenizer is None else {"spec": tokenizer.spec, "id": tokenizer.id},
        IMPORTED: {
            "folder": source.resolve().name,
            "model_type": imported.model_type,
            "n_positions": imported.n_positions,
            "token_ids": imported.token_ids,
            "files": {path.name: file_sha256(path) for path in files},
        },
    }
