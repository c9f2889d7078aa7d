"""What `train` and `resume` print at the end."""

import json
from pathlib import Path
from typing import Any


def show_result(result: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The result of a run on standard output, as JSON or in a few lines."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    bits_per_byte = result["val_bits_per_byte"]
    print(f"{folder}: {result['steps']:,} steps, {result['tokens']:,} tokens in {result['wall_seconds']:,.0f} s")
    print(f"training loss   {result['train_loss']:.4f} (mean of the last {result['loss_window_steps']:,} steps)")
    print(
        f"validation loss {result['val_loss']:.4f}, perplexity {result['val_perplexity']:.2f}"
        + ("" if bits_per_byte is None else f", {bits_per_byte:.4f} bits per byte")
    )
    print(f"speed           {result['tokens_per_second']:,.0f} tokens/s")
    for note in result["notes"]:
        print(f"note: {note}")
