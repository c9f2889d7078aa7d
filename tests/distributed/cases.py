"""Runs of every kind of model that several processes must train as one does."""

from growing_runs import APART, MUON, TWICE
from tiny_runs import tiny_recipe

from widthwise.recipe.recipe import Recipe

STEPS = 11
UNIFORM = ("model.n_layers=2", "model.shape={kind: uniform}")
SLOTS = "model.residual={kind: hyper_connections, slot_width: 8, n_slots: 3"
ONE_BY_ONE = "train.micro_batch_size=1"
"""For objectives in which the sequences of a forward pass meet: on any number of processes they meet nobody."""
IN_PAIRS = "train.micro_batch_size=2"
"""As many sequences in a forward pass as each of two processes has of a step."""

KINDS: dict[str, tuple[str, ...]] = {
    "x, carried": (),
    "x, zero": ("model.residual={kind: plain, resize: zero}", "model.norm={placement: reordered}"),
    "x, projected": ("model.residual={kind: plain, resize: projection}", "optimizer.lr_follows_layer_width=true"),
    "hourglass": (*UNIFORM, "model.ffn={kind: hourglass, n_blocks: 2, d_hidden: 5}"),
    "mixture": (
        *UNIFORM,
        ONE_BY_ONE,
        "model.ffn={kind: moe, n_experts: 5, top_k: 2, ratio: 0.5, n_shared_experts: 1}",
        "train.z_loss=0.001",
    ),
    "dynamic": (
        *UNIFORM,
        ONE_BY_ONE,
        "model.ffn={kind: dynamic, ratio: 4, score: {kind: linear}, mask: {kind: ste}}",
        "train.width_budget={kind: lagrangian, target: 0.6, rate: 0.05}",
        "train.nested={}",
    ),
    "slots": (f"{SLOTS}}}",),
    "slots, static": (*UNIFORM, f"{SLOTS}, dynamic: false, embedding: expand}}", "model.tie_embeddings=true"),
    "slots, doubly stochastic": (*UNIFORM, "model.residual={kind: manifold, n_slots: 3}", "model.mtp={n_depths: 1}"),
    "further heads": (
        *UNIFORM,
        f"{SLOTS}, embedding: slot, reduce: slot}}",
        "model.mtp={n_depths: 2}",
        "model.tie_embeddings=true",
    ),
    "positions": (
        *UNIFORM,
        "model.positions={n_positions: 19}",
        "model.norm={kind: layer}",
        "model.ffn={kind: mlp, d_ff: 11, bias: true}",
        "model.attention={head_dim: 8, rope_base: null, out_bias: true}",
    ),
    "documents apart": (
        *UNIFORM,
        "data.mask_documents=true",
        "data.reset_positions=true",
        "seq_len=151",
        "train.validation_tokens=755",
        "model.mtp={n_depths: 1}",
    ),
    "muon": (*UNIFORM, MUON, "model.ffn={kind: hourglass, n_blocks: 2, d_hidden: 3}"),
    "grown": (TWICE,),
    "grown, apart": APART,
}
"""Name -> overrides of `tiny_recipe`. Hidden sizes of 3 and 5, and 3 slots, leave some of 4 processes without rows."""

ON_FOUR = ("x, carried", "hourglass", "mixture", "dynamic", "slots", "further heads", "positions", "muon")
"""Those that 4 processes train: two copies of the model, each shared by two."""
WITHOUT_COPY = ("slots", "muon")
"""Those that 4 processes share without a second copy."""
BITWISE: dict[str, tuple[str, ...]] = {
    "fp32": ("x, carried", IN_PAIRS),
    "bf16": ("x, carried", IN_PAIRS, "train.precision=bf16"),
    "mixture": ("mixture", IN_PAIRS),
    "muon": ("muon", IN_PAIRS),
    "grown": ("grown", IN_PAIRS),
    "grown, apart": ("grown, apart", IN_PAIRS),
}
"""Name -> what one process and two that each hold the whole model train to the same bits."""
CHECKPOINTED = "train.activation_checkpointing=layer"
COMPILED: dict[str, tuple[str, ...]] = {
    "x, carried": ("train.compile=true",),
    "further heads": ("train.compile=true", CHECKPOINTED),
}
"""Name -> overrides of the case of that name."""


def case(name: str, *overrides: str) -> Recipe:
    """4 sequences a step and a record of each; validations of two batches, whose second is smaller."""
    common = (f"train.steps={STEPS}", "train.log_every=1", "train.validate_every=6", "train.checkpoint_every=null")
    return tiny_recipe(*common, "train.micro_batch_size=4", *KINDS[name], *overrides)
