"""The docstrings below the attributes of a class, read from its source.

pydantic's `use_attribute_docstrings` gives the same, but reads every class when it is declared, which takes longer than
all else that `inspect` does. Only the JSON schema needs them.
"""

import ast
import inspect
import textwrap
from itertools import pairwise


def attribute_docs(cls: type) -> dict[str, str]:
    """Attribute -> docstring, of the class and its bases; an attribute declared anew leaves that of the base behind.

    A class whose source is not to be had, as one typed into a shell, has none.
    """
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        for name in vars(each).get("__annotations__", ()):
            found.pop(name, None)
        found |= _own_docs(each)
    return found


def _own_docs(cls: type) -> dict[str, str]:
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(node, ast.ClassDef)
    return {
        attribute.target.id: inspect.cleandoc(below.value.value)
        for attribute, below in pairwise(node.body)
        if isinstance(attribute, ast.AnnAssign)
        and isinstance(attribute.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
