"""Tiny runs whose model grows, of every kind of growth and of optimizer."""

UNIFORM = "model.shape={kind: uniform}"
MUON = "optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.01}}"
WIDER_AND_DEEPER = "{d_model: 24, n_layers: 5, shape: {kind: explicit, widths: [32, 24, 24, 24, 32]}}"
DEEPER = "{d_model: 24, n_layers: 5}"
WIDER_FFN = "{ffn: {kind: swiglu, ratio: 6}}"
TWICE = f"growth=[{{at_step: 4, model: {WIDER_AND_DEEPER}}}, {{at_step: 7, model: {WIDER_FFN}}}]"
DYNAMIC = "model.ffn={kind: dynamic, ratio: 4, score: {kind: linear}, mask: {kind: ste}}"
BUDGET = "train.width_budget={kind: lagrangian, target: 0.6, rate: 0.05}"
SLOTS = "model.residual={kind: hyper_connections, slot_width: 8, n_slots: 4}"

APART = (
    UNIFORM,
    MUON,
    "growth=[{at_step: 4, model: {d_model: 24, n_layers: 5, ffn: {kind: swiglu, ratio: 5}}, rewarmup_steps: 0,"
    " freeze_steps: 2}]",
)

GROWING = {
    "twice": (TWICE,),
    "muon, bf16": (TWICE, MUON, "train.precision=bf16"),
    "dynamic": (
        UNIFORM,
        DYNAMIC,
        BUDGET,
        "train.nested={}",
        "growth=[{at_step: 4, model: {d_model: 24, n_layers: 5}}]",
    ),
    "slots": (UNIFORM, SLOTS, "model.mtp={}", "growth=[{at_step: 4, model: {residual: {n_slots: 6}}}]"),
    "experts": (
        UNIFORM,
        MUON,
        "growth=[{at_step: 4, model: {ffn: {kind: moe, n_experts: 4, top_k: 2, d_expert: 64}}},"
        " {at_step: 6, model: {ffn: {n_experts: 8, top_k: 4, d_expert: 32}}}]",
    ),
    "converted": (
        UNIFORM,
        "growth=[{at_step: 4, model: {ffn: {kind: hourglass, n_blocks: 2, ratio: 4}, mtp: {}}}]",
    ),
    "made dynamic": (UNIFORM, BUDGET, "growth=[{at_step: 4, model: {ffn: {kind: dynamic, ratio: 4}}}]"),
    "apart": APART,
    "without warm-up": (UNIFORM, "growth=[{at_step: 4, model: {n_layers: 5}, rewarmup_steps: 0}]"),
}
"""Name -> overrides of `tiny_recipe`, 9 steps."""
