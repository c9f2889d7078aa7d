"""Questions with known answers from a JSONL file, for a machine without network.

Three forms, distinguished by the keys of a line; further keys are ignored:

    {"query": ..., "choices": [...], "gold": 1}
        correct if the gold choice is the most probable one after the query
    {"context": ..., "continuation": ...}
        correct if greedy decoding gives the continuation, as in LAMBADA
    {"context_options": [...], "continuation": ..., "gold": 0}
        correct if the continuation is most probable after the gold context, as in WinoGrande (Trinh and Le 2018,
        arXiv:1806.02847)

Question and answer are joined by a delimiter, one space by default, and encoded as in lm-evaluation-harness. The files
have the format of llm-foundry's `local_data`.
"""

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic
from pydantic import Field

from widthwise.config_io import Config, parse, refusing
from widthwise.evaluation.estimate import SampleEstimate, mean, scores
from widthwise.evaluation.scorer import Continuation, Request, Scorer, encode_pairs
from widthwise.files import parse_json, read_text
from widthwise.mistakes import UserError
from widthwise.records.evaluation import TaskAnswers

Text = Annotated[str, Field(min_length=1)]


class Item(Config):
    """A question with its answer."""

    @abstractmethod
    def pairs(self, delimiter: str) -> list[tuple[str, str]]:
        """Return the context and the continuation of each choice."""

    @abstractmethod
    def scores(self, continuations: Sequence[Continuation]) -> dict[str, float]:
        """Return the scores of the item by metric. continuations: one per pair."""

    @classmethod
    def metrics(cls, means: dict[str, SampleEstimate]) -> dict[str, SampleEstimate]:
        """Return the metrics to report, from the means of the scores over items."""
        return {name: estimate for name, estimate in means.items() if name != "nats"}

    def answer_scores(self, gold: int, log_likelihood: float) -> dict[str, float]:
        """Return the loss of the correct answer: in bits per byte and nats per character without the delimiter, as OLMo
        does, and in nats. gold: index of the correct pair."""
        _, answer = self.pairs("")[gold]
        return {
            "bits_per_byte": -log_likelihood / math.log(2) / len(answer.encode()),
            "nats_per_character": -log_likelihood / len(answer),
            "nats": -log_likelihood,
        }


class _Choice(Item):
    """An item with several pairs, one of which is correct."""

    gold: int
    """Index of the correct pair, from 0."""

    @pydantic.model_validator(mode="after")
    def _check_gold(self) -> "_Choice":
        n_choices = len(self.pairs(""))
        if not 0 <= self.gold < n_choices:
            raise ValueError(f"gold: got {self.gold}; must be from 0 to {n_choices - 1}")
        return self

    def accuracies(self, log_likelihoods: np.ndarray) -> dict[str, float]:
        """Return the accuracies of the item, 0 or 1. log_likelihoods: one per pair."""
        return {"acc": float(log_likelihoods.argmax() == self.gold)}

    def scores(self, continuations: Sequence[Continuation]) -> dict[str, float]:
        log_likelihoods = np.array([continuation.log_likelihood for continuation in continuations])
        return self.accuracies(log_likelihoods) | self.answer_scores(self.gold, log_likelihoods[self.gold])


class MultipleChoice(_Choice):
    """A question with several answers."""

    query: str
    choices: Annotated[tuple[Text, ...], Field(min_length=2)]

    def pairs(self, delimiter: str) -> list[tuple[str, str]]:
        return [(self.query + delimiter, choice) for choice in self.choices]

    def accuracies(self, log_likelihoods: np.ndarray) -> dict[str, float]:
        """Add acc_norm, by the log-likelihood per character of the choice, as in lm-evaluation-harness."""
        per_character = log_likelihoods / np.array([len(choice) for choice in self.choices])
        return super().accuracies(log_likelihoods) | {"acc_norm": float(per_character.argmax() == self.gold)}


class Schema(_Choice):
    """Several contexts, one of which fits the continuation."""

    context_options: Annotated[tuple[Text, ...], Field(min_length=2)]
    continuation: Text

    def pairs(self, delimiter: str) -> list[tuple[str, str]]:
        return [(context + delimiter, self.continuation) for context in self.context_options]


