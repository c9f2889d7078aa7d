"""widthwise: language models whose width is a design variable.

The public names are those that `__init__.pyi` declares. Each is imported from its module when it is first used, so that
`import widthwise` and `widthwise --help` stay quick.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_DECLARED = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_HOME_OF = {
    each.name: str(node.module) for node in _DECLARED if isinstance(node, ast.ImportFrom) for each in node.names
}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'widthwise' has no attribute {name!r}")
    if "IPython" in sys.modules:
        import_module("widthwise.reports.notebook")  # shows records as pages
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """The public names, loaded or not, for `dir()` and completion."""
    return [*__all__, "__version__"]
