"""The residual variants. A new one is one file and one line in the union.

A config has `cost` and `build` of one site (d_before, d_read, d_write), `open(embedding) -> stream` and `close(stream,
width)`; a site has `read(stream) -> (x, kept)` and `write(kept, update) -> stream`. The layer does not know which
variant it holds.
"""

from typing import Annotated

from pydantic import Field

from widthwise.model.residual.plain import PlainResidualConfig

Residual = Annotated[PlainResidualConfig, Field()]
