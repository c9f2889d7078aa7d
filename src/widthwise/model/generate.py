"""Sampling from a decoder with its KV cache, and self-speculative greedy decoding: MTP heads draft, the model verifies.

One pass of the model over the newest token and K drafts gives the greedy token after each of them. A draft is right if
it equals the greedy token after its predecessor. Each pass therefore adds the drafts before the first wrong one, and
the greedy token after them. Sources: Stern et al. 2018, arXiv:1811.03115; with MTP heads, DeepSeek-V3,
arXiv:2412.19437, section 2.2.

A pass over several tokens rounds differently from passes over one token. With weights of 16 or 32 bits, two nearly
equal logits may therefore be ordered differently than in plain decoding.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

import pydantic
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.model.context import KVCache
from widthwise.model.decoder import Decoder
from widthwise.model.memory import allocating

Prompts = Sequence[Sequence[int]]
"""Token ids of one or more texts."""


class SamplingConfig(Config):
    """Options for drawing the next token."""

    temperature: pydantic.NonNegativeFloat = 1.0
    """0 takes the most probable token."""
    top_k: pydantic.PositiveInt | None = None
    """Draw from the k most probable tokens only."""
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Draw from the fewest tokens whose probabilities reach this sum."""


def filter_logits(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Shift the largest logit to 0, divide by the temperature (> 0), and set logits excluded by top_k or top_p to -inf.

    logits: (..., vocab_size) -> the same shape. Ties at the k-th largest logit are broken arbitrarily.
    """
    # The largest is 0, so that a low temperature can overflow only to -inf.
    logits = logits.float()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / config.temperature
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        largest = logits.topk(config.top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, largest.indices, largest.values)
    if config.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        sum_before = probabilities.cumsum(dim=-1) - probabilities
        excluded = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, sum_before >= config.top_p)
        logits = logits.masked_fill(excluded, -torch.inf)
    return logits


def draw(logits: Tensor, config: SamplingConfig, generator: torch.Generator | None) -> Tensor:
    """Draw the next tokens. logits: (B, vocab_size) -> token ids (B,)."""
    if config.temperature == 0:
        return logits.argmax(dim=-1)
    probabilities = filter_logits(logits, config).softmax(dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)[:, 0]


def pad_left(prompts: Prompts, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return prompts as tokens (B, T) with padding on the left, and bool (B, T), True on real tokens."""
    texts = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    masks = [torch.ones_like(text, dtype=torch.bool) for text in texts]
    tokens, is_real = (pad_sequence(rows, batch_first=True, padding_side="left") for rows in (texts, masks))
    return tokens.to(device), is_real.to(device)


def check_prompts(model: Decoder, prompts: Prompts, max_new_tokens: int) -> None:
    """Raise UserError if there is no prompt, for an empty one or one with tokens that the model lacks, for a negative
    number of new tokens, and if learned positions are too few for them.
    """
    if not prompts or not all(prompts):
        raise UserError("prompt: is empty; give at least one token for each text")
    if max_new_tokens < 0:
        raise UserError(f"max_new_tokens: got {max_new_tokens}; must be at least 0")
    unknown = [token for token in chain.from_iterable(prompts) if not 0 <= token < model.config.vocab_size]
    if unknown:
        raise UserError(f"prompt: got token {unknown[0]}; the model has tokens 0 to {model.config.vocab_size - 1}")
    n_prompt = max(map(len, prompts))
    n_read = n_prompt + max_new_tokens - 1  # the last token is not read
    positions = model.config.positions
    if positions is not None and max_new_tokens and n_read > positions.n_positions:
        raise UserError(
            f"max_new_tokens: got {max_new_tokens} after a prompt of {n_prompt}; the model reads at most "
            f"{positions.n_positions} tokens, because its positions are learned"
        )


@torch.no_grad()
def stream_tokens(
    model: Decoder, prompts: Prompts, max_new_tokens: int, sampling: SamplingConfig | None = None, seed: int = 0
) -> Iterator[Tensor]:
    """Yield the next token ids (B,) of all prompts, `max_new_tokens` times.

    Raises UserError as `check_prompts`, and if the cache does not fit into memory.
    """
    check_prompts(model, prompts, max_new_tokens)
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
    """Yield the next token ids (B,) after the cached tokens and `tokens` (B, T), `max_new_tokens` times.

    is_real: bool (B, T), False on left padding; None: all are real. generator: for draws at a temperature above 0.
    """
    for _ in range(max_new_tokens):
        hidden = model.hidden(tokens, cache, is_real)[:, -1]
        following = draw(model.logits(hidden), sampling, generator)
        yield following
        tokens = following[:, None]
        is_real = None


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Prompts,
    max_new_tokens: int,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
    eos_id: int | Collection[int] | None = None,
) -> list[list[int]]:
    """Return the continuations of all prompts, each cut before its first `eos_id`. Stop when all have ended."""
    ends = _ends(eos_id)
    continuations: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    for following in stream_tokens(model, prompts, max_new_tokens, sampling, seed):
        for row, token in enumerate(following.tolist()):
            ended[row] = ended[row] or token in ends
            if not ended[row]:
                continuations[row].append(token)
        if all(ended):
            break
    return continuations


def _ends(eos_id: int | Collection[int] | None) -> Collection[int]:
    return (eos_id,) if isinstance(eos_id, int) else eos_id or ()


