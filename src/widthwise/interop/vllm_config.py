"""The config of a `widthwise` model as vLLM reads it."""

from widthwise.interop.widthwise_model.configuration_widthwise import WidthwiseConfig


class ServedConfig(WidthwiseConfig):
    """Without a plan of transformers for tensor parallelism: vLLM divides the matrices itself.

    transformers up to 5.20 writes to the plan where embeddings are tied, and fails on one that is a property.
    """

    base_model_tp_plan = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
