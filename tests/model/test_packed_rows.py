"""Rows of several documents, masked and with positions of their own, against each document read alone."""

from contextlib import ExitStack
from itertools import cycle

import pytest
import torch
from model_cases import OVER_WIDTH, VARIANTS, config, decoder, random_tokens, variant
from torch import Tensor
from torch.testing import assert_close

from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.model.decoder import Decoder
from widthwise.model.recompute import RECOMPUTE
from widthwise.yaml_io import merge

pytestmark = pytest.mark.usefixtures("float64")
EOS, N_TOKENS = 60, 13
LENGTHS = [[4, 1, 8], [13], [7, 6]]
"""Tokens of the documents in each row; the last document goes on behind the row."""
TOLD = Boundaries(EOS, masks=True, resets=True)
KINDS = (
    "qk_norm_all_heads", "values_of_other_sizes", "unrotated", "frequencies", "learned_positions", "gpt2",
    "hourglass", "moe", "dynamic", "reordered",
    "further_heads", "slots_layer_norm_mlp", "slots_further_heads", "2_of_3", "gemma2",
)  # fmt: skip


PLACES = [(i, sum(lengths[:j]), n) for i, lengths in enumerate(LENGTHS) for j, n in enumerate(lengths)]
"""Row, first token and number of tokens of each document."""


def packed_rows() -> Tensor:
    """Integers (3, 13 + 1), with targets; the token that ends documents stands nowhere else."""
    rows = random_tokens(len(LENGTHS), N_TOKENS + 1, vocab_size=EOS)
    for row, first, _ in PLACES:
        if first > 0:
            rows[row, first - 1] = EOS
    return rows


def scores(model: Decoder, rows: Tensor, boundaries: Boundaries = NO_BOUNDARIES) -> list[Tensor]:
    """The logits of the model and of its further heads, as `loss` finds them: (B, T - k, vocab_size) at depth k."""
    tokens, targets = rows[:, :-1], rows[:, 1:]
    hidden: list[Tensor] = []
    with ExitStack() as stack:
        for part in (model, *model.depths):
            hook = part.exit.register_forward_hook(lambda module, inputs, output: hidden.append(output))
            stack.callback(hook.remove)
        model.loss(tokens, targets, documents=boundaries.documents(tokens), positions=boundaries.positions(tokens))
    return [model.logits(each) for each in hidden]


@pytest.mark.parametrize(("name", "recompute"), list(zip(KINDS, cycle(["none", "none", "layer"]))))
def test_scores_and_gradients_are_those_of_each_document_alone(name, recompute):
    model, rows = decoder(variant("uniform" if name in OVER_WIDTH else "x", name)), packed_rows()
    model.recompute = RECOMPUTE[recompute]
    packed = scores(model, rows, TOLD)
    directions = torch.randn(3, N_TOKENS, 3, 61, generator=torch.Generator().manual_seed(1))
    total = expected = torch.zeros(())
    for i, first, n in PLACES:
        for k, found in enumerate(scores(model, rows[i : i + 1, first : first + n + 1])):
            own, along = packed[k][i, first : first + n - k], directions[i, first : first + n - k, k]
            assert_close(own, found[0], rtol=1e-10, atol=1e-10)
            total, expected = total + (own * along).sum(), expected + (found[0] * along).sum()
    parameters = list(model.parameters())
    ours, truth = (torch.autograd.grad(each, parameters, materialize_grads=True) for each in (total, expected))
    assert_close(ours, truth, rtol=1e-10, atol=1e-10)


def test_every_target_counts():
    """Also that of the token that ends a document, which is of the next."""
    model, rows = decoder(variant("x", "plain")), packed_rows()
    tokens, targets = rows[:, :-1], rows[:, 1:]
    found = model.loss(tokens, targets, documents=TOLD.documents(tokens), positions=TOLD.positions(tokens))
    of_each = [
        model.loss(tokens[i : i + 1, first : first + n], targets[i : i + 1, first : first + n]).losses[0]
        for i, first, n in PLACES
    ]
    assert_close(found.losses.flatten(), torch.cat(of_each), rtol=1e-10, atol=1e-10)
    assert_close(found.objective, found.losses.mean())


@pytest.mark.parametrize(("name", "is_learned"), [("plain", False), ("unrotated", False), ("learned_positions", True)])
def test_where_a_document_begins_matters_to_learned_positions_and_without_a_mask_to_rotated_ones(name, is_learned):
    model, rows = decoder(variant("x", name)), packed_rows()
    found, reset = (scores(model, rows, Boundaries(EOS, masks=True, resets=on))[0] for on in (False, True))
    assert_close(found[:, :4], reset[:, :4])
    assert ((found[0, 4:] - reset[0, 4:]).abs().max() > 1e-6) == is_learned
    unmasked, plain = scores(model, rows, Boundaries(EOS, masks=False, resets=True))[0], scores(model, rows)[0]
    assert_close(unmasked[1], plain[1])  # one document
    assert_close(unmasked[0, :4], plain[0, :4])
    assert ((unmasked[0, 4:] - plain[0, 4:]).abs().max() > 1e-6) == (name != "unrotated")


@pytest.mark.parametrize(("uncapped", "windows"), [([], set()), ([2], {3}), ([1], {None})])
def test_masks_of_all_pairs_are_made_for_windows_of_layers_without_a_cap_alone(uncapped, windows):
    """Layers 1 and 3 have no window, the others one of 3 tokens."""
    caps = {"layers": {i: {"attention": {"score_cap": None}} for i in uncapped}}
    model, seen = decoder(config("x", **merge(VARIANTS["gemma2"], caps))), []
    model.layers[0].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[1].masks.keys()))
    scores(model, packed_rows(), TOLD)
    assert seen == [windows]
