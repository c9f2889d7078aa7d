"""Rows of several documents, masked and with reset positions, compared with each document alone."""

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
"""Lengths of the documents in each row. The last document continues after the row."""
BOUNDARIES = Boundaries(EOS, masks=True, resets=True)
KINDS = (
    "qk_norm_all_heads", "values_of_other_sizes", "unrotated", "frequencies", "learned_positions", "gpt2",
    "hourglass", "moe", "dynamic", "reordered",
    "further_heads", "slots_layer_norm_mlp", "slots_further_heads", "2_of_3", "gemma2",
)  # fmt: skip


PLACES = [(i, sum(lengths[:j]), n) for i, lengths in enumerate(LENGTHS) for j, n in enumerate(lengths)]
"""Row, first token and number of tokens of each document."""


def packed_rows() -> Tensor:
    """Return rows of tokens with one more target, integers (3, 13 + 1). EOS is only at the end of documents."""
    rows = random_tokens(len(LENGTHS), N_TOKENS + 1, vocab_size=EOS)
    for row, first, _ in PLACES:
        if first > 0:
            rows[row, first - 1] = EOS
    return rows


def logits_in_loss(model: Decoder, rows: Tensor, boundaries: Boundaries = NO_BOUNDARIES) -> list[Tensor]:
    """Return the logits of the model and of its MTP heads in a call of `loss`: (B, T - k, vocab_size) at depth k."""
    tokens, targets = rows[:, :-1], rows[:, 1:]
    hidden: list[Tensor] = []
    with ExitStack() as stack:
        for part in (model, *model.depths):
            hook = part.exit.register_forward_hook(lambda module, inputs, output: hidden.append(output))
            stack.callback(hook.remove)
        model.loss(tokens, targets, documents=boundaries.documents(tokens), positions=boundaries.positions(tokens))
    return [model.logits(states) for states in hidden]


@pytest.mark.parametrize(("name", "recompute"), list(zip(KINDS, cycle(["none", "none", "layer"]))))
def test_logits_and_gradients_equal_those_of_each_document_alone(name, recompute):
    model, rows = decoder(variant("uniform" if name in OVER_WIDTH else "x", name)), packed_rows()
    model.recompute = RECOMPUTE[recompute]
    packed_logits = logits_in_loss(model, rows, BOUNDARIES)
    directions = torch.randn(3, N_TOKENS, 3, 61, generator=torch.Generator().manual_seed(1))
    total = expected = torch.zeros(())
    for i, first, n in PLACES:
        for k, alone in enumerate(logits_in_loss(model, rows[i : i + 1, first : first + n + 1])):
            packed, direction = packed_logits[k][i, first : first + n - k], directions[i, first : first + n - k, k]
            assert_close(packed, alone[0], rtol=1e-10, atol=1e-10)
            total, expected = total + (packed * direction).sum(), expected + (alone[0] * direction).sum()
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(total, parameters, materialize_grads=True)
    expected_gradients = torch.autograd.grad(expected, parameters, materialize_grads=True)
    assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-10)


def test_every_target_counts():
    """The target of the last token of a document is the first token of the next, and counts too."""
    model, rows = decoder(variant("x", "plain")), packed_rows()
    tokens, targets = rows[:, :-1], rows[:, 1:]
    packed = model.loss(tokens, targets, documents=BOUNDARIES.documents(tokens), positions=BOUNDARIES.positions(tokens))
    document_losses = [
        model.loss(tokens[i : i + 1, first : first + n], targets[i : i + 1, first : first + n]).losses[0]
        for i, first, n in PLACES
    ]
    assert_close(packed.losses.flatten(), torch.cat(document_losses), rtol=1e-10, atol=1e-10)
    assert_close(packed.objective, packed.losses.mean())


@pytest.mark.parametrize(("name", "is_learned"), [("plain", False), ("unrotated", False), ("learned_positions", True)])
def test_reset_positions_matter_with_learned_positions_and_without_masks_also_with_rotary_ones(name, is_learned):
    model, rows = decoder(variant("x", name)), packed_rows()
    masked, reset = (logits_in_loss(model, rows, Boundaries(EOS, masks=True, resets=on))[0] for on in (False, True))
    assert_close(masked[:, :4], reset[:, :4])
    assert ((masked[0, 4:] - reset[0, 4:]).abs().max() > 1e-6) == is_learned
    unmasked = logits_in_loss(model, rows, Boundaries(EOS, masks=False, resets=True))[0]
    plain = logits_in_loss(model, rows)[0]
    assert_close(unmasked[1], plain[1])  # one document
    assert_close(unmasked[0, :4], plain[0, :4])
    assert ((unmasked[0, 4:] - plain[0, 4:]).abs().max() > 1e-6) == (name != "unrotated")


@pytest.mark.parametrize(("uncapped", "windows"), [([], set()), ([2], {3}), ([1], {None})])
def test_only_windows_of_layers_without_a_score_cap_have_masks(uncapped, windows):
    """Layers 1 and 3 have no window, the others one of 3 tokens."""
    caps = {"layers": {i: {"attention": {"score_cap": None}} for i in uncapped}}
    model, masked_windows = decoder(config("x", **merge(VARIANTS["gemma2"], caps))), []
    model.layers[0].register_forward_pre_hook(lambda layer, inputs: masked_windows.append(inputs[1].masks.keys()))
    logits_in_loss(model, packed_rows(), BOUNDARIES)
    assert masked_windows == [windows]
