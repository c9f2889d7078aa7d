"""The `model_type` widthwise, for models that no other format can express.

Its config.json has one value of each key for all layers, and the exceptions of single layers. Transformers runs
`modeling_widthwise`, which an export can copy into the folder, so that the model runs without this package.
"""

from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from widthwise.config_io import check_one_of, parse, to_data
from widthwise.interop.architecture import Architecture, Fields, HFTensor
from widthwise.interop.family import RotaryDecoder
from widthwise.mistakes import UserError, shortened
from widthwise.model.axes import Vector
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import blueprint
from widthwise.sizes import MOST_LAYERS

MODEL_KEYS = {
    "vocab_size": "vocab_size",
    "embedding_size": "d_model",
    "residual": "residual",
    "final_norm": "final_norm",
    "final_norm_width": "final_norm_width",
    "mtp": "mtp",
    "tie_word_embeddings": "tie_embeddings",
    "embedding_multiplier": "embedding_multiplier",
    "logit_scale": "logit_multiplier",
    "logit_cap": "logit_cap",
    "weight_init": "init",
}
"""Keys of config.json -> fields of the model."""

LAYER_KEYS = {
    "layer_width": ("d_model",),
    "layer_in": ("d_in",),
    "layer_out": ("d_out",),
    "norm_placement": ("norm_placement",),
    "attention_norm": ("attention_norm",),
    "ffn_norm": ("ffn_norm",),
    "num_attention_heads": ("attention", "n_heads"),
    "num_key_value_heads": ("attention", "n_kv_heads"),
    "head_dim": ("attention", "head_dim"),
    "v_head_dim": ("attention", "v_head_dim"),
    "attention_scale": ("attention", "scale"),
    "rope_theta": ("attention", "rope_base"),
    "rope_frequencies": ("attention", "rope_frequencies"),
    "attention_bias": ("attention", "bias"),
    "attention_out_bias": ("attention", "out_bias"),
    "qk_norm": ("attention", "qk_norm"),
    "attention_window": ("attention", "window"),
    "attention_score_cap": ("attention", "score_cap"),
    "feed_forward": ("ffn",),
}
"""Keys of config.json that may differ by layer -> paths of fields in the layer."""

NAMES = {
    "embedding": "embed_tokens",
    "positions": "embed_positions",
    "attention": "self_attn",
    "ffn": "mlp",
    **{ours: theirs for theirs, (ours,) in RotaryDecoder.projections.items()},
    **{ours: theirs for theirs, (ours,) in RotaryDecoder.feed_forward.items()},
    "w_router": "router",
    "w_shared_gate": "shared_gate",
    "head": "lm_head",
    "exit": None,
    "resize": None,
    "w_expand": None,
    "w_reduce": None,
}
"""Parts of our parameter names -> parts of the usual names of tensors; None: dropped."""

# The kinds that `modeling_widthwise` supports.
FEED_FORWARDS = ("swiglu", "mlp", "hourglass", "moe", "dynamic")
RESIDUALS = ("plain", "hyper_connections", "manifold")


