"""What a growth leaves open, as a recipe says it."""

from typing import Annotated, Literal

from pydantic import Field

NewLayers = Literal["drawn", "copied"]
"""What the parts of added layers are that do not have to be 0: drawn, or copies of those of the layer before."""
NewWeights = Literal["drawn", "gradmax"]
"""How the other factor begins: drawn, or chosen for the largest gradient; see `growth.gradmax`."""
ZeroSide = Literal["outputs", "inputs"]
"""Which factor of a product of new weights starts at 0: what reads the new units, heads and coordinates of queries
(w_down, w_o, w_k), or what makes them (w_up, w_v, w_q). The other is drawn."""
NewStd = Literal["initial"] | Annotated[float, Field(gt=0)]
"""Standard deviation of new weights that are drawn: that of an untrained model, or a number."""
Reset = Literal["none", "new", "all"]
"""What the optimizer forgets; see `growth.optimizer_state`."""
