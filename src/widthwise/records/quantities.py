"""The table of quantities that tables, figures, CSV, trends and fits show of a model, a run or a variant.

A new quantity is one entry of QUANTITIES; everything else reads it there.
"""

from collections.abc import Callable, Sequence

from widthwise.records.cost import PARTS, CostSummary, sum_of
from widthwise.records.loss_quantities import LOSSES
from widthwise.records.quantity import OfHeldOut, OfModel, OfRun, Quantity
from widthwise.records.record import Number
from widthwise.records.run import RunResult


def _params(part: str) -> Callable[[CostSummary], Number | None]:
    return lambda cost: cost.params.get(part)


def _flops(part: str) -> Callable[[CostSummary], Number | None]:
    return lambda cost: cost.flops_by_part.get(part)


def _training_flops(run: RunResult) -> Number | None:
    """Files of older versions have it in PFLOP/s-days alone."""
    if run.training_flops is None and run.pflops_days is not None:
        return run.pflops_days * 8.64e19
    return run.training_flops


QUANTITIES: Sequence[Quantity] = (
    OfRun("steps", "steps", lambda run: run.steps, 0),
    OfRun("tokens", "tokens", lambda run: run.tokens),
    *LOSSES,
    OfModel(
        "params",
        "parameters",
        _params("total"),
        None,
        "All parameters, embedding and head included.",
        "params",
        is_main=True,
        has_ratio=True,
    ),
    *(OfModel(f"params_{part}", f"parameters, {part}", _params(part)) for part in PARTS),
    OfModel(
        "layer_params",
        "parameters, layers without norms",
        lambda cost: sum_of(cost.params, ("attention", "ffn", "residual")),
        note="Parameters of the layers: attention, feed-forward and residual, without norms, embedding and head.",
        short="layer params",
        is_main=True,
        has_ratio=True,
    ),
    OfModel("active_params", "parameters, active", _params("active"), column="params_active", has_ratio=True),
    OfModel(
        "dead_params",
        "parameters that never learn",
        lambda cost: cost.params.get("dead") or None,
        note="Parameters whose gradient is always 0: they read coordinates of the stream that nobody wrote, or write "
        "coordinates that nobody reads.",
        short="dead",
        is_main=True,
    ),
    OfModel(
        "flops",
        "FLOPs per token, forward",
        lambda cost: cost.flops_per_token.forward,
        None,
        "Forward pass at the recipe's sequence length with full attention (every token attends to all positions), as "
        "papers count it. Causal counting, which needs half of that part, is in the cost table.",
        "FLOPs",
        "flops_per_token_forward",
        is_main=True,
        has_ratio=True,
    ),
    *(
        OfModel(f"flops_{part}", f"FLOPs per token, forward, {part}", _flops(part))
        for part in PARTS
        if part != "mtp"  # forward FLOPs leave it out
    ),
    OfModel(
        "flops_causal",
        "FLOPs per token, forward, causal",
        lambda cost: cost.flops_per_token.forward_causal,
        column="flops_per_token_forward_causal",
        has_ratio=True,
    ),
    OfModel(
        "flops_training",
        "FLOPs per token, training",
        lambda cost: cost.flops_per_token.training,
        column="flops_per_token_training",
    ),
    OfModel(
        "flops_training_mtp",
        "FLOPs per token, training, mtp",
        lambda cost: cost.flops_per_token.training_mtp,
        column="flops_per_token_training_mtp",
    ),
    OfModel("d_model", "d_model", lambda cost: cost.d_model, 0),
    OfModel(
        "average_width",
        "average width",
        lambda cost: cost.average_width,
        1,
        "Mean over layers of the width of the layer.",
        "width",
        is_main=True,
        has_ratio=True,
    ),
    OfModel("stream_width", "width of the stream", lambda cost: cost.stream_width, 0),
    OfModel("virtual_width", "virtual width, times d_model", lambda cost: cost.virtual_width, 2),
    OfModel(
        "kv_bytes",
        "KV bytes per token (bf16)",
        lambda cost: cost.kv_bytes_per_token,
        None,
        "Key and value cache of one token over all layers, in bf16.",
        "KV B",
        "kv_bytes_per_token",
        is_main=True,
        has_ratio=True,
    ),
    OfModel(
        "activation_bytes",
        "activation bytes per token (bf16)",
        lambda cost: cost.activation_bytes_per_token,
        short="act. B",
        column="activation_bytes_per_token",
        has_ratio=True,
    ),
    OfRun(
        "tokens_per_second",
        "tokens per second",
        lambda run: run.tokens_per_second,
        None,
        "Training throughput on the machine named under Environment, mean over seeds. An asterisk: other processes "
        "used the machine meanwhile, so that it is not comparable.",
        "tok/s",
        is_main=True,
        has_ratio=True,
        is_speed=True,
    ),
    OfRun("wall_seconds", "seconds", lambda run: run.wall_seconds, 1),
    OfRun("training_flops", "training FLOPs", _training_flops, has_ratio=True, is_cost=True),
    OfRun(
        "pflops_days",
        "PFLOP/s-days",
        lambda run: run.pflops_days,
        note="Training compute of all steps, in 8.64e19 FLOPs: a PFLOP per second for a day. Mean over seeds.",
        is_main=True,
        is_cost=True,
    ),
    OfRun(
        "peak_memory_bytes",
        "peak memory in bytes",
        lambda run: run.peak_memory_bytes,
        note="Most memory held in training: by tensors on a GPU, otherwise by the whole process. Mean over seeds.",
        is_main=True,
        is_cost=True,
    ),
)

QUANTITY = {quantity.name: quantity for quantity in QUANTITIES}
OF_MODELS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfModel)}
OF_RUNS = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfRun)}
OF_HELD_OUT = {quantity.name: quantity for quantity in QUANTITIES if isinstance(quantity, OfHeldOut)}
TITLES = {quantity.name: quantity.title for quantity in QUANTITIES}
