"""The plugin with which vLLM serves exported models of model_type `widthwise`.

vLLM finds `register` in the entry point group `vllm.general_plugins` and calls it in each process. The model is in
`vllm_model`, which is imported when a model is loaded.
"""

from typing import Any

from widthwise.mistakes import UserError

ARCHITECTURE = "WidthwiseForCausalLM"
RESIDUALS = ("plain",)
FEED_FORWARDS = ("swiglu", "hourglass")
SUPPORTED = (
    f"residual {RESIDUALS[0]}, feed_forward {' or '.join(FEED_FORWARDS)}, no attention_window, no caps, "
    "one head_dim in all layers and for values too (`export --pad-heads`); transformers runs everything else"
)

STACKED: dict[str, tuple[str, str | int]] = {
    ".q_proj": (".qkv_proj", "q"),
    ".k_proj": (".qkv_proj", "k"),
    ".v_proj": (".qkv_proj", "v"),
    ".gate_proj": (".gate_up_proj", 0),
    ".up_proj": (".gate_up_proj", 1),
}
"""Part of a tensor's name -> part of the name of the parameter that stacks several tensors, and vLLM's shard id."""
SKIPPED = {"mtp.": None}
"""Prefixes of tensors that are not loaded (None for vLLM's `WeightsMapper`): MTP heads."""


def register() -> None:
    """Register the model with vLLM and transformers; may be called several times."""
    from transformers import AutoConfig
    from vllm import ModelRegistry  # pyright: ignore[reportMissingImports]

    from widthwise.interop.configuration_widthwise import WidthwiseConfig

    AutoConfig.register(WidthwiseConfig.model_type, WidthwiseConfig, exist_ok=True)
    ModelRegistry.register_model(ARCHITECTURE, f"widthwise.interop.vllm_model:{ARCHITECTURE}")


def check_supported(config: Any, where: str, n_devices: int = 1) -> None:
    """Raise UserError for a WidthwiseConfig that `vllm_model` cannot run.

    where: name of the folder in errors; n_devices: number of devices that share each layer (`tensor_parallel_size`).
    """
    unsupported = []
    if config.residual["kind"] not in RESIDUALS:
        unsupported.append(f"residual {config.residual['kind']}")
    if config.logit_cap is not None:
        unsupported.append(f"logit_cap {config.logit_cap}")
    layers = list(config.per_layer_config)
    for index, layer in enumerate(layers, start=1):
        kind = layer.feed_forward["kind"]
        if kind not in FEED_FORWARDS:
            unsupported.append(f"layer {index}: feed_forward {kind}")
        for key in ("attention_window", "attention_score_cap"):
            if getattr(layer, key) is not None:
                unsupported.append(f"layer {index}: {key} {getattr(layer, key)}")
        sizes = {layers[0].head_dim, layer.head_dim, layer.v_head_dim or layer.head_dim}
        if len(sizes) > 1:
            unsupported.append(f"layer {index}: head sizes {', '.join(map(str, sorted(sizes)))}")
    if unsupported:  # the first is enough for an error
        raise UserError(f"{where}: vLLM cannot run this model: {unsupported[0]}; supported: {SUPPORTED}")
    if n_devices > 1:
        for index, layer in enumerate(layers, start=1):
            _check_split(layer, f"{where}: layer {index}", n_devices)


def _check_split(layer: Any, where: str, n_devices: int) -> None:
    """Raise UserError unless every device gets whole heads and equally many hidden units, and qk_norm is over heads."""
    n_heads = layer.num_attention_heads
    n_kv_heads = layer.num_key_value_heads
    setting = f"tensor_parallel_size = {n_devices}"
    if n_heads % n_devices:
        raise UserError(f"{where}: num_attention_heads: got {n_heads}; allowed: multiples of {setting}")
    if n_kv_heads % n_devices and n_devices % n_kv_heads:
        raise UserError(f"{where}: num_key_value_heads: got {n_kv_heads}; allowed: multiples or divisors of {setting}")
    ffn = layer.feed_forward
    hidden = ffn["d_ff"] if ffn["kind"] == "swiglu" else ffn["d_hidden"]  # may list all blocks
    if any(width % n_devices for width in (hidden if isinstance(hidden, list) else [hidden])):
        raise UserError(f"{where}: feed_forward: got {ffn}; allowed: widths that are multiples of {setting}")
    if layer.qk_norm is not None and layer.qk_norm["over"] != "head":
        raise UserError(f"{where}: qk_norm: got over {layer.qk_norm['over']}; allowed with {setting}: over head")
