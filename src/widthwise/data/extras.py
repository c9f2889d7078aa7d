"""Optional dependencies, imported where they are first needed."""

import importlib
from types import ModuleType

from widthwise.config_io import UserError


def require(module: str, extra: str) -> ModuleType:
    """An optional dependency. Raises UserError naming the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{module} is not installed; run: pip install 'widthwise[{extra}]'") from None
