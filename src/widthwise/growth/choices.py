"""What a growth leaves open, as a recipe says it."""

from typing import Literal

NewLayers = Literal["drawn", "copied"]
"""What the parts of added layers are that do not have to be 0: drawn, or copies of those of the layer before."""
Reset = Literal["none", "new", "all"]
"""What the optimizer forgets; see `growth.optimizer_state`."""
