"""Checkpoints that several processes wrote, put together."""

from pathlib import Path

from widthwise.run_dir import RunDir
from widthwise.runs.trained import newest_checkpoint
from widthwise.training import checkpoint, checkpoint_folder


def merge(path: Path | str) -> list[Path]:
    """Puts the tensors of every valid checkpoint of a run into one file each; returns those that were in several.

    Every verb reads both forms: this is for other programs. Raises UserError where the folder is no run directory, has
    no usable checkpoint, is in use or cannot be written.
    """
    run = RunDir(path)
    run.config_yaml()
    with run.locked():
        newest_checkpoint(run)
        paths = checkpoint_folder.checkpoint_paths(run.checkpoints)
        valid = [path for path in paths if checkpoint_folder.find_damage(path) is None]
        return [path for path in valid if checkpoint.merge(path)]