class Widthwise(Architecture):
    model_type = "widthwise"
    class_name = "WidthwiseForCausalLM"
    base_prefix = "model."
    default_positions = None
    buffers = r"(?!)"  # matches nothing

    def read(self, fields: Fields) -> ModelConfig:
        n_layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
        overrides = fields.get("per_layer_config", {})
        if not isinstance(overrides, dict) or not all(isinstance(changes, dict) for changes in overrides.values()):
            fields.refuse("per_layer_config", "a mapping from layers to mappings")
        where = f"{fields.where}: per_layer_config"
        n_digits = len(str(MOST_LAYERS))
        known = (*LAYER_KEYS, "intermediate_size")  # the last is for other tools: feed_forward has the same size
        for number, changes in overrides.items():
            if not number.isdecimal() or len(number) > n_digits or int(number) >= n_layers:
                raise UserError(f"{where}: got {shortened(number)}; allowed: the number of a layer below {n_layers}")
            for key in changes:
                check_one_of(f"{where}: {number}", key, known)
        by_layer = {int(key): changes for key, changes in overrides.items()}
        layers: list[dict[str, Any]] = [{} for _ in range(n_layers)]
        for i, layer in enumerate(layers):
            for key, path in LAYER_KEYS.items():
                section = layer if len(path) == 1 else layer.setdefault(path[0], {})
                section[path[-1]] = by_layer.get(i, {}).get(key, fields.get(key))
        model = {ours: fields.get(theirs) for theirs, ours in MODEL_KEYS.items()}
        if fields.flag("learned_positions", False):
            model["positions"] = {"n_positions": self.n_positions(fields)}
        config = parse(ModelConfig, {**model, "layers": layers}, fields.where)
        kinds = [("residual.kind", config.residual.kind, RESIDUALS)]
        kinds += [(f"{name}.ffn.kind", layer.ffn.kind, FEED_FORWARDS) for name, layer in config.named_layers()]
        for path, kind, allowed in kinds:
            if kind not in allowed:
                raise UserError(
                    f"{path}: got {kind}, which the exported model lacks; its code (modeling_widthwise.py) supports "
                    f"{', '.join(allowed)}, and no plugins"
                )
        return config

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        model = to_data(config)
        layers = []
        for layer, data in zip(config.layers, model["layers"]):
            sections = {key: data if len(path) == 1 else data[path[0]] for key, path in LAYER_KEYS.items()}
            values = {key: sections[key][path[-1]] for key, path in LAYER_KEYS.items()}
            layers.append({"intermediate_size": max(layer.ffn.hidden_widths), **values})
        usual = {key: _usual([layer[key] for layer in layers]) for key in layers[0]}
        n_digits = len(str(config.n_layers - 1))
        exceptions = {}
        for i, layer in enumerate(layers):
            if layer != usual:
                number = str(i).zfill(n_digits)  # as transformers writes the keys
                exceptions[number] = {key: value for key, value in layer.items() if value != usual[key]}
        return {
            "hidden_size": config.stream_width,
            "num_hidden_layers": config.n_layers,
            "max_position_embeddings": n_positions if config.positions is None else config.positions.n_positions,
            "learned_positions": config.positions is not None,
            "initializer_range": config.init.std,
            **{theirs: model[ours] for theirs, ours in MODEL_KEYS.items()},
            **usual,
            "per_layer_config": exceptions,
        }

    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        model = blueprint(config)
        modules = dict(model.named_modules())
        for name, _ in model.named_parameters():
            owner = name.rpartition(".")[0]
            is_vector = isinstance(modules[owner], Vector)  # a bias or a coefficient, without a matrix
            path = [NAMES.get(part, part) for part in (owner if is_vector else name).split(".")]
            hf_name = ".".join(part for part in path if part is not None)
            yield HFTensor(hf_name if path[0] in ("lm_head", "mtp") else self.base_prefix + hf_name, (name,))


def _usual(values: list[Any]) -> Any:
    """Return the largest of whole numbers, or the most frequent of other values.

    Other tools read it as the value of all layers.
    """
    if all(type(value) is int for value in values):
        return max(values)
    most_frequent = Counter(map(repr, values)).most_common(1)[0][0]  # mappings have no hash, so count their texts
    return next(value for value in values if repr(value) == most_frequent)


FILES = ("configuration_widthwise.py", "modeling_widthwise.py")
AUTO_MAP = {
    "auto_map": {
        "AutoConfig": "configuration_widthwise.WidthwiseConfig",
        "AutoModel": "modeling_widthwise.WidthwiseModel",
        "AutoModelForCausalLM": "modeling_widthwise.WidthwiseForCausalLM",
    }
}
"""Entry of config.json that makes transformers load FILES."""


def model_code() -> dict[str, str]:
    """Return a dict from name to content of FILES, the same files that the package uses."""
    folder = files("widthwise.interop")
    return {name: (folder / name).read_text("utf-8") for name in FILES}
