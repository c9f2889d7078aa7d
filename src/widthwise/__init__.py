"""widthwise: language models whose width is a design variable.

The public names are declared in `__init__.pyi`. Each is imported from its module on first use, so that
`import widthwise` and `widthwise --help` stay quick.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_DECLARED = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_MODULES = {
    alias.name: str(node.module) for node in _DECLARED if isinstance(node, ast.ImportFrom) for alias in node.names
}

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'widthwise' has no attribute {name!r}")
    if "IPython" in sys.modules:
        import_module("widthwise.reports.writing")  # registers how notebooks display records
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not, for `dir()` and completion."""
    return [*__all__, "__version__"]
