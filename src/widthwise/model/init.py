"""The standard deviations of the initial weights; `initial_weights.py` draws them."""

import pydantic

from widthwise.config_io import Config


class InitConfig(Config):
    """Standard deviations of the initial weights."""

    std: pydantic.PositiveFloat = 0.02
    """Standard deviation of embedding and head; that of the other matrices derives from it."""
    width_multiplier: pydantic.PositiveFloat = 1.0
    """m_width: hidden matrices have std / sqrt(m_width), and their learning rate is divided by it."""
    depth_scaled: bool = True
    """Whether matrices that write the stream are divided by the root of the number of updates it receives, 2 * n_layers
    in a plain decoder (GPT-2) and n_layers * (1 + n_blocks) with hourglass feed-forwards."""
    truncate_at: pydantic.PositiveFloat | None = None
    """Standard deviations beyond which nothing is drawn, 3 in OLMo 2; null: all is."""
