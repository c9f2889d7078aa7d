"""Tiny models of every kind with the byte tokenizer, in float64, and what a full softmax says of a text."""

from typing import Any

import numpy as np
import torch

from widthwise.config_io import parse
from widthwise.data.tokenizer import ByteTokenizer
from widthwise.evaluation.scorer import Scorer
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import merge

TOKENIZER = ByteTokenizer()
N_POSITIONS = 23
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "x": {"shape": {"kind": "explicit", "widths": [24, 8, 24]}},
    "hourglass": {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 7}},
    "moe": {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "ratio": 0.5}},
    "dynamic": {"ffn": {"kind": "dynamic", "d_ff": 11, "min_fraction": 0.1, "start": 0.5}},
    "virtual_width": {"residual": {"kind": "hyper_connections", "n_slots": 3, "slot_width": 8}},
    "learned_positions": {"positions": {"n_positions": N_POSITIONS}, "tie_embeddings": True},
    "further_heads": {"mtp": {"n_depths": 1}},
}

CLOZES = [
    {"context": "The gate stood open. Nobody had shut the", "continuation": "gate"},
    {"context": "", "continuation": "Once"},
    {"context": "Seven ships left the harbour and six came back to the ", "continuation": "harbour"},
    {"context": "In the naïve reading the word is a", "continuation": "noun"},
]
"""An empty context, and a space at the end of one."""
CHOICES = [
    {"query": "Question: dresser\n", "choices": ["oil the hinge", "finish it, with wood"], "gold": 1},
    {"query": "Question: What do plants take in?", "choices": ["light", "noise", "sand", "a"], "gold": 0},
    {"query": "Question: Which is warmest?", "choices": ["ice", "snow and rain", "fire — hot"], "gold": 2},
    {"query": "Question: Where does the river end?", "choices": ["in the sea", "at its spring"], "gold": 0},
]
SCHEMAS = [
    {"context_options": ["The cup broke the plate so the cup", "The cup broke the plate so the plate"],
     "continuation": "was thrown away.", "gold": 1},
    {"context_options": ["Maria taught Sarah, so Sarah", "Maria taught Sarah, so Maria"],
     "continuation": "learned much.", "gold": 0},
]  # fmt: skip


def tiny_model(kind: str = "x", seed: int = 3) -> Decoder:
    """Weights large enough that the predictions differ."""
    data = {
        "vocab_size": TOKENIZER.vocab_size,
        "d_model": 16,
        "n_layers": 3,
        "attention": {"head_dim": 4},
        "init": {"std": 0.3, "depth_scaled": False},
    }
    template = parse(ModelTemplate, merge(data, KINDS[kind]), "model")
    return build(template.resolve(N_POSITIONS), seed, dtype=torch.float64)


def tiny_scorer(kind: str = "x", max_length: int = 19, batch_size: int = 3, seed: int = 3) -> Scorer:
    return Scorer(tiny_model(kind, seed), TOKENIZER, max_length, batch_size)


@torch.no_grad()
def softmax_nats(model: Decoder, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The nats of each token but the first, given all before it and nothing else, and whether it is the argmax."""
    log_probs = model.eval()(torch.tensor([tokens[:-1]]))[0].log_softmax(dim=-1)
    targets = torch.tensor(tokens[1:])
    return -log_probs[torch.arange(len(targets)), targets].numpy(), (log_probs.argmax(dim=-1) == targets).numpy()
