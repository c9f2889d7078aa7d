"""Continuation of texts up to the first of several strings."""

from collections.abc import Sequence

import torch

from widthwise.data.tokenizer import Tokenizer
from widthwise.model.decoder import Decoder
from widthwise.model.eval_mode import evaluating
from widthwise.model.generate import SamplingConfig, stream_tokens


def continue_until(
    model: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    stops: Sequence[str],
    max_new_tokens: int,
    sampling: SamplingConfig,
    seed: int = 0,
    autocast_dtype: torch.dtype | None = None,
) -> list[str]:
    """What follows each prompt (token ids), up to the first stop, the end-of-text token or max_new_tokens.

    One batch; it goes on until all texts have ended. For autocast_dtype see `Scorer`, for what is raised
    `stream_tokens`.
    """
    stops = [stop for stop in stops if stop]
    # A new stop ends in the newest token, and every token stands for a byte at least.
    n_tail = max((len(stop.encode()) for stop in stops), default=0)
    found: list[list[int]] = [[] for _ in prompts]
    has_ended = [False] * len(prompts)
    with (
        evaluating(model) as device,
        torch.autocast(device.type, dtype=autocast_dtype, enabled=autocast_dtype is not None),
    ):
        for following in stream_tokens(model, prompts, max_new_tokens, sampling, seed):
            for row, token in enumerate(following.tolist()):
                has_ended[row] = has_ended[row] or token == tokenizer.eos_id
                if not has_ended[row]:
                    found[row].append(token)
                    tail = tokenizer.decode(found[row][-n_tail:]) if stops else ""
                    has_ended[row] = any(stop in tail for stop in stops)
            if all(has_ended):
                break
    return [_before(stops, tokenizer.decode(tokens)) for tokens in found]


def _before(stops: Sequence[str], text: str) -> str:
    for stop in stops:
        text = text.partition(stop)[0]
    return text
