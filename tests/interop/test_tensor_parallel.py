"""`widthwise` folders whose matrices two processes share, by the plan of their config."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import VOCAB_SIZE, assert_close
from ranks import said_by_script
from widthwise_models import GROUPED, MODELS, NAMES, config_of, left_padded, loaded, own_model, prompts, written

from widthwise.config_io import parse
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelTemplate

SCRIPT = Path(__file__).with_name("tensor_parallel_ranks.py")
N_NEW = 3
SLOTS: dict[str, Any] = {**MODELS["slots"]["residual"], "n_slots": 8}
EVEN: dict[str, dict[str, Any]] = {
    **{key: {} for key in ("slim_grouped", "projection", "hourglass", "hourglass_shared", "moe", "dynamic", "mtp")},
    "slots": {"residual": SLOTS},
    "reordered": {"attention": GROUPED},
    "between_norms": {},
}
"""Those that are tried with an even number of key-value heads in all layers too, and what they have otherwise."""


def _even(name: str) -> ModelConfig:
    size = {"vocab_size": VOCAB_SIZE, "d_model": 48, "n_layers": 3, "ffn": {"kind": "swiglu", "ratio": 1.5}}
    data = {**size, **MODELS[name], **EVEN[name]}
    return parse(ModelTemplate, {**data, "shape": {**data["shape"], "quantum": 24}}).resolve(seq_len=16)


@pytest.mark.hard
def test_two_processes_make_what_one_makes(tmp_path: Path) -> None:
    """Logits, text from both caches, and gradients, each process with fewer weights."""
    torch.set_default_dtype(torch.float32)
    models = {name: own_model(config_of(name)) for name in NAMES}
    models |= {f"even {name}": own_model(_even(name)) for name in EVEN}
    folders = {name: written(model, tmp_path / name) for name, model in models.items()}
    batch = left_padded(prompts())
    said = {
        "folders": {name: str(folder) for name, folder in folders.items()},
        "batch": {name: rows.tolist() for name, rows in batch.items()},
        "n_new": N_NEW,
        "out": str(tmp_path / "found.pt"),
    }
    (tmp_path / "said.json").write_text(json.dumps(said))
    said_by_script(2, SCRIPT, tmp_path / "said.json", folder=tmp_path)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for name, folder in folders.items():
        _check(name, found[name], loaded(folder), batch)


def _check(name: str, found: dict[str, Any], alone: Any, batch: dict[str, torch.Tensor]) -> None:
    is_real = batch["attention_mask"].bool()
    with torch.no_grad():
        assert_close(found["logits"][is_real], alone(**batch).logits[is_real], what=f"{name} logits")
    text = alone.generate(**batch, max_new_tokens=N_NEW, do_sample=False, pad_token_id=0)
    for shared in found["texts"]:
        assert torch.equal(shared, text[:, -N_NEW:]), name
    alone(**batch, labels=batch["input_ids"]).loss.backward()
    gradients = {key: weight.grad for key, weight in alone.named_parameters() if weight.grad is not None}
    assert found["gradients"].keys() == gradients.keys(), name
    for key, gradient in gradients.items():
        assert_close(found["gradients"][key], gradient, what=f"{name} {key}")
    assert found["n_weights"] < 0.95 * sum(weight.numel() for weight in alone.parameters()), name
    assert (found["heads"] == "colwise") == name.startswith("even"), name
