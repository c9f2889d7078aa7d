"""Models read for use: of runs, and of Hugging Face folders, ours or those of transformers."""

import json
from pathlib import Path

import torch

from widthwise.config_io import UserError, require
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.architecture import Fields
from widthwise.interop.hf_import import CONFIG, TOKENIZER, WIDTHWISE, import_hf, token_named
from widthwise.model.decoder import build
from widthwise.run_dir import RunDir
from widthwise.runs.trained import LoadedModel, blamed_on, check_known, load_trained, usual_device
from widthwise.sizes import MOST_LAYERS


def load_model(
    path: Path | str, device: torch.device | str | None = None, step: int | None = None, attention: str | None = None
) -> LoadedModel:
    """The model of a run directory or of a Hugging Face folder. Raises UserError where it is neither, or damaged.

    A `widthwise` folder is read as a model of ours, any other by transformers. step: of the checkpoint of a run; its
    newest good one where not given. attention: as for `read_with_transformers`.
    """
    path = Path(path)
    if not is_run(path, step):
        return read_own_model(path, device) if is_own_format(path) else read_with_transformers(path, device, attention)
    return load_trained(path, device, step)


def load_decoder(path: Path | str, step: int | None = None) -> LoadedModel:
    """The model of a run, or of a Hugging Face folder that `widthwise import` reads, as a model of ours."""
    path = Path(path)
    return load_trained(path, step=step) if is_run(path, step) else read_own_model(path)


def is_run(path: Path, step: int | None) -> bool:
    """Tell a run from a Hugging Face folder. Raises UserError for the step of a folder."""
    if RunDir(path).exists or not (path / CONFIG).is_file():
        return True
    if step is not None:
        raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and has no steps")
    return False


def is_own_format(path: Path) -> bool:
    """Return True for a folder that `widthwise export` wrote as a `widthwise` model."""
    return read_json_mapping(path / CONFIG).get("model_type") == WIDTHWISE.model_type


def check_tokenizer(path: Path) -> None:
    """Raises UserError for a folder without a tokenizer."""
    if not (path / TOKENIZER).is_file():
        raise UserError(f"{path}: has no {TOKENIZER}, which is needed for text")


def read_own_model(path: Path, device: torch.device | str | None = None) -> LoadedModel:
    """A folder that `import_hf` reads, without transformers. Raises UserError where it is damaged."""
    check_tokenizer(path)
    device = usual_device(device)
    imported, tokenizer_path = import_hf(path), path / TOKENIZER
    tokenizer = JsonTokenizer(str(tokenizer_path), read_text(tokenizer_path), str(tokenizer_path), imported.eos)
    check_known(tokenizer, imported.config.vocab_size)
    model = build(imported.config, seed=0, device=device)
    model.set_weights(imported.take_weights())
    tokenizer = tokenizer.as_pretrained(imported.token_ids)
    return LoadedModel(path, model.eval(), tokenizer, device, imported.n_positions)


def read_with_transformers(
    path: Path, device: torch.device | str | None = None, attention: str | None = None
) -> LoadedModel:
    """The causal language model that transformers makes of a folder, from safetensors and with its own code only.

    attention: its name for a way to compute attention; None: the one it prefers. Raises UserError for a folder of which
    it makes none.
    """
    transformers = require("transformers", "hf")
    transformers.logging.disable_progress_bar()
    check_tokenizer(path)
    _check_config(path)
    device = usual_device(device)
    with blamed_on(path):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
        )
        if found["missing_keys"]:  # transformers would make them up
            raise UserError(f"{path}: has no tensor {min(found['missing_keys'])}, which {CONFIG} asks for")
        model.to(device).eval()
    definition = read_text(path / TOKENIZER)
    ids = [config.eos_token_id for config in (model.generation_config, model.config)]
    ends = next((index for index in ids if index is not None), [])
    eos = token_named(definition, ends, str(path / TOKENIZER))
    tokenizer = JsonTokenizer(str(path / TOKENIZER), definition, str(path / TOKENIZER), eos)
    check_known(tokenizer, model.get_input_embeddings().num_embeddings)
    tokenizer = tokenizer.as_pretrained({"eos_token_id": ends})
    return LoadedModel(path, model, tokenizer, device, getattr(model.config, "max_position_embeddings", None))


def _check_config(path: Path) -> None:
    """Raises UserError for sizes that transformers would take without asking, and memory with them; and for the name of
    an implementation, which it may fetch from the network and run."""
    data = read_json_mapping(path / CONFIG)
    if '"_attn_implementation": ' in json.dumps(data):
        raise UserError(f"{path / CONFIG}: _attn_implementation: is not read, because it may name code; leave it out")
    fields = Fields(data, str(path / CONFIG))
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        if fields.get(key) is not None:
            fields.size(key, most=MOST_LAYERS)
    for key in ("max_position_embeddings", "n_positions"):
        if fields.get(key) is not None:
            fields.size(key)
