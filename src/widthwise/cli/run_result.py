"""What `train` and `resume` print at the end."""

import json
from pathlib import Path
from typing import Any

import typer


def show_result(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The result of a run on standard output, as JSON or in a few lines."""
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    bits_per_byte = result["val_bits_per_byte"]
    typer.echo(f"{folder}: {result['steps']:,} steps, {result['tokens']:,} tokens in {result['wall_seconds']:,.0f} s")
    typer.echo(f"training loss   {result['train_loss']:.4f} (mean of the last {result['loss_window_steps']:,} steps)")
    typer.echo(
        f"validation loss {result['val_loss']:.4f}, perplexity {result['val_perplexity']:.2f}"
        + ("" if bits_per_byte is None else f", {bits_per_byte:.4f} bits per byte")
    )
    typer.echo(f"speed           {result['tokens_per_second']:,.0f} tokens/s")
    for note in result["notes"]:
        typer.echo(f"note: {note}")
