"""Mean widths of groups of tokens: by how frequent they are, and by what they are made of."""

import numpy as np

from widthwise.data.tokenizer import Tokenizer


def frequency_deciles(tokens: np.ndarray, widths: np.ndarray, counts: np.ndarray) -> list[float]:
    """Mean width of the tenth of all tokens that are of the commonest types, of the next tenth, and so on.

    tokens, widths: one entry a token; counts: how often each type occurs in the text. A type that lies in several
    tenths counts in each with its mean.
    """
    order = np.argsort(-counts, kind="stable")
    n_tokens = np.bincount(tokens.ravel(), minlength=len(counts))[order]
    sums = np.bincount(tokens.ravel(), weights=widths.ravel(), minlength=len(counts))[order]
    edges = np.linspace(0, tokens.size, 11)
    upto = np.interp(edges, np.append(0, n_tokens.cumsum()), np.append(0, sums.cumsum()))
    return (np.diff(upto) / np.diff(edges)).tolist()


def class_means(tokens: np.ndarray, widths: np.ndarray, tokenizer: Tokenizer) -> dict[str, float]:
    """Mean width by class of token; see `token_class`. tokens, widths: one entry a token."""
    ids, inverse = np.unique(tokens, return_inverse=True)
    names = [token_class(int(each), tokenizer) for each in ids]
    of_token = np.array(names)[inverse.reshape(tokens.shape)]
    return {name: float(widths[of_token == name].mean()) for name in sorted(set(names))}


def token_class(token: int, tokenizer: Tokenizer) -> str:
    """end of text, whitespace, letters, digits, punctuation, or other: mixtures and torn characters.

    White space around a token does not count: " the" is letters.
    """
    if token == tokenizer.eos_id:
        return "end of text"
    text = tokenizer.decode([token])
    inner = text.strip()
    if not inner:
        return "whitespace" if text else "other"
    if inner.isalpha():
        return "letters"
    if inner.isdecimal():
        return "digits"
    is_marks = inner.isprintable() and not any(each.isalnum() or each in " \ufffd" for each in inner)
    return "punctuation" if is_marks else "other"
