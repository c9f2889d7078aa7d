"""How long a training step takes: the cost model's counts times what was measured of a machine."""

from dataclasses import asdict, dataclass

from widthwise.model.config import ModelConfig
from widthwise.records.rates import Rates

BYTES_PER_ELEMENT = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by what takes them."""

    products: float
    """Matrix products, attention and the head's included but those of attention's scores."""
    attention: float
    """Scores, softmax and weighted sums."""
    elementwise: float
    """Norms, activations, residual additions, and the softmax of the loss."""
    update: float
    """What each parameter takes, however many tokens a step has."""

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


def predicted_step(model: ModelConfig, n_tokens: int, seq_len: int, rates: Rates, n_passes: int = 1) -> StepTime:
    """The predicted time of a step over n_tokens in sequences of seq_len, in n_passes passes.

    Layers are supposed to run once, without boundaries of documents in a sequence, and AdamW to update the weights.
    """
    cost, n_pairs = model.cost(), n_tokens * seq_len / 2
    n_heads = sum(layer.attention.n_heads for _, layer in model.named_layers())
    n_heads_of_loss = 1 if model.mtp is None else 1 + model.mtp.n_depths
    return StepTime(
        products=n_tokens * (3 * cost.flops * rates.seconds_per_flop)
        + n_tokens * cost.product_elements * rates.seconds_per_product_element
        + n_passes * cost.n_products * rates.seconds_per_product,
        attention=n_pairs
        * (cost.flops_per_context_token * rates.seconds_per_score_flop + n_heads * rates.seconds_per_score),
        elementwise=n_tokens
        * (
            cost.activation_bytes(BYTES_PER_ELEMENT[rates.precision]) * rates.seconds_per_kept_byte
            + n_heads_of_loss * model.vocab_size * rates.seconds_per_logit
        ),
        update=cost.params * rates.seconds_per_param,
    )