@dataclass
class Speculation:
    """Counts of passes and drafts in self-speculative decoding."""

    n_passes: int = 0
    """Passes of the model, including those over prompts. Each adds one token that is not a draft."""
    n_drafted: int = 0
    n_accepted: int = 0
    """Drafts that equal the tokens of greedy decoding, up to the first wrong one of each pass."""
    seconds: float = 0.0

    def record(self) -> dict[str, float | None]:
        """Return acceptance rate, tokens per pass and tokens per second; None if nothing was drafted or generated."""
        n_tokens = self.n_passes + self.n_accepted  # including tokens after an end of text
        return {
            "accept_rate": self.n_accepted / self.n_drafted if self.n_drafted else None,
            "tokens_per_pass": n_tokens / self.n_passes if self.n_passes else None,
            "tokens_per_second": n_tokens / self.seconds if self.n_passes else None,
        }


class Drafter:
    """The MTP heads of a model and their cache for one text.

    The cache has one length for all depths: the number of positions at which even the last depth has read only known
    tokens. Later positions depend on drafts, so each call recomputes them.
    """

    def __init__(self, model: Decoder, capacity: int):
        self._model = model
        self._cache = model.new_cache(1, capacity, of_mtp=True)
        self._slots: Tensor | None = None

    def draft(self, tokens: Tensor, n_known: int, slots: Tensor, n_drafts: int) -> None:
        """Write n_drafts drafts into `tokens` after the first n_known.

        tokens: integers (1, capacity). slots: (1, T, n_slots, slot_width), of the model at the positions since the last
        call, up to the position before the last known token. n_drafts must not grow from call to call, because a depth
        that one call skips lacks the tokens of that call.
        """
        model = self._model
        start = self._cache.length
        stop = n_known - 1
        model_slots = slots if self._slots is None else torch.cat((self._slots, slots), dim=1)
        slots = model_slots
        for k in range(1, n_drafts + 1):
            slots = model.mtp_slots(k, slots, tokens[:, start + k : stop + k], self._cache)
            logits = model.logits(model.depths[k - 1].hidden(slots[:, -1:]))
            tokens[:, stop + k] = logits[:, -1].argmax(dim=-1)
        n_certain = max(0, n_known - len(model.depths) - start)
        self._cache.advance(n_certain)
        self._slots = model_slots[:, n_certain:]


@torch.no_grad()
def stream_drafted(
    model: Decoder, prompt: Sequence[int], max_new_tokens: int, counts: Speculation
) -> Iterator[list[int]]:
    """Yield the tokens that each pass of the model adds, `max_new_tokens` in total, and update the counts.

    Raises UserError if the caches do not fit into memory.
    """
    capacity = len(prompt) + max_new_tokens
    with allocating(f"generate: a cache for {capacity} tokens does not fit into memory"):
        cache = model.new_cache(1, capacity)
        drafter = Drafter(model, capacity)
        tokens = torch.zeros(1, capacity, dtype=torch.long, device=model.embedding.weight.device)
    tokens[0, : len(prompt)] = torch.tensor(prompt)
    n_known = len(prompt)
    n_drafts = 0
    while n_known < capacity:
        stream = model.stream(tokens[:, cache.length : n_known + n_drafts], cache)
        greedy = model.logits(model.exit(stream)[:, -n_drafts - 1 :]).argmax(dim=-1)
        is_right = greedy[:, :n_drafts] == tokens[:, n_known : n_known + n_drafts]
        n_before_wrong = is_right.long().cumprod(dim=1).sum(dim=1)
        # One transfer, because reading a value waits for the GPU.
        n_right, *new_tokens = torch.cat((n_before_wrong, greedy[0])).tolist()
        tokens[:, n_known : n_known + n_right + 1] = greedy[:, : n_right + 1]
        n_known += n_right + 1
        cache.rewind(n_known - 1)
        counts.n_passes += 1
        counts.n_drafted += n_drafts
        counts.n_accepted += n_right
        yield new_tokens[: n_right + 1]
        slots = model.slots(stream)
        n_certain = slots.shape[1] - n_drafts + n_right  # positions whose token is not a wrong draft
        n_drafts = max(0, min(len(model.depths), capacity - n_known - 1))
        drafter.draft(tokens, n_known, slots[:, :n_certain], n_drafts)


@torch.inference_mode()
def generate_drafted(
    model: Decoder, prompts: Prompts, max_new_tokens: int, eos_id: int | Collection[int] | None = None
) -> tuple[list[list[int]], Speculation]:
    """Generate as `generate` does at temperature 0, in fewer passes, one prompt after the other.

    Return the continuations, and the counts of all prompts. Raises UserError for a model without MTP heads, and as
    `stream_tokens`.
    """
    check_prompts(model, prompts, max_new_tokens)
    if not model.depths:
        raise UserError("generate: the model has no MTP heads for drafts; train it with `model.mtp` in its recipe")
    counts = Speculation()
    continuations = []
    ends = _ends(eos_id)
    started = time.perf_counter()
    for prompt in prompts:
        continuation: list[int] = []
        for new_tokens in stream_drafted(model, prompt, max_new_tokens, counts):
            text_tokens = [*takewhile(lambda token: token not in ends, new_tokens)]
            continuation += text_tokens
            if len(text_tokens) < len(new_tokens):
                break
        continuations.append(continuation)
    counts.seconds = time.perf_counter() - started
    return continuations, counts
