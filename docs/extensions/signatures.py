"""Signatures and members of the library's names as a reader needs them: types without what validates them."""

import re
from typing import Any

import pydantic
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ANNOTATED = "Annotated["


def plain(signature: str) -> str:
    """A signature whose `Annotated[type, ...]` are the type alone, without the modules that types are from."""
    while (start := signature.find(ANNOTATED)) >= 0:
        first, end = _parts(signature, start + len(ANNOTATED))
        start = re.search(r"[~\w.]*$", signature[:start]).start()  # pyright: ignore[reportOptionalMemberAccess]
        signature = signature[:start] + first + signature[end:]
    return re.sub(r"~[\w.]*\.(\w+)", r"\1", signature)


def _parts(text: str, start: int) -> tuple[str, int]:
    """What stands before the first comma of a bracket that opens before `start`, and where the text after it begins."""
    depth, comma = 1, None
    for i, character in enumerate(text[start:], start):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 1 and comma is None:
            comma = i
        if depth == 0:
            return text[start : comma or i], i + 1
    raise ValueError(f"{text}: a bracket is never closed")


def process_signature(app: Sphinx, what: str, name: str, found: Any, options: Any, arguments: str, result: str) -> Any:
    """Of a pydantic class none: its fields are listed below it."""
    if isinstance(found, type) and issubclass(found, pydantic.BaseModel):
        return "", None
    return arguments and plain(arguments), result and plain(result)


def skip_member(app: Sphinx, what: str, name: str, found: Any, skip: bool, options: Any) -> bool | None:
    """Of classes the documented fields, properties and methods, without those that Python or pydantic call."""
    return True if name.startswith(("_", "model_")) else None


def shorten_annotations(app: Sphinx, domain: str, kind: str, content: nodes.Element) -> None:
    """The same for the types of fields, which no signature has."""
    for node in content.parent.findall(addnodes.desc_annotation):
        if ANNOTATED in node.astext():
            text = plain(node.astext())
            node.clear()
            node += nodes.Text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("object-description-transform", shorten_annotations)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
