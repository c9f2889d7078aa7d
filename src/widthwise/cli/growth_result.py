"""What `grow`, `bake` and `pad` print."""

from typing import Any

from widthwise.cli.terminal import say, say_json, say_next, say_next_with_out


def show_growth(found: dict[str, Any], as_json: bool) -> None:
    """Prints how a model changes and, if the change was made, its certificate and folder."""
    if as_json:
        say_json(found)
        return
    for title, key in (("expansions", "expansions"), ("constants", "constants"), ("constants that change", "changes")):
        if found[key]:
            say(f"{title}:", *(f"  {line}" for line in found[key]))
    if found["bake_helps"]:
        say("  `widthwise bake` folds scales and divisors into weights")
    before, after = found["before"], found["after"]
    unwritten = [f"parameters {before['params']:,} -> {after['params']:,}; nothing was written"]
    say(*found.get("lines", unwritten), *(f"note: {note}" for note in found["notes"]))
    if "out" in found:
        say(f"wrote {found['out']}, step {found['step']}")
        say_next("widthwise", "resume", found["out"])
    else:
        say_next_with_out("RUN")
