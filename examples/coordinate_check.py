"""The coordinate check of muP: how updates and logits grow with the width after a few steps, with `mup` and without."""

import math
import sys

import torch

import widthwise
from widthwise.model.decoder import Decoder
from widthwise.model.mup import coordinate_check

RECIPE = sys.argv[1] if len(sys.argv) > 1 else "smoke"
WIDTHS = (32, 64, 128, 256)


def build(width: int, init: str) -> Decoder:
    changes = [f"model.d_model={width}", f"model.init={init}", "model.shape={kind: uniform}"]
    return widthwise.build(widthwise.load_recipe(RECIPE, changes))


vocab_size = widthwise.load_recipe(RECIPE).final_model.vocab_size
tokens = torch.randint(vocab_size, (4, 33), generator=torch.Generator().manual_seed(1))
for name, init in (("standard", "{std: 0.1}"), ("muP", "{std: 0.1, mup: 32}")):
    sizes = coordinate_check(lambda width, init=init: build(width, init), WIDTHS, tokens, lr=0.01)
    print(f"{name}: power of the width")
    for coordinate in sizes[WIDTHS[0]]:
        growth = sizes[WIDTHS[-1]][coordinate] / sizes[WIDTHS[0]][coordinate]
        print(f"  {coordinate:20} {math.log(growth, WIDTHS[-1] / WIDTHS[0]):+.2f}")
