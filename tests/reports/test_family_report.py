"""The page of a family."""

from pathlib import Path

from fake_family import write_family

from widthwise.reports.writing import write_report


def test_a_family_of_an_older_version_has_a_page(tmp_path: Path) -> None:
    """Without seeds, controls and sizes; the folder has moved since."""
    write_family(tmp_path, run="elsewhere/wide")
    (page,) = write_report(tmp_path)
    text = page.read_text()
    assert "What does wide cost and reach, grown from runs/small?" in text
    assert "1.20 times as many" in text
    assert "verdict on grown" not in text
