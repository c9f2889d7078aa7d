"""The code that a folder takes along, so that transformers runs its model where this package is not installed."""

from importlib.resources import files

FILES = ("configuration_widthwise.py", "modeling_widthwise.py")
AUTO_MAP = {
    "auto_map": {
        "AutoConfig": "configuration_widthwise.WidthwiseConfig",
        "AutoModel": "modeling_widthwise.WidthwiseModel",
        "AutoModelForCausalLM": "modeling_widthwise.WidthwiseForCausalLM",
    }
}
"""What config.json says about them."""


def model_code() -> dict[str, str]:
    """Name -> content: the very files that the package itself uses."""
    folder = files("widthwise.interop.widthwise_model")
    return {name: (folder / name).read_text("utf-8") for name in FILES}
