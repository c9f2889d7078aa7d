"""The residual variants. To add one, write a file that registers it and import that file here.

See `interface.py` for the interface. Layer and decoder do not depend on the variant.
"""

from typing import Annotated

from widthwise.model.residual import hyper_connections, manifold, plain  # noqa: F401  (imported to be registered)
from widthwise.model.residual.interface import RESIDUALS, ResidualConfig, register_residual
from widthwise.model.residual.interface import ResidualTemplate as _ResidualTemplate

__all__ = ["Residual", "ResidualTemplate", "register_residual"]

Residual = Annotated[ResidualConfig, RESIDUALS.configs]
ResidualTemplate = Annotated[_ResidualTemplate, RESIDUALS.templates]
