"""The errors that end a verb, and their messages: the path, the value, the allowed values and the remedy.

Imports no pydantic, so that `widthwise --help` stays quick.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST_WORD = 500
"""Characters of a word of a message. The middle of a longer word is cut out."""
LONGEST_MESSAGE = 5000
"""Characters of a message. The middle of a longer one is cut out, because its end names the allowed values."""


class UserError(ValueError):
    """A mistake that the user can fix. The message is one line; the command line prints it and exits with code 2."""

    exit_code = 2

    def __init__(self, message: str):
        line = " ".join(_without_middle(part, LONGEST_WORD) for part in message.split())
        super().__init__(_without_middle(line, LONGEST_MESSAGE))


def _without_middle(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest // 5]}...{text[-longest // 5 :]}"


class RunFailed(RuntimeError):
    """A run that failed, for example because its loss is not finite."""

    exit_code = 1


class RunDiverged(RunFailed):
    """A run that stopped because it diverged (`train.on_spike`)."""

    def __init__(self, message: str, step: int):
        """step: the step at which the run stopped."""
        super().__init__(message)
        self.step = step

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        """Pickle the message and the step; BaseException would pickle the message alone."""
        return type(self), (str(self), self.step)


REMOVED = {
    "ngrams": "embeddings of n-grams were removed; a larger vocab_size or mtp is the nearest",
    "dynamic_hourglass": "feed-forward dynamic_hourglass was removed; use hourglass with fewer blocks, or dynamic",
    "anneal": "mask anneal was removed; use ste or soft",
    "share_weights": "was removed; each block has separate matrices",
    "block_multiplier": "was removed; blocks add their whole updates",
    "nested": "mask nested was removed; use `train.nested`",
    "learn_temperature": "was removed; give a temperature",
    "detach": "was removed; gradients flow from the score to the features",
    "output_multiplier": "was removed with norm.scaling; runs of an earlier checkout need that checkout",
    "write_init": "was removed; block k is written to slot k, and in turn to the slots beyond the widest layer",
    "final_coefficient": "was removed; the coefficient is constant",
    "share_reduce": "was removed; all depths share the reduction of the model",
    "linear_ramp": "mask linear_ramp was removed; use ste",
    "rms_mean": "score rms_mean was removed; use linear, or raw_mean",
    "keep_best": "was removed; keep_every keeps checkpoints; `widthwise eval --every-checkpoint` compares them",
    "at_tokens": "was removed; give at_step: the tokens over the tokens per step",
    "rewarmup_of": "was removed; all rates rise, and freeze_steps trains the new entries alone",
    "--rewarmup-of": "was removed; all rates rise, and --freeze-steps trains the new entries alone",
    "chinchilla": "law chinchilla was removed; fit power_irreducible over one variable",
    "parabola": "law parabola was removed; fit power to the best size of each budget",
    "--x2": "was removed; a law has one variable, --x",
    "--attention-ratio": "was removed; set model.attention.ratio of the base",
    "--group-by": "was removed; use --group",
    "--train": "was removed; `widthwise compare` trains the recipes that `search BASE --out FOLDER` writes",
    "--storage": "was removed; a search keeps its study in the file study.log of its folder, which workers share",
    "--study": "was removed; a search keeps its study in the file study.log of its folder, one for each --out",
    "trend": "was removed; `fit FOLDER --group folder --x QUANTITY --law log_linear` draws the line",
    "tune": "was removed; `sweep RECIPE --over optimizer.lr=...`, then `compare RECIPE --rates-from FOLDER`",
    "ladder": "was removed; use a `sweep` section with rungs, tokens_per_param and groups",
    "--ladder": "was removed; give the sweep section of the recipe rungs",
    "family": "was removed; `grow RUN --to RECIPE` for each size, or `compare` recipes with `growth` events",
    "bake": "was removed; `widthwise export` folds the constants that growth kept into the weights",
    "pad": "was removed; `widthwise export --pad-heads` pads heads; give other sizes to `widthwise grow`",
    "checkpoint": "was removed; every verb reads checkpoints in several files, and `widthwise export` writes one file",
    "lm_eval": "was removed; use `widthwise eval --tasks`, or `lm_eval --model hf` on a folder of `widthwise export`",
    "discover": "was removed; `shape: {kind: found}` is what it found, and `widthwise shrink --flops` a faster search",
    "paper": "was removed; `python benchmarks/paper.py` of the repository shows the tables and figures of the papers",
    "--parquet": "was removed; analysis.json has the same numbers",
    "--all": "was removed; commands accept the names of the recipes of papers and results",
    "--workers": "was removed; encoding uses all cores; `widthwise data adopt` joins shards of many machines",
    "reset": "was removed; old entries keep their optimizer state, and rewarmup_steps warms learning rates up",
    "--reset": "was removed; old entries keep their optimizer state, and --rewarmup-steps warms learning rates up",
    "--score": "was removed; parts are cut in the order of the first-order change of the loss",
    "--parts": "was removed; all parts are cut, or --to names a recipe of the sizes",
    "--stream": "was removed; the stream is rotated where that preserves the function, otherwise sorted",
    "--suite": "was removed; name its tasks with --tasks, or their files with --task-file",
    "--local": "was removed; name the files of a folder with --task-file",
    "--partial": "was removed; only the named tasks are evaluated",
    "--n-devices": "was removed; give --devices",
    "--bandwidth": "was removed; `plan` has --memory-bandwidth, --node-bandwidth and --network-bandwidth",
    "--devices": "was removed; `widthwise plan RECIPE --devices 1,8` predicts memory, traffic and time",
    "--device": "was removed; `widthwise plan RECIPE --device NAME` predicts memory, traffic and time",
    "--mfu": "was removed; `widthwise plan RECIPE --device NAME --mfu` predicts times",
}
"""Removed keys, options, kinds and verbs, with their replacement."""


def nearest_hint(name: str, allowed: Iterable[str]) -> str:
    """Return the replacement of a removed name, or "did you mean 'd_ff'?" for a similar name, or all allowed names."""
    if name in REMOVED:
        return REMOVED[name]
    names = [str(item) for item in allowed]
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{matches[0]}'?" if matches else f"allowed: {', '.join(sorted(names))}"


def describe(error: "ValidationError", data: Any = None) -> str:
    """Return the first mistake of a config in one line, with the number of further mistakes.

    data: the parsed data; None if unknown, then no further mistakes are counted.
    """
    details = error.errors(include_url=False)
    first = details[0]
    path = _config_path(first, data)
    all_paths = {_config_path(mistake, data) for mistake in details if data is not None}
    # Mistakes of parents and children of the path are not counted.
    n_more = sum(further[: len(path)] != path[: len(further)] for further in all_paths)
    got = f"{'.'.join(path)}{': ' if path else ''}got {shortened(first.get('input'))}"
    context = first.get("ctx", {})
    match first["type"]:
        case "unknown_key":
            text = f"{'.'.join([*path, context['key']])}: {context['text']}"
            if path and context["replacement"]:
                section = f"{'.'.join(path)}={context['replacement']}"
                text += f"; to change the kind, replace the section: '{section}'"
        case "missing":
            text = f"{'.'.join(path)}: is required but missing"
        case "union_tag_invalid":
            allowed = [tag.strip("' ") for tag in str(context["expected_tags"]).split(",")]
            tag = str(context["tag"])
            text = f"{'.'.join([*path, 'kind'])}: got {tag!r}; {nearest_hint(tag, allowed)}"
        case "unknown_kind":
            text = f"{'.'.join([*path, 'kind'])}: {first['msg']}"
        case "union_tag_not_found":
            text = f"{'.'.join([*path, 'kind'])}: is required but missing"
        case "value_error" | "assertion_error":
            message = str(context.get("error", first["msg"]))
            text = f"{'.'.join(path)}: {message}" if path else message
        case "model_type" | "model_attributes_type" | "dict_type":
            text = f"{got}; expected keys with values, as {{key: value}}"
        case _:
            reason = first["msg"].replace("valid tuple", "list")  # YAML and JSON have no tuples
            text = f"{got}; {reason[0].lower()}{reason[1:]}"
    return f"{text} (and {counted(n_more, 'more mistake')})" if n_more else text


def _config_path(mistake: Any, data: Any) -> tuple[str, ...]:
    """Return the config path of a pydantic error; all union branches share one path.

    The path has the keys of the data, without union tags and type names, and the name of a missing key. data: None if
    unknown; then tags and type names stay in the path.
    """
    location = mistake["loc"]
    if data is None:
        return tuple(str(part) for part in location)
    path: list[str] = []
    node = data
    for part in location:
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, Mapping) and str(part) in {str(key) for key in node}:
            node = next(value for key, value in node.items() if str(key) == str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            continue
        path.append(str(part))
    if mistake["type"] == "missing":
        path.append(str(location[-1]))
    return tuple(path)


def shortened(value: Any) -> str:
    """Return the repr of a value, cut to 60 characters, for errors."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def counted(n: int, thing: str) -> str:
    """Return `1 seed`, `2 seeds`."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"
