"""The numbers of an analysis, beside their definitions written out."""

import numpy as np
import pytest
import torch
from profiled_models import spectrum

from widthwise.analysis.dynamic_width import class_means, frequency_deciles, token_class
from widthwise.analysis.meters import LogitLens, MatrixEntropy, Moments, valley
from widthwise.data.tokenizer import ByteTokenizer


def test_distributions_are_in_single_precision_where_logits_are_not():
    generator = torch.Generator().manual_seed(0)
    hidden = [(4 * torch.randn(6, 300, generator=generator)).bfloat16() for _ in range(2)]
    targets, lens = torch.arange(6), LogitLens()
    lens.add(hidden, targets, lambda states: states)
    one, other = (torch.distributions.Categorical(logits=states.double()) for states in hidden)
    found = lens.summary()
    for entry, expected in zip(found, (one, other), strict=True):
        assert entry["target_log_prob"] == pytest.approx(expected.log_prob(targets).mean().item(), rel=1e-5)
        assert entry["entropy"] == pytest.approx(expected.entropy().mean().item(), rel=1e-5)
    there, back = (torch.distributions.kl_divergence(*pair).mean().item() for pair in ((one, other), (other, one)))
    assert [entry["kl_to_next"] for entry in found] == [pytest.approx((there + back) / 2, rel=1e-5), None]


def entropy_of(states: np.ndarray) -> dict:
    found = MatrixEntropy(states.shape[1], torch.device("cpu"))
    for rows in np.array_split(states, 3):
        found.add(torch.from_numpy(rows))
    return {key: value for key, value in found.summary(depth=0).to_data().items() if key != "depth"}


def test_the_gram_matrix_gives_what_singular_values_give_even_beside_a_huge_one_in_single_precision():
    random = np.random.default_rng(0)
    for n, width in ((50, 7), (7, 50), (9, 9)):
        states = random.normal(size=(n, width)) ** 3 + 1
        assert entropy_of(states) == pytest.approx(spectrum(states), abs=1e-9)
    states = random.normal(size=(60, 11)).astype(np.float32)
    states[:, 3] *= 3000
    assert entropy_of(states) == pytest.approx(spectrum(states.astype(np.float64)), rel=1e-6)


def test_directions_of_equal_size_have_entropy_1_a_single_one_0_and_nothing_to_choose_from_none():
    for states, rank, entropy, participation in (
        (3.0 * np.eye(8)[[*range(8)] * 3], 8, 1.0, 8.0),
        (np.outer([1.0, -2.0, 3.0, 4.0], [2.0, 0.0, 1.0]), 3, 0.0, 1.0),
        (np.zeros((5, 4)), 4, None, None),
        (np.ones((1, 4)), 1, None, 1.0),
    ):
        expected = {"width": states.shape[1], "rank": rank, "entropy": entropy, "participation": participation}
        assert entropy_of(states) == pytest.approx(expected, abs=1e-12)


def test_a_valley_lies_below_a_depth_before_it_and_one_behind():
    for entropies, expected in (
        ([0.9, 0.5, 0.3, 0.7], (2, 0.3, 0.6, 0.4)),
        ([0.4, 0.8, 0.5, 0.6], (2, 0.5, 0.3, 0.1)),
        ([None, 0.5, 0.2, 0.4], (2, 0.2, 0.3, 0.2)),
    ):
        found = valley(entropies)
        assert found is not None
        assert (found.depth, found.entropy, found.drop, found.rise) == pytest.approx(expected, abs=1e-12)
    for entropies in ([0.9, 0.5, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.5], [0.5, 0.2]):
        assert valley(entropies) is None


def test_moments_of_pieces_are_those_of_the_whole_even_far_from_zero():
    values = 1e8 + np.random.default_rng(0).normal(size=(11, 3, 2))
    moments = Moments()
    for piece in np.split(values, (3, 4)):
        moments.add(torch.from_numpy(piece))
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(moments.variance, values.var(axis=0), rtol=1e-6)
    constant = Moments()
    for _ in range(3):
        constant.add(torch.full((1, 2), 0.1, dtype=torch.float64))
    assert constant.variance.tolist() == [0.0, 0.0]


def test_frequency_deciles_go_from_common_to_rare_types():
    tokens = np.array([[7] * 50 + [2] * 25 + [4] * 15 + [9] * 10])
    widths = np.select([tokens == 7, tokens == 2, tokens == 4], [0.1, 0.2, 0.3], 0.9)
    counts = np.bincount(tokens.ravel(), minlength=12)
    expected = [0.1] * 5 + [0.2] * 2 + [(0.2 + 0.3) / 2] + [0.3, 0.9]
    assert frequency_deciles(tokens, widths, counts) == pytest.approx(expected)


def test_token_classes():
    class Words(ByteTokenizer):
        def decode(self, ids):
            return {1: " the", 2: "42", 3: "\n ", 4: "(){", 5: "x1", 6: "\ufffd", 7: ""}[ids[0]]

    names = [token_class(token, Words()) for token in (1, 2, 3, 4, 5, 6, 7, 256)]
    assert names == ["letters", "digits", "whitespace", "punctuation", "other", "other", "other", "end of text"]
    tokens, widths = np.array([[1, 2, 1], [3, 1, 2]]), np.array([[0.1, 0.4, 0.2], [0.9, 0.3, 0.6]])
    assert class_means(tokens, widths, Words()) == pytest.approx({"digits": 0.5, "letters": 0.2, "whitespace": 0.9})
