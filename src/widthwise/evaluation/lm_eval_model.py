"""A model with the interface of lm-evaluation-harness. Imports lm_eval, of the extra [eval]."""

from typing import Any, NoReturn

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager

from widthwise.evaluation.scorer import Scorer
from widthwise.mistakes import UserError


class ScorerLM(TemplateLM):
    """Log-likelihoods of the model of a `Scorer`, in one process.

    Requests are tokenised and truncated as by `lm_eval.models.huggingface.HFLM`. A text that is scored from its first
    token is read after the end-of-text token; if the tokenizer has a `bos_id`, all texts are read after that instead.
    """

    def __init__(self, scorer: Scorer):
        super().__init__()
        self.scorer = scorer

    @property
    def eot_token_id(self) -> int:
        return self.scorer.tokenizer.eos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode without special tokens, for any add_special_tokens."""
        return self.scorer.tokenizer.encode(string)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        continuations = self.scorer.continuations([request[1:] for request in requests])
        return [(continuation.log_likelihood, continuation.is_greedy) for continuation in continuations]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        documents = [self.tok_encode(request.args[0]) for request in requests]
        return [-float(nats.sum()) for nats in self.scorer.rolling(documents)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        raise NotImplementedError("tasks that generate text are refused by LikelihoodTasks")


class LikelihoodTasks(TaskManager):
    """The tasks of the harness that need no generated text."""

    def load(self, task_list: Any) -> Any:
        """Load tasks. Raises UserError for a task that generates text, before any task is scored."""
        loaded = super().load(task_list)
        for name, task in loaded["tasks"].items():
            if task.get_config("output_type") == "generate_until":
                raise UserError(
                    f"tasks: {name} generates text; `widthwise export` the model and use `lm_eval --model hf`"
                )
        return loaded
