import io
import json
from pathlib import Path

from fake_comparison import write_comparison
from rich.console import Console

from widthwise.cli.tables import laid_out
from widthwise.records.comparison import Comparison
from widthwise.reports.comparison.terminal import comparison_table


def lines(folder: Path, n_columns: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=n_columns)
    console.print(laid_out(comparison_table(Comparison.read(folder))))
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


def test_every_number_fits_in_100_columns(comparison: Path) -> None:
    text = "\n".join(lines(comparison))
    data = json.loads((comparison / "comparison.json").read_text())
    for variant in data["variants"]:
        assert variant["name"] in text
        assert f"{variant['val_loss']['mean']:.4f}" in text
    for value in data["variants"][1]["ratio"].values():
        assert f"({value:.3f})" in text
    assert "…\n" not in text


def test_names_are_neither_markup_nor_control_codes(tmp_path: Path) -> None:
    names = ("[bold]b[/bold]", "[/nothing]", "\x1b[31mred")
    text = "\n".join(lines(write_comparison(tmp_path, names), 140))
    assert "[bold]b[/bold]" in text
    assert "[/nothing]" in text
    assert "\x1b" not in text


def test_a_variant_with_a_doubtful_run_is_marked_and_explained(comparison: Path) -> None:
    record = Comparison.read(comparison)
    doubt = "seed 2: the training loss rose by 0.83 nats, at step 120"
    first, second, *others = record.variants
    record.with_changes(variants=[first, second.with_changes(doubts=[doubt]), *others]).write(comparison)
    text = "\n".join(lines(comparison))
    assert f"\n{second.name} ! " in text
    assert f"! {second.name}, {doubt}." in text
    assert "!" not in text.replace(f"{second.name} !", "").replace(f"! {second.name}", "")
