"""Loss on held-out text, and the texts, tasks and samples that the recipe's `validation` adds."""

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
from widthwise.computing import Precision
from widthwise.config_io import UserError, mistakes_of
from widthwise.data.documents import Counter, Document, ignore_progress
from widthwise.data.loader import HeldOut, TokenisedText, unended
from widthwise.data.prepared import PreparedData, checked_parts, counted, is_prepared
from widthwise.data.readers import open_source
from widthwise.data.shards import write_tokens
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.local_tasks import EncodedTask, encode_task, load_task, score_task
from widthwise.evaluation.scorer import Scorer
from widthwise.kernels.dispatch import autocast
from widthwise.model.compiling import uncompiled
from widthwise.model.decoder import Decoder
from widthwise.model.eval_mode import evaluating
from widthwise.model.generate import SamplingConfig, check_prompts, stream_tokens
from widthwise.model.shards import reshard
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import SampleConfig, ValidationTask, ValidationText
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
    """Bits per byte of the text that the targets stand for, comparable between tokenizers; None where it is empty."""
    window_losses: list[float]
    """Mean loss of every window of seq_len targets, in order: what a paired comparison pairs."""
    token_widths: TokenWidths | None
    """The result of `WidthMeter.summary`; None without dynamic-width layers."""
    expert_loads: list[list[float] | None] | None
    """For each layer, every expert's share of the routed tokens; None if no layer routes."""
    losses_by_source: dict[str, float]
    """Mean loss over the windows of each source of a mixture that has some; empty where the data have one source."""
    mtp_losses: list[float] | None
    """Losses of multi-token prediction, depth 1 first, each over the tokens it predicts; None without it."""
    mtp_window_losses: list[list[float]]
    """For each of them, its mean loss in every window; empty without multi-token prediction."""
    texts: Mapping[str, "Validation"] = field(default_factory=dict)
    """Validations of the same moment on the other texts of the recipe, by name."""
    tasks: Mapping[str, TaskAnswers] = field(default_factory=dict)
    """Scores of the same moment on the tasks of the recipe, by name."""

    def record(self) -> dict[str, Any]:
        """The entries of a validation record; width_fraction is the mean_fraction of token_widths, for its curve."""
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
        """The loss in its three units."""
        return {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def validate(model: Decoder, held_out: HeldOut, processes: Processes = ALONE) -> Validation:
    """Loss over the held-out windows. Several processes share the batches, and all get what one would find."""
    byte_lengths = held_out.data.tokenizer.token_byte_lengths()
    window_losses: list[float] = []
    window_bytes: list[int] = []
    by_depth: list[tuple[Tensor, ...]] = []
    widths, choices = WidthMeter(model), ChoiceMeans()
    with evaluating(model) as device:
        all_batches = held_out.batches()
        while batches := list(islice(all_batches, processes.world_size)):  # one for each rank; at the end perhaps fewer
            # A rank without a batch runs another rank's, because it must help to gather the weights.
            own = batches[min(processes.rank, len(batches) - 1)].to(device)
            tokens, targets = own[:, :-1], own[:, 1:]
            documents, positions = held_out.boundaries.documents(tokens), held_out.boundaries.positions(tokens)
            with autocast(device, held_out.precision):
                found = model.loss(tokens, targets, documents=documents, positions=positions)
            kept = (_means(found.losses), found.choices, tuple(map(_means, found.mtp_losses)))
            for batch, (losses, chosen, mtp_losses) in zip(batches, processes.all_gather_tensors(kept)):
                window_bytes += byte_lengths[batch[:, 1:].numpy()].sum(axis=1).tolist()
                with autocast(device, held_out.precision):
                    widths.add(chosen)
                window_losses += losses.tolist()
                choices.add(chosen, len(batch))
                by_depth.append(mtp_losses)
    reshard(model)
    loss = float(np.mean(window_losses))
    expert_loads = [means["expert_load"].tolist() if "expert_load" in means else None for means in choices.means()]
    mtp_window_losses: list[list[float]] = [torch.cat(batches).tolist() for batches in zip(*by_depth)]
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


def _means(losses: Tensor) -> Tensor:
    """Return the mean loss of each window."""
    return losses.mean(dim=1, dtype=torch.float64)


@dataclass(frozen=True)
class ValidationSets:
    """The held-out part of the data, and the texts, tasks and prompts of the recipe, opened for validations."""

    held_out: HeldOut
    """Says how all texts are read."""
    texts: dict[str, HeldOut]
    tasks: dict[str, EncodedTask]
    sampler: "Sampler | None"

    @classmethod
    def opened(cls, recipe: Recipe, held_out: HeldOut, model: Decoder, processes: Processes = ALONE) -> Self:
        """Reads and tokenises everything, on every rank for itself. model: which is to be validated first.

        Raises UserError, which names text or task, for what cannot be read, is too short, or has other tokens, for
        samples that would not fit into the model, and where two ranks do not find the same.
        """
        config, sample = recipe.validation, recipe.train.sample
        opened: list[Self] = []

        def identity() -> dict[str, dict[str, str]]:
            texts = {name: _text(f"validation.texts.{name}", text, held_out) for name, text in config.texts.items()}
            scorer = _scorer(model, held_out)
            tasks = {name: _task(f"validation.tasks.{name}", task, scorer) for name, task in config.tasks.items()}
            opened.append(cls(held_out, texts, tasks, None if sample is None else Sampler(sample, held_out, model)))
            return opened[0].identity()

        processes.check_same(
            identity, lambda rank, *_: f"validation: process {rank} finds other texts or tasks than process 0"
        )
        return opened[0]

    def identity(self) -> dict[str, dict[str, str]]:
        """Return checksums: of each text's tokens read, of each task's questions."""
        return {
            "texts": {name: _fingerprint(text) for name, text in self.texts.items()},
            "tasks": {name: encoded.task.fingerprint for name, encoded in self.tasks.items()},
        }

    def validate(self, model: Decoder, processes: Processes = ALONE) -> Validation:
        """The validation on the held-out text, and with it those on all others.

        Several processes share the batches of a text; of the questions each asks all.
        """
        found = validate(model, self.held_out, processes)
        with uncompiled(model):  # a graph for each length of a question would take longer, and run into Dynamo's limit
            texts = {name: validate(model, text, processes) for name, text in self.texts.items()}
            tasks: dict[str, TaskAnswers] = {}
            if self.tasks:
                torch.clear_autocast_cache()  # as `kernels.dispatch.autocast` says
                scorer = _scorer(model, self.held_out)
                tasks = {name: score_task(scorer, encoded) for name, encoded in self.tasks.items()}
                reshard(model)
            return replace(found, texts=texts, tasks=tasks)


def _scorer(model: Decoder, held_out: HeldOut) -> Scorer:
    dtype = torch.bfloat16 if held_out.precision == "bf16" else None
    return Scorer(model, held_out.data.tokenizer, held_out.seq_len, held_out.batch_size, dtype)


def _task(where: str, config: ValidationTask, scorer: Scorer) -> EncodedTask:
    with mistakes_of(where):
        return encode_task(scorer, load_task(Path(config.file), config.delimiter, config.limit))


def _text(where: str, config: ValidationText, held_out: HeldOut) -> HeldOut:
    seq_len = held_out.seq_len
    if config.max_tokens is not None and config.max_tokens < seq_len:
        raise UserError(f"{where}.max_tokens: got {config.max_tokens}; must be at least seq_len = {seq_len}")
    with mistakes_of(where):
        text = _tokenised(config, held_out.data.tokenizer)
    n_tokens = text.held_out.n_tokens
    if n_tokens <= seq_len:
        raise UserError(f"{where}: {config.source} holds {n_tokens} tokens; must be at least {seq_len + 1}")
    apart = held_out.boundaries
    if (apart.masks or apart.resets) and (index := unended(text.held_out, apart.eos_id)) is not None:
        raise UserError(f"{where}: document {index} of {config.source} does not end in the end-of-text token")
    return replace(held_out, data=text, max_tokens=config.max_tokens)


def _tokenised(config: ValidationText, tokenizer: Tokenizer) -> PreparedData | TokenisedText:
    """Open a validation text. Raw text is tokenised into unlinked files, which end with the process.

    Raises UserError where the text was prepared with another tokenizer.
    """
    if not is_prepared(Path(config.source)):
        most = None if config.max_tokens is None else config.max_tokens + 1
        read = Counter(ignore_progress, "", None)
        with tempfile.TemporaryDirectory() as folder:
            documents = _first_tokens(open_source(config.source, config.field), tokenizer, most, read)
            tokens = write_tokens(Path(folder) / "text", tokenizer.vocab_size, documents)
        record = counted([tokens], tokenizer, ignore_progress)
        return TokenisedText(tokens, tokenizer, read.n_bytes / max(1, record.n_token_bytes))
    data = PreparedData.open(config.source)
    data.check_tokenizer(tokenizer)
    for _ in checked_parts(data.held_out, tokenizer.vocab_size):
        pass  # a stray token would stop the run later
    return data


def _first_tokens(
    documents: Iterable[Document], tokenizer: Tokenizer, most: int | None, read: Counter
) -> Iterator[list[int]]:
    """Yield the tokens of every document, end-of-text token last, until there are `most`; count bytes in `read`."""
    n_tokens = 0
    for document in documents:
        ids = [*tokenizer.encode(document.text), tokenizer.eos_id]
        yield ids
        read.add(len(document.text.encode()))
        n_tokens += len(ids)
        if most is not None and n_tokens >= most:
            return


def _fingerprint(text: HeldOut) -> str:
    digest: Any = hashlib.sha256()
    for batch in text.batches():
        digest.update(batch.numpy().astype("<i8").tobytes())
    return digest.hexdigest()


class Sampler:
    """Continue the prompts of a recipe. Training is not affected."""

    def __init__(self, config: SampleConfig, held_out: HeldOut, model: Decoder):
        """held_out: says the tokenizer and the precision. Raises UserError where texts would not fit into the model."""
        self._config, self._tokenizer = config, held_out.data.tokenizer
        self._precision: Precision = held_out.precision
        self._prompts = [*map(self._tokenizer.encode_prompt, config.prompts)]
        self._sampling = SamplingConfig(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        with mistakes_of("train.sample"):
            check_prompts(model, self._prompts, config.n_tokens)

    def records(self, model: Decoder, step: int) -> list[dict[str, Any]]:
        """A record for each prompt. All processes that share the model call this, and all make every token: where one
        ended a text before another did, the other would wait for it."""
        config, sampling, tokenizer = self._config, self._sampling, self._tokenizer
        with evaluating(model) as device, uncompiled(model), autocast(device, self._precision):
            drawn = stream_tokens(model, self._prompts, config.n_tokens, sampling, config.seed)
            rows = torch.stack(list(drawn), dim=1).tolist()
        reshard(model)
        answers = [takewhile(lambda token: token not in tokenizer.end_ids, row) for row in rows]
        texts = [tokenizer.decode_after(ids, [*answer]) for ids, answer in zip(self._prompts, answers)]
        return [
            {"step": step, "event": "sample", "prompt": prompt, "text": text}
            for prompt, text in zip(config.prompts, texts)
        ]
