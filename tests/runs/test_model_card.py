"""The README.md of an exported model, and the Python in it."""

from widthwise.runs.export import profile_words


def test_the_profile_of_the_widths_has_a_name() -> None:
    for widths, words in (
        ([48, 48, 48], "uniform in width"),
        ([72, 48, 24, 24, 64], "x-shaped"),
        ([24, 72, 72, 48], "diamond-shaped"),
        ([24, 24, 40], "growing wider"),
        ([40, 24], "narrowing"),
        ([40, 24, 48, 16], "of several widths"),
    ):
        assert profile_words(widths).startswith(words)
