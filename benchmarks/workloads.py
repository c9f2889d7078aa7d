"""What is timed: a training step, and the models it is taken of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.computing import Precision
from widthwise.config_io import parse
from widthwise.kernels.dispatch import autocast
from widthwise.model.config import ModelConfig
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import read_recipe

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TrainingStep:
    """Forward, backward and AdamW of one batch; weights and optimizer state in fp32, matrix products in `precision`."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], precision: Precision):
        self.model, self.loss = model, loss
        self.device = next(model.parameters()).device
        self.precision: Precision = precision
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> None:
        with autocast(self.device, self.precision):
            loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def state_bytes(self) -> int:
        """Weights and optimizer state."""
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.model.parameters(), *(value for value in states if isinstance(value, Tensor))]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Size:
    """A model of constant head_dim, and its batch."""

    d_model: int
    head_dim: int
    n_layers: int = 12
    vocab_size: int = 4096
    seq_len: int = 256
    batch_size: int = 4

    @property
    def name(self) -> str:
        return f"{self.n_layers}_layers_d{self.d_model}_head{self.head_dim}_seq{self.seq_len}"

    def template(self, shape: str = "uniform") -> ModelTemplate:
        return template(self.d_model, self.n_layers, self.head_dim, self.vocab_size, shape)

    def model(self, shape: str = "uniform") -> ModelConfig:
        return self.template(shape).resolve(self.seq_len)

    def batch(self) -> tuple[Tensor, Tensor]:
        return random_batch(self.vocab_size, self.batch_size, self.seq_len)


def random_batch(vocab_size: int, batch_size: int, seq_len: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Tokens and next tokens, (B, seq_len) each: views of one sequence, as the loader gives them."""
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(vocab_size, (batch_size, seq_len + 1), generator=generator).to(device)
    return batch[:, :-1], batch[:, 1:]


def relative_error(value: Tensor, reference: Tensor) -> float:
    """||value - reference|| / ||reference||."""
    return float((value - reference).norm() / reference.norm())


def template(d_model: int, n_layers: int, head_dim: int, vocab_size: int, shape: str = "uniform") -> ModelTemplate:
    """A model with constant head_dim; shapes other than uniform are solved for the uniform one's parameters."""
    solved = {} if shape == "uniform" else {"quantum": head_dim, "rounding": "balanced"}
    turn = {"bottleneck_layer": 0.75, "bottleneck_width": 0.3} if shape == "x" else {}
    data = {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "n_layers": n_layers,
        "attention": {"head_dim": head_dim},
        "shape": {"kind": shape, **turn, **solved},
    }
    return parse(ModelTemplate, data, "benchmark")


def recipe_model(name: str) -> tuple[ModelConfig, int, int]:
    """The model of a bundled recipe with explicit layers, its sequence length and its micro batch."""
    data = read_recipe(name)
    seq_len = data["seq_len"]
    return parse(ModelTemplate, data["model"], name).resolve(seq_len), seq_len, data["train"]["micro_batch_size"]


def cost_ratios(config: ModelConfig, baseline: ModelConfig, seq_len: int) -> dict[str, Any]:
    """What the cost model says of a model beside its baseline."""
    own, base = config.cost(), baseline.cost()
    return {
        "widths": config.widths,
        "params_ratio": own.params / base.params,
        "flop_ratio": own.forward_flops(seq_len) / base.forward_flops(seq_len),
        "flop_ratio_causal": own.forward_flops(seq_len, causal=True) / base.forward_flops(seq_len, causal=True),
        "kv_bytes_ratio": own.kv_bytes(64) / base.kv_bytes(64),
    }
