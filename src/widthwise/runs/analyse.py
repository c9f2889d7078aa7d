"""Statistics of the activations of trained models over one text: the content of analysis.json."""

import math
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from widthwise.analysis.model_subjects import DecoderSubject, HFSubject
from widthwise.analysis.profile import Profile, ProfileOptions
from widthwise.config_io import mistakes_of, refusing
from widthwise.data.config import open_data
from widthwise.data.documents import Corpus
from widthwise.data.loader import HeldOut, TokenisedText
from widthwise.data.readers import read_documents
from widthwise.files import listed
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.model.eval_mode import repeatable
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.analysis import AnalysedModel, AnalysedText, Analysis
from widthwise.run_dir import RunDir
from widthwise.runs.analysed_text import Excerpt, excerpt, held_out_text
from widthwise.runs.environment import command_line, shown_path
from widthwise.runs.open import NOT_LOADED, Model, check_model, is_run, open_model
from widthwise.runs.result import model_analyses
from widthwise.runs.trained import kept_steps
from widthwise.training.observer import Observer, SilentObserver
from widthwise.training.validation import validate

N_TOKENS = 2**16
TOKENS_AT_ONCE = 4096
"""Tokens per forward pass, if the user does not give the number of windows."""
N_IN_TITLE = 3
"""Largest number of models that the title names."""


