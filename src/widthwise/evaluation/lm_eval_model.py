"""A model with the interface of lm-evaluation-harness. Imports lm_eval, of the extra [eval]."""

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError

BATCHES_AT_ONCE = 16
"""Batches between two updates of the progress bar."""


class ScorerLM(TemplateLM):
    """Log-likelihoods of the model of a `Scorer`, in one process.

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

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        raise NotImplementedError("tasks that generate text are refused by LikelihoodTasks")


class LikelihoodTasks(TaskManager):
    """The tasks of the harness that need no generated text."""

    def load(self, task_list: Any) -> Any:
        """Raises UserError for a task that generates text, before any task is scored."""
        loaded = super().load(task_list)
        for name, task in loaded["tasks"].items():
            if task.get_config("output_type") == "generate_until":
                way = "`widthwise export` the model and use `lm_eval --model hf`"
                raise UserError(f"tasks: {name} generates text; {way}")
        return loaded


def _parts(lengths: Sequence[int], n: int, title: str, disable_bar: bool) -> Iterator[list[int]]:
    """Yield indices, the longest first, n at a time, with a progress bar."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    with tqdm(total=len(order), disable=disable_bar, desc=f"Running {title} requests") as bar:
        for start in range(0, len(order), n):
            part = order[start : start + n]
            yield part
            bar.update(len(part))
