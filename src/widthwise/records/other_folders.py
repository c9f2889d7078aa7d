"""What a folder is that was taken for a run directory."""

from pathlib import Path

from widthwise.files import read_json_mapping

OF_SEVERAL_RUNS = {"comparison.json": "a comparison", "sweep.json": "a sweep"}
"""File that tells what a folder of several runs is -> what it is called."""


def other_folder(path: Path) -> str:
    """`; it is ...`: what a folder that is no run directory holds, and how a run comes of it; "" if nobody knows."""
    for file, name in OF_SEVERAL_RUNS.items():
        if (path / file).is_file():
            return f"; it is {name}, whose runs are {path}/runs/NAME"
    if any((path / "runs").glob("*/config.yaml")):
        return f"; it holds several runs, which are {path}/runs/NAME"
    if (path / "config.json").is_file() and "model_type" in read_json_mapping(path / "config.json"):
        return f"; it is a Hugging Face folder: `widthwise import {path} RUN` makes a run of it"
    return ""
