"""Sampling from a decoder with its KV cache."""

from collections.abc import Iterator, Sequence

import pydantic
import torch
from torch import Tensor

from widthwise.config_io import Config, UserError
from widthwise.model.decoder import Decoder
from widthwise.model.kv_cache import KVCache
from widthwise.model.memory import allocating


class SamplingConfig(Config):
    """Options for drawing the next token."""

    temperature: pydantic.NonNegativeFloat = 1.0
    """0 takes the most probable token."""
    top_k: pydantic.PositiveInt | None = None
    """Draw from the k most probable tokens only."""
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Draw from the fewest tokens whose probabilities reach this sum."""


def filter_logits(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Divides by the temperature (> 0) and sets what top_k and top_p exclude to -inf, the largest to 0.

    logits: (..., vocab_size) -> the same shape. Of equal logits at the border top_k keeps any.
    """
    # Relative to the largest, so that a low temperature overflows to -inf only.
    logits = logits.float()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        strongest = logits.topk(config.top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, strongest.indices, strongest.values)
    if config.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        excluded = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= config.top_p)
        logits = logits.masked_fill(excluded, -torch.inf)
    return logits


def draw(logits: Tensor, config: SamplingConfig, generator: torch.Generator | None) -> Tensor:
    """logits: (B, vocab_size) -> token ids (B,)."""
    if config.temperature == 0:
        return logits.argmax(dim=-1)
    probabilities = filter_logits(logits, config).softmax(dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts of any lengths -> tokens (B, T) with padding in front, and bool (B, T), True on real tokens."""
    longest = max(len(prompt) for prompt in prompts)
    tokens = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    is_real = torch.zeros_like(tokens, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        is_real[row, longest - len(prompt) :] = True
    return tokens, is_real


def check_prompts(prompts: Sequence[Sequence[int]]) -> None:
    """Raises UserError where there is none, or an empty one."""
    if not prompts or not all(prompts):
        raise UserError("prompt: is empty; give at least one token for each text")


def check_length(model: Decoder, n_prompt: int, max_new_tokens: int) -> None:
    """Raises UserError where a model with learned positions has too few. n_prompt: tokens of the longest prompt."""
    n_read = n_prompt + max_new_tokens - 1  # the last token is only found
    if model.positions is not None and max_new_tokens and n_read > model.positions.n_positions:
        raise UserError(
            f"max_new_tokens: got {max_new_tokens} behind a prompt of {n_prompt}; the model reads no more than "
            f"{model.positions.n_positions} tokens, its learned positions"
        )


@torch.no_grad()
def stream_tokens(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
) -> Iterator[Tensor]:
    """Yields the next token ids (B,) of all prompts, `max_new_tokens` times.

    Raises UserError for an empty prompt, where positions are learned and end before the text does, and where the cache
    does not fit into memory.
    """
    check_prompts(prompts)
    check_length(model, max(len(prompt) for prompt in prompts), max_new_tokens)
    sampling = SamplingConfig() if sampling is None else sampling
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    tokens, is_real = pad_left(prompts, device)
    capacity = tokens.shape[1] + max_new_tokens
    with allocating(f"generate: a cache for {capacity} tokens of {len(prompts)} texts does not fit into memory"):
        cache = model.new_cache(len(prompts), capacity)
    yield from continue_cached(
        model, cache, tokens, None if bool(is_real.all()) else is_real, max_new_tokens, sampling, generator
    )


@torch.no_grad()
def continue_cached(
    model: Decoder,
    cache: KVCache,
    tokens: Tensor,
    is_real: Tensor | None,
    max_new_tokens: int,
    sampling: SamplingConfig,
    generator: torch.Generator | None,
) -> Iterator[Tensor]:
    """Yields the next token ids (B,) behind what the cache holds and `tokens` (B, T), `max_new_tokens` times.

    is_real: bool (B, T), False on left padding; None: nothing is. generator: of draws at a temperature above 0.
    """
    for _ in range(max_new_tokens):
        hidden = model.hidden(tokens, cache, is_real)[:, -1]
        following = draw(model.logits(hidden), sampling, generator)
        yield following
        tokens, is_real = following[:, None], None


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
    eos_id: int | None = None,
) -> list[list[int]]:
    """Continuations of all prompts, each cut before its first `eos_id`. Stops early when all have ended."""
    continuations: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    for following in stream_tokens(model, prompts, max_new_tokens, sampling, seed):
        for row, token in enumerate(following.tolist()):
            ended[row] = ended[row] or token == eos_id
            if not ended[row]:
                continuations[row].append(token)
        if all(ended):
            break
    return continuations
