"""A model with the interface of lm-evaluation-harness. Imports lm_eval, of the extra [eval]."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NoReturn, cast

import pydantic
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tqdm import tqdm

from widthwise.config_io import Config, parse
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder
from widthwise.model.eval_mode import evaluating
from widthwise.model.generate import SamplingConfig, stream_tokens

BATCHES_AT_ONCE = 16
"""Batches between two updates of the progress bar."""
ALIASES = ("max_new_tokens", "max_tokens", "max_completion_tokens")
"""Alternative names of max_gen_toks."""


class GenerationOptions(Config):
    """A task's options for generated texts (`generation_kwargs`)."""

    until: str | tuple[str, ...] = ()
    """Strings before which a text ends."""
    max_gen_toks: pydantic.PositiveInt = 256
    do_sample: bool | None = None
    """Default: True if the temperature is above 0."""
    temperature: pydantic.NonNegativeFloat | None = None
    """Default with do_sample: 1."""
    top_k: pydantic.PositiveInt | None = None
    top_p: float = pydantic.Field(default=1.0, gt=0, le=1)
    num_beams: Literal[1] = 1

    @property
    def sampling(self) -> SamplingConfig:
        default = 1.0 if self.do_sample else 0.0
        temperature = default if self.temperature is None else self.temperature
        if self.do_sample is False:
            temperature = 0.0
        return SamplingConfig(temperature=temperature, top_k=self.top_k, top_p=self.top_p)


class ScorerLM(TemplateLM):
    """Log-likelihoods and texts of the model of a `Scorer`, in one process.

    Requests are tokenised and truncated as by `lm_eval.models.huggingface.HFLM`. A text that is scored from its first
    token follows the end-of-text token; if the tokenizer has a `bos_id`, all texts follow that instead.
    """

    def __init__(self, scorer: Scorer):
        super().__init__()
        self.scorer = scorer
        self._device = scorer.model.embedding.weight.device

    @property
    def eot_token_id(self) -> int:
        return self.scorer.tokenizer.eos_id

    @property
    def max_length(self) -> int:
        return self.scorer.max_length

    @property
    def batch_size(self) -> int:
        return self.scorer.batch_size

    @property
    def tokenizer_name(self) -> str:
        return self.scorer.tokenizer.id

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> NoReturn:
        raise UserError("apply_chat_template: a model of widthwise has no chat template")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode without special tokens, for any add_special_tokens."""
        return self.scorer.tokenizer.encode(string)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        lengths = [len(context) + len(continuation) for _, context, continuation in requests]
        for indices in _parts(lengths, BATCHES_AT_ONCE * self.batch_size, "loglikelihood", disable_tqdm):
            continuations = self.scorer.continuations([requests[index][1:] for index in indices])
            for index, continuation in zip(indices, continuations):
                answers[index] = (continuation.log_likelihood, continuation.is_greedy)
                self.cache_hook.add_partial("loglikelihood", requests[index][0], answers[index])
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        answers = [0.0] * len(requests)
        documents = [self.tok_encode(request.args[0]) for request in requests]
        for indices in _parts(list(map(len, documents)), self.batch_size, "loglikelihood_rolling", disable_tqdm):
            for index, nats in zip(indices, self.scorer.rolling([documents[index] for index in indices])):
                answers[index] = -float(nats.sum())
                self.cache_hook.add_partial("loglikelihood_rolling", requests[index].args, answers[index])
        return answers

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue the prompts.

        Raises UserError for an unknown option of the task, a max_gen_toks that leaves no room for a prompt, and a model
        of transformers.
        """
        answers = [""] * len(requests)
        prompts = [self.scorer.tokenizer.encode_prompt(request.args[0]) for request in requests]
        groups: dict[GenerationOptions, list[int]] = {}
        for index, arguments in enumerate(cast(tuple[Any, ...], request.args) for request in requests):
            given = {"max_gen_toks" if key in ALIASES else key: value for key, value in arguments[1].items()}
            groups.setdefault(parse(GenerationOptions, given, "generation_kwargs"), []).append(index)
        for options, members in groups.items():
            lengths = [len(prompts[index]) for index in members]
            for part in _parts(lengths, self.batch_size, "generate_until", disable_tqdm):
                indices = [members[position] for position in part]
                for index, text in zip(indices, self._continue([prompts[index] for index in indices], options)):
                    answers[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return answers

    def _continue(self, prompts: list[list[int]], options: GenerationOptions) -> list[str]:
        model = self.scorer.model
        if not isinstance(model, Decoder):
            raise UserError(
                f"a {model.config.model_type} of transformers does not write texts here, only scores them; "
                "`widthwise import` it, or call lm-evaluation-harness with `--model hf`"
            )
        room = self.max_length - options.max_gen_toks
        if room < 1:
            raise UserError(
                f"max_gen_toks: got {options.max_gen_toks}; must be less than max_length = {self.max_length}"
            )
        # From the generator that the harness seeds, so that later batches and repetitions draw other tokens.
        seed = int(torch.randint(2**31, ())) if options.sampling.temperature else 0
        cut = [prompt[-room:] for prompt in prompts]
        stops = (options.until,) if isinstance(options.until, str) else options.until
        settings = (options.max_gen_toks, options.sampling, seed, self.scorer.autocast_dtype)
        return continue_until(model, self.scorer.tokenizer, cut, stops, *settings)


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
    """Continue all prompts (token ids) in one batch, up to the first stop, the end-of-text token or max_new_tokens.

    autocast_dtype: as in `Scorer`. Raises as `stream_tokens`.
    """
    stops = [stop for stop in stops if stop]
    # A new stop ends in the newest token, and every token has at least one byte.
    n_tail = max((len(stop.encode()) for stop in stops), default=0)
    end_ids = tokenizer.end_ids
    outputs: list[list[int]] = [[] for _ in prompts]
    has_ended = [False] * len(prompts)
    with (
        evaluating(model) as device,
        torch.autocast(device.type, dtype=autocast_dtype, enabled=autocast_dtype is not None),
    ):
        for following in stream_tokens(model, prompts, max_new_tokens, sampling, seed):
            for row, token in enumerate(following.tolist()):
                has_ended[row] = has_ended[row] or token in end_ids
                if not has_ended[row]:
                    output = outputs[row]
                    output.append(token)
                    n = min(n_tail, len(output))
                    before = output[-n - 1 : -n] or prompts[row][-1:]
                    tail = tokenizer.decode_after(before, output[-n:]) if stops else ""
                    has_ended[row] = any(stop in tail for stop in stops)
            if all(has_ended):
                break
    texts = [tokenizer.decode_after(prompt, tokens) for prompt, tokens in zip(prompts, outputs)]
    for stop in stops:
        texts = [text.partition(stop)[0] for text in texts]
    return texts


def _parts(lengths: Sequence[int], n: int, title: str, disable_bar: bool) -> Iterator[list[int]]:
    """Yield indices, the longest first, n at a time, with a progress bar."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    with tqdm(total=len(order), disable=disable_bar, desc=f"Running {title} requests") as bar:
        for start in range(0, len(order), n):
            part = order[start : start + n]
            yield part
            bar.update(len(part))
