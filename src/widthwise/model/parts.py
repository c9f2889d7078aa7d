"""To which part of the cost table a parameter belongs."""

ENDS = {
    "embedding": "embedding",
    "ngrams": "embedding",
    "positions": "embedding",
    "entry": "embedding",
    "head": "head",
    "mtp": "mtp",
}


def part_of(name: str) -> str:
    """The part, one of `records.cost.PARTS`, of a decoder's parameter with this name."""
    first = name.split(".")[0]
    if first in ENDS:
        return ENDS[first]
    if first == "exit":
        return "norm" if name.startswith("exit.norm.") else "residual"
    sublayer = name.split(".")[2]
    if sublayer.endswith("residual"):
        return "residual"
    return "norm" if name.endswith(("norm.weight", "norm.bias.weight")) else sublayer