def analyse(
    sources: Path | str | Sequence[Path | str],
    text: Path | str | None = None,
    n_tokens: int = N_TOKENS,
    seq_len: int | None = None,
    batch_size: int | None = None,
    observer: Observer | None = None,
    step: int | None = None,
    every_checkpoint: bool = False,
) -> Analysis:
    """Return statistics of every model over the same text, each with its tokenizer.

    sources: run directories or Hugging Face folders. text: a file or folder as `data prepare` reads it; default: the
    held-out documents of the first run's data. n_tokens: targets of the first model, in whole windows of seq_len
    (default: of its recipe); the other models read the same amount of text. batch_size: windows of a forward pass.
    step: of the checkpoint of every run; default: its newest undamaged one. every_checkpoint: analyse all
    checkpoints of every run, each as a separate model. Models are loaded one at a time, and memory does not grow with
    the text. Raises UserError for a model or text that cannot be read.
    """
    observer = observer or SilentObserver()
    options = ProfileOptions()
    paths = _named([Path(path) for path in listed(sources)])
    for path in paths.values():
        check_model(path, step)
    checkpoints = {name: (path, step, None) for name, path in paths.items()}
    if every_checkpoint:
        checkpoints = {
            f"{name}, step {saved}": (path, saved, name)
            for name, path in paths.items()
            for saved in kept_steps(path, observer.message)
        }
    first = next(iter(paths.values()))
    if text is not None:
        corpus = Corpus(shown_path(Path(text)), lambda: read_documents(text))
    elif is_run(first, step):
        corpus = held_out_text(open_data(saved_recipe(RunDir(first)).data, observer.preparing))
    else:
        raise UserError(f"{first}: a Hugging Face folder has no held-out text; name a text with --text")
    models = []
    reading = None
    with tempfile.TemporaryDirectory() as folder:
        for name, (path, saved, run) in checkpoints.items():
            model = open_model(path, step=saved, attention="sdpa")
            reading = reading or _Reading.begin(Path(folder), corpus, model, n_tokens, seq_len, batch_size)
            models.append(_analysed(name, run, model, reading.held_out(name, model), options, observer))
            del model  # before the next is loaded
    assert reading is not None
    names = list(paths)
    return Analysis(
        title="-vs-".join(names if len(names) <= N_IN_TITLE else [names[0], f"{len(names) - 1}-others"]),
        command=command_line(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        text=AnalysedText(source=corpus.name, seq_len=reading.seq_len, n_tokens=models[0].n_tokens),
        thresholds=options.thresholds,
        utilisation_threshold=options.utilisation_threshold,
        models=models,
    )


def write_analysis(analysis: Analysis, folder: Path | str) -> Path:
    """Write `folder/analysis.json`. Raises UserError if it cannot be written."""
    return analysis.write(Path(folder))


@dataclass(frozen=True)
class _Reading:
    """The text and its division into windows."""

    folder: Path
    excerpt: Excerpt
    tokenizer_id: str
    """Tokenizer of the first model; models with the same tokenizer read exactly the same windows."""
    n_tokens: int
    """Number of targets with that tokenizer."""
    seq_len: int
    batch_size: int

    @classmethod
    def begin(
        cls, folder: Path, corpus: Corpus, first: Model, n_tokens: int, seq_len: int | None, batch_size: int | None
    ) -> "_Reading":
        """Cut the text to the part that the first model reads. Raises UserError if it is shorter than one window."""
        seq_len = seq_len or first.seq_len
        if n_tokens < seq_len:
            raise UserError(f"tokens: got {n_tokens}; must be at least one window, seq_len = {seq_len}")
        cut = excerpt(corpus, first.tokenizer, n_tokens, folder / "text.jsonl")
        batch_size = batch_size or max(1, TOKENS_AT_ONCE // seq_len)
        return cls(folder, cut, first.tokenizer.id, n_tokens, seq_len, batch_size)

    def held_out(self, name: str, model: Model) -> HeldOut:
        """Return the text for a model. Raises UserError if its window is too short, or the text shorter than one."""
        if model.n_positions is not None and self.seq_len > model.n_positions:
            raise UserError(f"seq_len: got {self.seq_len}; {name} was made for at most {model.n_positions} tokens")
        tokens = self.excerpt.tokens(model.tokenizer, Path(tempfile.mkdtemp(dir=self.folder)) / "text")
        if tokens.n_tokens <= self.seq_len:
            raise UserError(
                f"{self.excerpt.source}: holds {tokens.n_tokens} tokens of {name}; "
                f"must be at least seq_len + 1 = {self.seq_len + 1}"
            )
        text = TokenisedText(tokens, model.tokenizer)
        max_tokens = self.n_tokens if model.tokenizer.id == self.tokenizer_id else None
        return HeldOut(text, self.seq_len, self.batch_size, max_tokens, "fp32")


def _analysed(
    name: str, run: str | None, model: Model, held_out: HeldOut, options: ProfileOptions, observer: Observer
) -> AnalysedModel:
    """Return the statistics of a model. run: name of the run if the model is one of its several checkpoints."""
    for damage in model.damages:
        observer.message(str(damage))
    decoder = model.model if isinstance(model.model, Decoder) else None
    with refusing(f"{model.path}: {NOT_LOADED}", Exception) if decoder is None else nullcontext():
        subject = HFSubject(model.model) if decoder is None else DecoderSubject(decoder)
    profile = Profile(subject, options)
    n_batches = math.ceil(held_out.n_windows / held_out.batch_size)
    with repeatable(model.device):
        for n_done, windows in enumerate(held_out.batches(), start=1):
            with mistakes_of(name):
                profile.add(windows.to(model.device))
            observer.working(name, n_done, n_batches, "batches")
        widths = validate(decoder, held_out).token_widths if decoder and dynamic_layers(decoder.config) else None
        analyses: dict[str, Any] = {"token_widths": None, "virtual_width": None}
        if decoder is not None:
            analyses = model_analyses(decoder, held_out, widths) | {
                "exit_flops": decoder.config.exit_flops(held_out.seq_len),
                "block_exit_flops": decoder.config.block_exit_flops(held_out.seq_len),
            }
    return profile.summary(
        name=name,
        source=shown_path(model.path),
        kind="hf" if model.recipe is None else "widthwise",
        step=model.step,
        tokens=model.tokens,
        run=run,
        **analyses,
    )


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the paths by folder name, with parent folders where needed. Raises UserError for a repeated path."""
    if not paths:
        raise UserError("analyze: expected at least one run directory or Hugging Face folder")
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < len(resolved):
        repeated = next(path for path in resolved if resolved.count(path) > 1)
        raise UserError(f"analyze: {repeated.name} was named twice")
    n_parts = 1
    while len({path.parts[-n_parts:] for path in resolved}) < len(resolved):
        n_parts += 1
    return {"/".join(whole.parts[-n_parts:]): path for whole, path in zip(resolved, paths)}