class Cloze(Item):
    """A text and its continuation."""

    context: str
    continuation: Text

    def pairs(self, delimiter: str) -> list[tuple[str, str]]:
        return [(self.context + delimiter, self.continuation)]

    def scores(self, continuations: Sequence[Continuation]) -> dict[str, float]:
        (continuation,) = continuations
        return {"acc": float(continuation.is_greedy), **self.answer_scores(0, continuation.log_likelihood)}

    @classmethod
    def metrics(cls, means: dict[str, SampleEstimate]) -> dict[str, SampleEstimate]:
        """Add the perplexity of the whole answer, as LAMBADA reports it."""
        return {**super().metrics(means), "perplexity": means["nats"].exponential()}


FORMS = (MultipleChoice, Schema, Cloze)
"""The forms of an item. A line is read as the first form all of whose keys it has."""


@dataclass(frozen=True)
class LocalTask:
    """The items of a file, all of one form."""

    name: str
    items: list[Item]
    delimiter: str
    fingerprint: str
    """sha256 (hex) of the delimiter and the lines that were read, equal for equal questions."""
    places: list[str]
    """File and line of each item, for errors."""


def load_task(path: Path, delimiter: str = " ", limit: int | None = None) -> LocalTask:
    """Read the first `limit` items of a file. delimiter: joins question and answer.

    Raises UserError with file and line for an item of an unknown form or of another form than the first, and for an
    empty file.
    """
    items = []
    places = []
    digest = hashlib.sha256(delimiter.encode())
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if len(items) == limit:
            break
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        row = parse_json(line, place)
        with refusing(f"{place}: holds half a surrogate pair, which is not text", UnicodeEncodeError):
            json.dumps(row, ensure_ascii=False).encode()
        keys = row.keys() if isinstance(row, dict) else set()
        form = next((form for form in FORMS if form.model_fields.keys() <= keys), None)
        if form is None:
            allowed = "; ".join(", ".join(form.model_fields) for form in FORMS)
            raise UserError(f"{place}: has keys {', '.join(keys) or 'none'}; must have the keys of one form: {allowed}")
        items.append(parse(form, {name: row[name] for name in form.model_fields}, place))
        places.append(place)
        digest.update(f"{line}\n".encode())
        if type(items[-1]) is not type(items[0]):
            keys = ", ".join(type(items[0]).model_fields)
            raise UserError(f"{place}: has another form than the lines before ({keys})")
    if not items:
        raise UserError(f"{path}: has no items")
    return LocalTask(path.name.removesuffix(".jsonl"), items, delimiter, digest.hexdigest(), places)


@dataclass(frozen=True)
class EncodedTask:
    """A task as token ids, checked for a model."""

    task: LocalTask
    requests: list[list[Request]]
    """The requests of each item."""


def encode_task(scorer: Scorer, task: LocalTask) -> EncodedTask:
    """Encode a task. Raises UserError with file and line for an answer that is too long for the model."""
    pairs_of_items = [item.pairs(task.delimiter) for item in task.items]
    encoded = iter(encode_pairs(scorer.tokenizer, [pair for pairs in pairs_of_items for pair in pairs]))
    requests = [[next(encoded) for _ in pairs] for pairs in pairs_of_items]
    for place, item_requests in zip(task.places, requests):
        for _, continuation in item_requests:
            n = len(continuation)
            if not 1 <= n <= scorer.max_length:
                raise UserError(f"{place}: an answer has {n} tokens; allowed: 1 to max_length = {scorer.max_length}")
    return EncodedTask(task, requests)


def score_task(scorer: Scorer, encoded: EncodedTask) -> TaskAnswers:
    """Score a task with the model that it was encoded for; each item is one observation."""
    task = encoded.task
    requests = [request for item_requests in encoded.requests for request in item_requests]
    n_cut = sum(len(context) + len(continuation) > scorer.max_length + 1 for context, continuation in requests)
    continuations = iter(scorer.continuations(requests))
    rows = [item.scores([next(continuations) for _ in asked]) for item, asked in zip(task.items, encoded.requests)]
    chances = [1 / len(asked) if len(asked) > 1 else 0.0 for asked in encoded.requests]
    items = {name: [row[name] for row in rows] for name in rows[0]}
    means = {name: mean(np.array(values)) for name, values in items.items()}
    return TaskAnswers(
        n_items=len(task.items),
        n_cut_contexts=n_cut,
        chance=float(np.mean(chances)),
        delimiter=task.delimiter,
        metrics=scores(type(task.items[0]).metrics(means)),
        fingerprint=task.fingerprint,
        items=items,
    )
