"""Bounded whole numbers, so that a typing error in a size is refused before a tensor of that size is allocated.

The bounds are far above any existing model. They also keep every tensor below 2^60 entries, so that torch can represent
it on the meta device and `inspect` works for every allowed size.
"""

from typing import Annotated

from pydantic import Field

WIDEST = 2**20
"""Largest width, in channels."""
Width = Annotated[int, Field(gt=0, le=WIDEST)]
"""Channels: of the stream, of a hidden layer, of a head."""
Count = Annotated[int, Field(gt=0, le=2**16)]
"""Heads, experts, sequences of a batch."""
MOST_LAYERS = 2_000
"""Largest number of layers."""
NLayers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
NBlocks = Annotated[int, Field(gt=0, le=1000)]
"""Blocks of an hourglass."""
NSlots = Annotated[int, Field(gt=0, le=4096)]
"""Number of slots of hyper-connections."""
VocabSize = Annotated[int, Field(gt=0, le=2**24)]
NTokens = Annotated[int, Field(gt=0, le=2**27)]
"""Tokens of one sequence, and positions."""
