"""What `train` and `resume` print at the end."""

from pathlib import Path

from widthwise.cli.terminal import say, say_json
from widthwise.records.run import RunResult
from widthwise.reports.page.formats import fixed
from widthwise.runs.environment import is_shared


def show_result(result: RunResult, folder: Path, as_json: bool) -> None:
    """The result of a run on standard output, as JSON or in a few lines."""
    if as_json:
        say_json(result)
        return
    bits_per_byte = result.val_bits_per_byte
    say(f"{folder}: {result.steps:,} steps, {result.tokens:,} tokens in {result.wall_seconds:,.0f} s")
    say(f"training loss   {result.train_loss:.4f} (mean of the last {result.loss_window_steps:,} steps)")
    say(
        f"validation loss {result.val_loss:.4f}, perplexity {result.val_perplexity:.2f}"
        + ("" if bits_per_byte is None else f", {bits_per_byte:.4f} bits per byte")
    )
    if result.val_losses:
        say("  by source     " + ", ".join(f"{name} {loss:.4f}" for name, loss in result.val_losses.items()))
    for name, text in (result.val_texts or {}).items():
        bits = "" if text.bits_per_byte is None else f", {text.bits_per_byte:.4f} bits per byte"
        say(f"  on {name}: loss {fixed(text.loss, 4)}{bits}")
    for name, task in (result.val_tasks or {}).items():
        say(f"  on {name}: accuracy {task.metrics['acc'].value:.2%} of {task.n_items:,} items")
    if result.val_mtp_losses:
        places = enumerate(result.val_mtp_losses, start=2)
        say("  further heads " + ", ".join(f"next-{place} {loss:.4f}" for place, loss in places))
    share = result.other_cpu_share
    shared = f", not comparable: other processes used {share:.0%} of the CPUs" if is_shared(share) else ""
    say(f"speed           {result.tokens_per_second:,.0f} tokens/s{shared}")
    if result.best_step is not None:
        say(f"best checkpoint step {result.best_step:,}, by the held-out loss")
    for doubt in result.doubts:
        say(f"warning: {doubt}")
    for note in result.notes:
        say(f"note: {note}")
