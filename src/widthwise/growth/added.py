"""Parameters of parts the old model does not have: layers, blocks, residual sites, routers, shared experts.

A part that writes the stream is silent at first: its last matrix is 0, or the gain of a new norm after that matrix.
With a zero matrix before a norm, even a tiny first optimizer step would be normalised to full size.
"""

from collections.abc import Callable

import torch

from widthwise.growth.correspondence import AxisMap
from widthwise.growth.tensor_plan import Draw, InitialValues, TensorPlan
from widthwise.model.axes import LearnedPositions, Linear, Norm, Vector, Weight
from widthwise.model.decoder import Decoder
from widthwise.model.initial_weights import drawn, initial_std

IsAdded = Callable[[str], bool]
"""True if the old model lacks the parameter of that name."""
SUBLAYERS = ("attention", "ffn")
"""The parts of a layer that write the stream."""


def drawn_plan(name: str, owner: Weight, model: Decoder, is_added: IsAdded) -> TensorPlan:
    """Return the plan of a parameter: 0 if it silences its part, otherwise drawn.

    owner: the module that holds it in the grown model.
    """
    is_zero = is_silent(name, model, is_added)
    if is_zero and isinstance(owner, Norm) and owner.gain_offset:
        silent = InitialValues(lambda _: torch.full(owner.weight.shape, -owner.gain_offset), is_free=False)
        return TensorPlan("", (AxisMap.of(0, [-1] * len(owner.weight)),), silent)
    maps = tuple(AxisMap.of(0, [-1] * n, zero=is_zero) for n in owner.weight.shape)
    # Entries that need not be 0 may have any value, unless the output is used from the start, as in the residual and
    # in the parts that a feed-forward names in `active_at_start`.
    layer, _, inside = name.partition(".ffn.")
    is_free = any(part in SUBLAYERS for part in name.split("."))
    if inside:
        is_free = inside.split(".")[0] not in model.get_submodule(layer).config.ffn.active_at_start  # pyright: ignore
    return TensorPlan("", maps, InitialValues(initialiser(name, owner, model), is_free=is_free))


def initialiser(name: str, owner: Weight, model: Decoder) -> Draw:
    """Return the function that draws a parameter of an untrained model. owner: the module that holds it."""
    config = model.config
    width_ratio = config.d_model / config.width_of(name)
    std = initial_std(config.init, owner, width_ratio, config.n_residual_additions)
    return lambda generator: drawn(owner, std, generator, config.init.truncate_at)


def is_silent(name: str, model: Decoder, is_added: IsAdded) -> bool:
    """Return True if a parameter of a new part must start at 0 so that the part writes nothing."""
    path = name.split(".")
    owners = {".".join(path[:depth]): model.get_submodule(".".join(path[:depth])) for depth in range(1, len(path))}
    owner_name, owner = list(owners.items())[-1]
    if isinstance(owner, LearnedPositions):
        return True
    if path[0] == "mtp" and is_added(f"mtp.{path[1]}.w_join.weight"):
        return False  # a new MTP head affects only its loss
    sublayer = next((i for i, part in enumerate(path[:-1]) if part in SUBLAYERS), None)
    if sublayer is None:
        return False
    if isinstance(owner, Vector) and path[-2] == "bias":
        owner_name = owner_name.removesuffix(".bias")
        owner = owners[owner_name]
        if isinstance(owner, Norm):
            return owner.is_after  # its bias is written to the stream
        if isinstance(owner, Linear) and not is_added(f"{owner_name}.weight"):
            return True  # a bias added to a matrix whose output is already used
    output_norm = None  # the added norm through which the part writes
    for place, part in list(owners.items())[sublayer:]:
        norm = getattr(part, "norm", None)
        if place != owner_name and isinstance(norm, Norm) and norm.output_norm and is_added(f"{place}.norm.weight"):
            output_norm = norm.output_norm
            break
    if isinstance(owner, Norm) and owner.is_after:
        return owner is output_norm
    return output_norm is None and isinstance(owner, Linear) and owner.writes_stream
