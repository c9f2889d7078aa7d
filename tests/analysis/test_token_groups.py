import numpy as np
import pytest

from widthwise.analysis.dynamic_width.groups import class_means, frequency_deciles, token_class
from widthwise.data.tokenizer import ByteTokenizer


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
