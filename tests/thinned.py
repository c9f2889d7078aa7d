"""Fewer cases than the product of several axes: each value once, or each pair of values once."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest

Axis = tuple[str | tuple[str, ...], Iterable[Any]]
"""Names of arguments of a test, and the values that they take together, as pytest's `parametrize` has them."""


def in_turn(*axes: Axis) -> pytest.MarkDecorator:
    """A case for each value of the longest axis; the values of the others go round, one further in each round."""
    columns = [list(values) for _, values in axes]
    n = max(map(len, columns))
    return _cases(axes, [[column[(i + i // len(column)) % len(column)] for column in columns] for i in range(n)])


def hard_but(few: Iterable[Any], all_values: Iterable[Any]) -> list[Any]:
    """All values, of which `make test` takes few and `make test-hard` the others."""
    few = list(few)
    rows = ((value, value if isinstance(value, tuple) else (value,)) for value in all_values)
    return [value if value in few else pytest.param(*row, marks=pytest.mark.hard) for value, row in rows]


def every_pair(*axes: Axis) -> pytest.MarkDecorator:
    """Cases in which every two values of two axes meet at least once."""
    columns = [list(values) for _, values in axes]
    rows = list(product(*(range(len(column)) for column in columns)))
    missing, chosen = set().union(*map(_pairs, rows)), []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen.append([column[i] for column, i in zip(columns, best, strict=True)])
    return _cases(axes, chosen)


def _pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(a, b, row[a], row[b]) for a, b in combinations(range(len(row)), 2)}


def _cases(axes: tuple[Axis, ...], rows: list[list[Any]]) -> pytest.MarkDecorator:
    """Of axes with several names the values are tuples, which are taken apart."""
    names = [name for names, _ in axes for name in ([names] if isinstance(names, str) else names)]
    is_one = [isinstance(names, str) for names, _ in axes]
    flat = [
        tuple(x for one, value in zip(is_one, row, strict=True) for x in ([value] if one else value)) for row in rows
    ]
    return pytest.mark.parametrize(names, flat)
