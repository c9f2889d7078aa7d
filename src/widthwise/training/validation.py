"""Loss on held-out text, and on the texts, tasks and samples of the recipe."""

import hashlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.dynamic_width import WidthMeter
from widthwise.config_io import mistakes_of
from widthwise.data.corpus import ByteCounter, Document, ignore_progress
from widthwise.data.loader import HeldOut, TokenisedText, document_without_end
from widthwise.data.prepared import PreparedData, check_and_count, checked_parts, is_prepared
from widthwise.data.readers import open_source
from widthwise.data.shards import write_tokens
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.local_tasks import EncodedTask, encode_task, load_task, score_task
from widthwise.evaluation.scorer import Scorer
from widthwise.kernels.dispatch import autocast
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder
from widthwise.model.execution import evaluating, uncompiled
from widthwise.model.generate import SamplingConfig, check_prompts, stream_tokens
from widthwise.model.shards import reshard
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import SampleConfig, ValidationText
from widthwise.records.analysis import TokenWidths
from widthwise.records.evaluation import TaskAnswers
from widthwise.training.processes import ALONE, Processes
from widthwise.training.step_statistics import ChoiceMeans


@dataclass(frozen=True)
class Validation:
    """The results of a validation."""

    loss: float
    """Mean over all target tokens, nats per token."""
    perplexity: float
    bits_per_byte: float | None
    """Bits per byte of the text of the targets, comparable between tokenizers; None for empty text."""
    window_losses: list[float]
    """Mean loss of every window of seq_len targets, in order, for paired comparisons."""
    token_widths: TokenWidths | None
    """The result of `WidthMeter.summary`; None without dynamic-width layers."""
    expert_loads: list[list[float] | None] | None
    """For each layer, each expert's share of the routed tokens (None without experts); None if no layer has experts."""
    losses_by_source: dict[str, float]
    """Mean loss over the windows of each source of a mixture; empty for a single source."""
    mtp_losses: list[float] | None
    """Losses of multi-token prediction, depth 1 first, each over the tokens it predicts; None without MTP heads."""
    mtp_window_losses: list[list[float]]
    """For each MTP head, its mean loss in every window; empty without MTP heads."""
    texts: Mapping[str, "Validation"] = field(default_factory=dict)
    """Validations on the other texts of the recipe, by name."""
    tasks: Mapping[str, TaskAnswers] = field(default_factory=dict)
    """Scores on the tasks of the recipe, by name."""

    def record(self) -> dict[str, Any]:
        """Return the entries of a validation record.

        `width_fraction` repeats the mean of `token_widths`, for its curve in reports.
        """
        record: dict[str, Any] = self.numbers()
        if self.losses_by_source:
            record["val_losses"] = self.losses_by_source
        if self.mtp_losses is not None:
            record["mtp_losses"] = self.mtp_losses
        if self.token_widths is not None:
            widths = self.token_widths
            record |= {"width_fraction": widths.mean_fraction, "token_widths": widths.to_data()}
        if self.texts:
            record["val_texts"] = {name: text.numbers() for name, text in self.texts.items()}
        if self.tasks:
            record["val_tasks"] = {
                name: {metric: score.value for metric, score in task.metrics.items()}
                for name, task in self.tasks.items()
            }
        return record

    def numbers(self) -> dict[str, float | None]:
        """Return the loss in nats, as perplexity and in bits per byte."""
        return {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def validate(model: Decoder, held_out: HeldOut, processes: Processes = ALONE) -> Validation:
    """Return the loss over the held-out windows. Processes share the batches, and all return the same result."""
    byte_lengths = held_out.data.tokenizer.token_byte_lengths()
    window_losses: list[float] = []
    window_bytes: list[int] = []
    mtp_batches: list[list[Tensor]] = []  # of each batch, for each MTP head, the mean losses of the windows
    widths = WidthMeter(model)
    choices = ChoiceMeans()
    with evaluating(model) as device:
        all_batches = held_out.batches()
        while batches := list(islice(all_batches, processes.world_size)):  # one for each rank, perhaps fewer at the end
            # A rank without a batch repeats the last one, because it must help to gather the weights.
            windows = batches[min(processes.rank, len(batches) - 1)].to(device)
            tokens = windows[:, :-1]
            documents = held_out.boundaries.documents(tokens)
            positions = held_out.boundaries.positions(tokens)
            with autocast(device, held_out.precision):
                forward = model.loss(tokens, windows[:, 1:], documents=documents, positions=positions)
            losses_by_depth = (forward.losses, *forward.mtp_losses)
            window_means = [losses.mean(dim=1, dtype=torch.float64) for losses in losses_by_depth]
            gathered = processes.all_gather_tensors((window_means, forward.choices))
            for batch, ((losses, *mtp_losses), chosen) in zip(batches, gathered):
                window_bytes += byte_lengths[batch[:, 1:].numpy()].sum(axis=1).tolist()
                with autocast(device, held_out.precision):
                    widths.add(chosen)
                window_losses += losses.tolist()
                choices.add(chosen, len(batch))
                mtp_batches.append(mtp_losses)
    reshard(model)
    loss = float(np.mean(window_losses))
    expert_loads = [means["expert_load"].tolist() if "expert_load" in means else None for means in choices.means()]
    mtp_window_losses: list[list[float]] = [torch.cat(of_depth).tolist() for of_depth in zip(*mtp_batches)]
    nats = loss * held_out.seq_len * len(window_losses)
    n_bytes = held_out.n_text_bytes(window_bytes)
    return Validation(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=nats / (math.log(2) * n_bytes) if n_bytes else None,
        window_losses=window_losses,
        losses_by_source=held_out.means_by_source(window_losses),
        token_widths=widths.summary(),
        expert_loads=expert_loads if any(expert_loads) else None,
        mtp_losses=[float(np.mean(windows)) for windows in mtp_window_losses] or None,
        mtp_window_losses=mtp_window_losses,
    )


@dataclass(frozen=True)
class ValidationSets:
    """The held-out data and the texts, tasks and prompts of the recipe, opened for validations."""

    held_out: HeldOut
    """The held-out data; all texts are read with its settings."""
    texts: dict[str, HeldOut]
    tasks: dict[str, EncodedTask]
    sampler: "Sampler | None"
    """None without `train.sample`."""

    @classmethod
    def opened(cls, recipe: Recipe, held_out: HeldOut, model: Decoder, processes: Processes = ALONE) -> Self:
        """Read and tokenise everything on every rank. model: the first model to validate.

        Raises UserError for a text or task that cannot be read, is too short, or has another tokenizer, for prompts
        that do not fit into the model, and if two ranks read different content.
        """
        config = recipe.validation
        sample = recipe.train.sample
        opened: list[Self] = []

        def open_and_identify() -> dict[str, dict[str, str]]:
            # Only the identity is sent to other ranks.
            texts = {name: _text(f"validation.texts.{name}", text, held_out) for name, text in config.texts.items()}
            scorer = _scorer(model, held_out)
            tasks = {}
            for name, task in config.tasks.items():
                with mistakes_of(f"validation.tasks.{name}"):
                    tasks[name] = encode_task(scorer, load_task(Path(task.file), task.delimiter, task.limit))
            opened.append(cls(held_out, texts, tasks, None if sample is None else Sampler(sample, held_out, model)))
            return opened[0].identity()

        processes.check_same(
            open_and_identify, lambda rank, *_: f"validation: process {rank} has other texts or tasks than process 0"
        )
        return opened[0]

    def identity(self) -> dict[str, dict[str, str]]:
        """Return checksums of the tokens of each text and of the questions of each task."""
        return {
            "texts": {name: _fingerprint(text) for name, text in self.texts.items()},
            "tasks": {name: encoded.task.fingerprint for name, encoded in self.tasks.items()},
        }

    def validate(self, model: Decoder, processes: Processes = ALONE) -> Validation:
        """Validate a model on the held-out text and on all other texts and tasks.

        Processes share the batches of a text; each of them answers all questions.
        """
        validation = validate(model, self.held_out, processes)
        with uncompiled(model):  # a graph for each length of a question is slower, and exceeds Dynamo's limit
            texts = {name: validate(model, text, processes) for name, text in self.texts.items()}
            tasks: dict[str, TaskAnswers] = {}
            if self.tasks:
                torch.clear_autocast_cache()  # see `kernels.dispatch.autocast`
                scorer = _scorer(model, self.held_out)
                tasks = {name: score_task(scorer, encoded) for name, encoded in self.tasks.items()}
                reshard(model)
            return replace(validation, texts=texts, tasks=tasks)


def _scorer(model: Decoder, held_out: HeldOut) -> Scorer:
    dtype = torch.bfloat16 if held_out.precision == "bf16" else None
    return Scorer(model, held_out.data.tokenizer, held_out.seq_len, held_out.batch_size, dtype)


def _text(where: str, config: ValidationText, held_out: HeldOut) -> HeldOut:
    """Open a validation text with the settings of the held-out data. where: its config path, for errors."""
    seq_len = held_out.seq_len
    if config.max_tokens is not None and config.max_tokens < seq_len:
        raise UserError(f"{where}.max_tokens: got {config.max_tokens}; must be at least seq_len = {seq_len}")
    with mistakes_of(where):
        text = _tokenised(config, held_out.data.tokenizer)
    n_tokens = text.held_out.n_tokens
    if n_tokens <= seq_len:
        raise UserError(f"{where}: {config.source} holds {n_tokens} tokens; must be at least {seq_len + 1}")
    boundaries = held_out.boundaries
    index = document_without_end(text.held_out, boundaries.eos_id) if boundaries.masks or boundaries.resets else None
    if index is not None:
        raise UserError(f"{where}: document {index} of {config.source} does not end in the end-of-text token")
    return replace(held_out, data=text, max_tokens=config.max_tokens)


def _tokenised(config: ValidationText, tokenizer: Tokenizer) -> PreparedData | TokenisedText:
    """Open a validation text. Raw text is tokenised into deleted files, which are freed when the process ends.

    Raises UserError if the text was prepared with another tokenizer.
    """
    if not is_prepared(Path(config.source)):
        max_ids = None if config.max_tokens is None else config.max_tokens + 1
        counter = ByteCounter(ignore_progress, "", None)
        with tempfile.TemporaryDirectory() as folder:
            documents = _first_tokens(open_source(config.source, config.field), tokenizer, max_ids, counter)
            tokens = write_tokens(Path(folder) / "text", tokenizer.vocab_size, documents)
        record = check_and_count([tokens], tokenizer, ignore_progress)
        return TokenisedText(tokens, tokenizer, counter.n_bytes / max(1, record.n_token_bytes))
    data = PreparedData.open(config.source)
    data.check_tokenizer(tokenizer)
    for _ in checked_parts(data.held_out, tokenizer.vocab_size):
        pass  # raises an error for an invalid token, which would stop the run later
    return data


def _first_tokens(
    documents: Iterable[Document], tokenizer: Tokenizer, max_ids: int | None, counter: ByteCounter
) -> Iterator[list[int]]:
    """Yield the tokens of documents, each with its end-of-text token, until there are max_ids, and count bytes."""
    n_tokens = 0
    for document in documents:
        ids = [*tokenizer.encode(document.text), tokenizer.eos_id]
        yield ids
        counter.add(len(document.text.encode()))
        n_tokens += len(ids)
        if max_ids is not None and n_tokens >= max_ids:
            return


def _fingerprint(text: HeldOut) -> str:
    """Return the sha256 (hex) of the tokens of all windows."""
    digest: Any = hashlib.sha256()
    for batch in text.batches():
        digest.update(batch.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


class Sampler:
    """Generates continuations of the prompts of a recipe, without a change to training."""

    def __init__(self, config: SampleConfig, held_out: HeldOut, model: Decoder):
        """held_out: has the tokenizer and the precision. Raises UserError if a prompt does not fit into the model."""
        self._config = config
        self._held_out = held_out
        self._prompts = [*map(held_out.data.tokenizer.encode_prompt, config.prompts)]
        with mistakes_of("train.sample"):
            check_prompts(model, self._prompts, config.n_tokens)

    def records(self, model: Decoder, step: int) -> list[dict[str, Any]]:
        """Return a record for each prompt. Called by all processes that share the model.

        Every process generates all n_tokens: if one stopped early, the others would wait for it.
        """
        config = self._config
        tokenizer = self._held_out.data.tokenizer
        sampling = SamplingConfig(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        with evaluating(model) as device, uncompiled(model), autocast(device, self._held_out.precision):
            tokens = stream_tokens(model, self._prompts, config.n_tokens, sampling, config.seed)
            rows = torch.stack(list(tokens), dim=1).tolist()
        reshard(model)
        answers = [takewhile(lambda token: token not in tokenizer.end_ids, row) for row in rows]
        texts = [tokenizer.decode_after(ids, [*answer]) for ids, answer in zip(self._prompts, answers)]
        return [
            {"step": step, "event": "sample", "prompt": prompt, "text": text}
            for prompt, text in zip(config.prompts, texts)
        ]
