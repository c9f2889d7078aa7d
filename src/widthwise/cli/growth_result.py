"""What `grow`, `bake` and `pad` print."""

import json
from typing import Any


def show_growth(found: dict[str, Any], as_json: bool) -> None:
    """Prints how a model changes and, if the change was made, its certificate and folder."""
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for title, key in (("expansions", "expansions"), ("constants", "constants"), ("constants that change", "changes")):
        if found[key]:
            print(f"{title}:", *(f"  {line}" for line in found[key]), sep="\n")
    if found["bake_helps"]:
        print("  `widthwise bake` folds scales and divisors into weights")
    before, after = found["before"], found["after"]
    for line in found.get("lines", [f"parameters {before['params']:,} -> {after['params']:,}; nothing was written"]):
        print(line)
    for note in found["notes"]:
        print(f"note: {note}")
    if "out" in found:
        print(f"wrote {found['out']}, step {found['step']}; `widthwise resume {found['out']}` trains on")
