"""What a growth leaves open, as a recipe says it."""

from typing import Annotated, Literal

from pydantic import Field

NewLayers = Literal["drawn", "copied", "stacked", "duplicated"]
"""What the parts of added layers are that do not have to be 0: drawn, or copies of those of the layer before. The last
two are whole copies with nothing at 0, so that the function changes: of all layers in order behind them, again and
again (`stacked`), or each of the layer before it (`duplicated`)."""
CHANGING: tuple[NewLayers, ...] = ("stacked", "duplicated")
"""Those that change the function."""
NewWeights = Literal["drawn", "gradmax", "copied"]
"""How new hidden units begin: with one factor drawn, or chosen for the largest gradient (see `growth.gradmax`); or as
copies of the old units, whose output weights are divided among them."""
ZeroSide = Literal["outputs", "inputs"]
"""Which factor of a product of new weights starts at 0: what reads the new units, heads and coordinates of queries
(w_down, w_o, w_k), or what makes them (w_up, w_v, w_q). The other is drawn."""
NewStd = Literal["initial"] | Annotated[float, Field(gt=0)]
"""Standard deviation of new weights that are drawn: that of an untrained model, or a number."""
Reset = Literal["none", "new", "all"]
"""What the optimizer forgets; see `growth.optimizer_state`."""
