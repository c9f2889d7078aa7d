"""Remarks on a recipe, one line each: what `train` refuses, and what is worth knowing before."""

import re
from collections.abc import Iterator
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.config import DataConfig
from widthwise.data.manifest import MANIFEST, Manifest, parse_manifest
from widthwise.data.prepared import is_prepared
from widthwise.data.remote import is_url
from widthwise.data.tokenizer import N_BYTES
from widthwise.files import read_json
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe

LAW_TOKENS_PER_PARAM = 20.0
"""Tokens per parameter of the models that make the best use of compute, by Hoffmann et al. 2022, arXiv:2203.15556
(Chinchilla)."""
FAR_BELOW, FAR_ABOVE = LAW_TOKENS_PER_PARAM / 4, LAW_TOKENS_PER_PARAM * 10
LONGEST_WARMUP = 0.5
"""Share of the steps."""
MOST_EPOCHS = 4
"""Up to so many readings, tokens are nearly as good as new ones (Muennighoff et al. 2023, arXiv:2305.16264)."""
UNUSED_ROWS = 1.1
"""Rows of the embedding over tokens; what pads a vocabulary to a round number is less."""


def remarks(recipe: Recipe) -> Iterator[str]:
    """All that apply, one a line."""
    warmup, steps, vocab_size = recipe.schedule.warmup_steps, recipe.train.steps, recipe.final_model.vocab_size
    try:
        recipe.check()
    except UserError as error:
        yield f"`train` refuses this: {error}"
    else:
        if warmup > LONGEST_WARMUP * steps:
            late = "most of the run is before the peak of the rate"
            yield f"schedule.warmup_steps: {warmup:,} of {steps:,} steps; {late}"
    if recipe.train.precision == "auto":
        yield "train.precision: auto is counted as bf16; a machine that multiplies it no faster trains in fp32"
    params = cost_summary(recipe.final_model, recipe.seq_len).params
    n_outside = params["embedding"] + params["head"]
    if (found := known_tokenizer(recipe)) is not None:
        spec, n_tokens = found
        if vocab_size < n_tokens:
            mistake = f"model.vocab_size: got {vocab_size}; the tokenizer {spec} has {n_tokens} tokens"
            yield f"`train` refuses this: {mistake}"
        if vocab_size > UNUSED_ROWS * n_tokens:
            n_unused = round((1 - n_tokens / vocab_size) * n_outside)
            yield (
                f"model.vocab_size: {vocab_size:,}, but the tokenizer {spec} has {n_tokens:,} tokens; about "
                f"{n_unused:,} parameters of embedding and head stand for no token"
            )
    if (share := n_outside / params["total"]) >= 0.5:
        yield f"model.vocab_size: {share:.0%} of the parameters are in embedding and head, the layers have the rest"
    ratio = recipe.n_tokens / recipe.final_model.cost().active_params
    if not FAR_BELOW <= ratio <= FAR_ABOVE:
        side, advice = ("above", "a larger") if ratio > FAR_ABOVE else ("below", "a smaller")
        yield (
            f"train.steps: {ratio:.3g} tokens for each parameter that a token uses, far {side} the "
            f"{LAW_TOKENS_PER_PARAM:g} of compute-optimal training; {advice} model would end lower for the same compute"
        )
    if (manifest := _manifest(recipe)) is not None:
        n_tokens = manifest.splits.train.n_tokens
        if (n_epochs := recipe.n_tokens / n_tokens) > MOST_EPOCHS:
            yield f"data: has {n_tokens:,} tokens, so the run reads each {n_epochs:,.0f} times"


def _manifest(recipe: Recipe) -> Manifest | None:
    """Read the manifest of prepared data on this machine; None for other data."""
    path = recipe.data.path if isinstance(recipe.data, DataConfig) else None
    if path is None or is_url(path) or not is_prepared(Path(path)):
        return None
    return parse_manifest(read_json(Path(path) / MANIFEST), str(Path(path) / MANIFEST))


def known_tokenizer(recipe: Recipe) -> tuple[str, int] | None:
    """Name and number of tokens of a recipe's tokenizer, where both are known without opening or training one."""
    if (manifest := _manifest(recipe)) is not None:
        return manifest.tokenizer.spec, manifest.tokenizer.vocab_size
    spec = recipe.data.tokenizer if isinstance(recipe.data, DataConfig) else None
    match = re.fullmatch(r"bpe-(\d+)", spec or "")
    if match:
        return str(spec), int(match[1])
    return ("bytes", N_BYTES + 1) if spec == "bytes" else None
