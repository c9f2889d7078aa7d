"""A step's predicted time is a sum of counts times rates; the counts are checked against the operations of torch."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from widthwise.config_io import parse
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.recipe.step_time import predicted_step
from widthwise.records.rates import Rates
from widthwise.shape.template import ModelTemplate

SEQ_LEN = 7
ABOUT = {"machine": "none", "torch": "none", "n_threads": 1, "precision": "fp32"}
NOTHING = Rates.model_validate(ABOUT | {name: 0 for name in Rates.model_fields if name.startswith("seconds_per_")})


def resolved(**changes: Any) -> ModelConfig:
    data = {"vocab_size": 53, "d_model": 24, "n_layers": 4, "attention": {"head_dim": 6}, **changes}
    return parse(ModelTemplate, data).resolve(SEQ_LEN)


class Products(TorchDispatchMode):
    """Numbers that matrix products read and write beside their weights, and how many products there were."""

    def __init__(self) -> None:
        super().__init__()
        self.n_elements = self.n_products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            (n_tokens, n_in), n_out = args[0].shape, args[1].shape[1]
            self.n_elements += n_tokens * (n_in + n_out)
            self.n_products += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_embeddings": True},
        {"shape": {"kind": "x", "bottleneck_width": 0.5}},
        {"residual": {"kind": "plain", "resize": "projection"}, "shape": {"kind": "growing"}},
        {"ffn": {"kind": "hourglass", "n_blocks": 3}},
        {"ffn": {"kind": "mlp"}, "attention": {"head_dim": 6, "kv_group_size": 2}},
    ],
)
def test_the_elements_and_the_number_of_products_are_those_of_a_forward_pass(changes):
    model, cost = resolved(**changes), resolved(**changes).cost()
    tokens = torch.zeros(3, SEQ_LEN, dtype=torch.long)
    with torch.no_grad(), Products() as counted:
        Decoder(model)(tokens)
    assert counted.n_elements == 3 * SEQ_LEN * cost.product_elements
    assert counted.n_products == cost.n_products


def test_a_mixture_has_the_products_of_all_experts_and_moves_the_numbers_of_the_chosen():
    dense, mixture = (
        resolved(ffn=ffn).cost()
        for ffn in ({"kind": "swiglu", "d_ff": 10}, {"kind": "moe", "n_experts": 5, "top_k": 2, "d_expert": 10})
    )
    n_layers, per_expert, router = 4, 2 * (24 + 10) + 10 + 24, 24 + 5
    assert mixture.product_elements - dense.product_elements == n_layers * (per_expert + router)
    assert mixture.n_products - dense.n_products == n_layers * (4 * 3 + 1)


def test_every_rate_is_multiplied_by_its_count():
    """14 tokens in two sequences of 7, a pass each: 4 layers of 4 heads of 6, whose scores are a half of a square."""
    model, cost = resolved(), resolved().cost()
    counts = {
        "seconds_per_flop": ("products", 3 * 14 * cost.flops),
        "seconds_per_product_element": ("products", 14 * cost.product_elements),
        "seconds_per_product": ("products", 2 * cost.n_products),
        "seconds_per_score_flop": ("attention", 14 * 3.5 * 4 * (4 * 24)),
        "seconds_per_score": ("attention", 14 * 3.5 * 4 * 4),
        "seconds_per_kept_byte": ("elementwise", 14 * cost.activation_bytes(4)),
        "seconds_per_logit": ("elementwise", 14 * 53),
        "seconds_per_param": ("update", cost.params),
    }
    for rate, (part, count) in counts.items():
        step = predicted_step(model, 14, SEQ_LEN, NOTHING.with_changes(**{rate: 0.5}), n_passes=2)
        assert getattr(step, part) == step.total == 0.5 * count


def test_bf16_keeps_fewer_bytes_and_further_heads_have_logits_of_their_own():
    model = resolved(mtp={"n_depths": 2})
    per_byte = NOTHING.with_changes(precision="bf16", seconds_per_kept_byte=1.0)
    assert predicted_step(model, 14, SEQ_LEN, per_byte).total == 14 * model.cost().activation_bytes(2)
    per_logit = NOTHING.with_changes(seconds_per_logit=1.0)
    assert predicted_step(model, 14, SEQ_LEN, per_logit).total == 14 * 53 * 3
