"""The residual variants. A new one is one file and one line in each union.

`interface.py` says what a variant is; the layer and the decoder do not know which one they hold.
"""

from typing import Annotated

from pydantic import Field

from widthwise.model.residual.hyper_connections import HyperConnectionsConfig, HyperConnectionsTemplate
from widthwise.model.residual.plain import PlainResidualConfig

Residual = Annotated[PlainResidualConfig | HyperConnectionsConfig, Field(discriminator="kind")]
ResidualTemplate = Annotated[PlainResidualConfig | HyperConnectionsTemplate, Field(discriminator="kind")]
