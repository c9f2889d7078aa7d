"""Self-speculative greedy decoding: the further heads draft tokens, one pass of the model checks them all.

A pass of the model over the newest token and K drafts says what greedy decoding would have taken at each of these
places. The drafts up to the first wrong one are therefore the tokens of greedy decoding, and so is the model's own
choice behind them: each pass adds one token and as many as were drafted rightly. Sources: Stern et al. 2018,
arXiv:1811.03115; with the heads of multi-token prediction, DeepSeek-V3, arXiv:2412.19437, section 2.2.

A pass over several tokens rounds otherwise than one over each, so that with weights of 16 or 32 bits two nearly equal
logits may be ordered otherwise than by plain decoding.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.model.decoder import Decoder
from widthwise.model.generate import check_length, check_prompts
from widthwise.model.memory import allocating


@dataclass
class Speculation:
    """Statistics of the drafts of some continuations."""

    n_passes: int = 0
    """Passes of the model, those over prompts included; each ends with one token that is no draft."""
    n_drafted: int = 0
    n_accepted: int = 0
    """Drafts that were what greedy decoding takes."""
    seconds: float = 0.0

    @property
    def n_tokens(self) -> int:
        """Found, also behind an end of text."""
        return self.n_passes + self.n_accepted

    def record(self) -> dict[str, float | None]:
        """The quotients that matter; None where nothing was drafted or found."""
        return {
            "accept_rate": self.n_accepted / self.n_drafted if self.n_drafted else None,
            "tokens_per_pass": self.n_tokens / self.n_passes if self.n_passes else None,
            "tokens_per_second": self.n_tokens / self.seconds if self.n_passes else None,
        }


class Drafter:
    """The further heads of a model and what they remember of one text.

    All depths share one length: the positions at which even the last depth has seen known tokens only. What they wrote
    beyond it followed from drafts, so each round does those few positions again.
    """

    def __init__(self, model: Decoder, capacity: int):
        self._model = model
        self._cache = model.new_mtp_cache(1, capacity)
        self._slots: Tensor | None = None

    def draft(self, tokens: Tensor, n_known: int, slots: Tensor, n_drafts: int) -> None:
        """Writes n_drafts tokens behind the first n_known.

        tokens: integers (1, capacity); slots: (1, T, n_slots, slot_width), the model's at the positions since the last
        call, up to that before the last known token. n_drafts may not grow from call to call: a depth that was left
        out has not seen what came meanwhile.
        """
        model, start, stop = self._model, self._cache.length, n_known - 1
        kept = slots if self._slots is None else torch.cat((self._slots, slots), dim=1)
        slots = kept
        for k in range(1, n_drafts + 1):
            before = tokens[:, max(0, start + k - model.n_tokens_before) : start + k]
            slots = model.mtp_slots(k, slots, tokens[:, start + k : stop + k], self._cache, before)
            logits = model.logits(model.depths[k - 1].hidden(slots[:, -1:]))
            tokens[:, stop + k] = logits[:, -1].argmax(dim=-1)
        n_certain = max(0, n_known - len(model.depths) - start)
        self._cache.advance(n_certain)
        self._slots = kept[:, n_certain:]


@torch.no_grad()
def stream_drafted(
    model: Decoder, prompt: Sequence[int], max_new_tokens: int, counts: Speculation
) -> Iterator[list[int]]:
    """Yields the tokens that each pass of the model adds, `max_new_tokens` in all, and counts what happens.

    For the errors see `generate_drafted`.
    """
    capacity = len(prompt) + max_new_tokens
    with allocating(f"generate: a cache for {capacity} tokens does not fit into memory"):
        cache, drafter = model.new_cache(1, capacity), Drafter(model, capacity)
        tokens = torch.zeros(1, capacity, dtype=torch.long, device=model.embedding.weight.device)
    tokens[0, : len(prompt)] = torch.tensor(prompt)
    n_known, n_drafts = len(prompt), 0
    while n_known < capacity:
        stream = model.stream(tokens[:, cache.length : n_known + n_drafts], cache)
        found = model.logits(model.exit(stream)[:, -n_drafts - 1 :]).argmax(dim=-1)
        is_right = found[:, :n_drafts] == tokens[:, n_known : n_known + n_drafts]
        # Both at once: on a GPU every look at a number waits for all that is under way.
        n_right, *answer = torch.cat((is_right.long().cumprod(dim=1).sum(dim=1), found[0])).tolist()
        tokens[:, n_known : n_known + n_right + 1] = found[:, : n_right + 1]
        n_known += n_right + 1
        cache.rewind(n_known - 1)
        counts.n_passes += 1
        counts.n_drafted += n_drafts
        counts.n_accepted += n_right
        yield answer[: n_right + 1]
        slots = model.slots(stream)
        n_seen = slots.shape[1] - n_drafts + n_right
        n_drafts = max(0, min(len(model.depths), capacity - n_known - 1))
        drafter.draft(tokens, n_known, slots[:, :n_seen], n_drafts)


@torch.inference_mode()
def generate_drafted(
    model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_id: int | None = None
) -> tuple[list[list[int]], Speculation]:
    """Generate as `generate` does at temperature 0, in fewer passes; the prompts one after another.

    Raises UserError for a model without further heads, and for what `stream_tokens` refuses.
    """
    check_prompts(prompts)
    if not model.depths:
        raise UserError(
            "generate: the model has no heads to draft with; `model.mtp` in its recipe would have given it some"
        )
    check_length(model, max(len(prompt) for prompt in prompts), max_new_tokens)
    counts, continuations = Speculation(), []
    started = time.perf_counter()
    for prompt in prompts:
        continuation: list[int] = []
        for added in stream_drafted(model, prompt, max_new_tokens, counts):
            continuation += added
            if eos_id in added:
                del continuation[continuation.index(eos_id) :]
                break
        continuations.append(continuation)
    counts.seconds = time.perf_counter() - started
    return continuations, counts
