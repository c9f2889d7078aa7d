"""One of the processes that share the models of folders, started with a file of what to do.

It holds `folders`, `batch`, `n_new`, and `out`: where the first process writes what it found of each folder.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM
from transformers.distributed import DistributedConfig

import widthwise.hf  # noqa: F401
from widthwise.training.distributed import leave


def _found(folder: str, batch: dict[str, torch.Tensor], n_new: int) -> dict[str, Any]:
    shared = DistributedConfig(tp_size=2, tp_plan="auto")
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=shared).eval()
    with torch.no_grad():
        logits = model(**batch).logits
    texts = [
        model.generate(**batch, max_new_tokens=n_new, do_sample=False, pad_token_id=0, cache_implementation=cache)
        for cache in (None, "static")
    ]
    model(**batch, labels=batch["input_ids"]).loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {
        "logits": logits,
        "texts": [text[:, batch["input_ids"].shape[1] :] for text in texts],
        "gradients": {
            name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in gradients.items()
        },
        "n_weights": sum((w.to_local() if isinstance(w, DTensor) else w).numel() for w in model.parameters()),
        "heads": dict(model.tp_plan)["model.layers.*.self_attn.q_proj"],
    }


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    said = json.loads(Path(sys.argv[1]).read_text())
    batch = {name: torch.tensor(rows) for name, rows in said["batch"].items()}
    found = {name: _found(folder, batch, said["n_new"]) for name, folder in said["folders"].items()}
    if torch.distributed.get_rank() == 0:
        torch.save(found, said["out"])
    leave()
