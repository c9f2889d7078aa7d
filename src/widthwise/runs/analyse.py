"""Statistics of what trained models compute inside, over one text: the content of analysis.json."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from widthwise.analysis.profile import Profile, ProfileOptions
from widthwise.analysis.sentence import sentence
from widthwise.config_io import UserError
from widthwise.data.documents import Corpus
from widthwise.data.loader import HeldOut, TokenisedText
from widthwise.data.readers import read_documents
from widthwise.files import listed
from widthwise.model.eval_mode import repeatable
from widthwise.records.analysis import AnalysedModel, AnalysedText, Analysis
from widthwise.runs.analysed_models import LoadedModel, ModelSource, RunSource, model_source
from widthwise.runs.analysed_text import Excerpt, excerpt
from widthwise.runs.environment import command_line, shown_path
from widthwise.runs.trained import kept_steps
from widthwise.training.observer import Observer, Silence

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
    """Statistics of every model over the same text, each with its own tokenizer.

    sources: run directories, or folders of Hugging Face. text: a file or folder as `data prepare` reads it; the
    held-out documents of the first run's data where not given. n_tokens: targets of the first model, in whole windows
    of seq_len (of its recipe where not given); the others read as much text. batch_size: windows of a forward pass.
    step: of the checkpoint of every run; its newest good one where not given. every_checkpoint: of every run all good
    ones, each as a model of its own. Models are loaded one at a time, and what is kept does not grow with the text.
    Raises UserError for what cannot be read.
    """
    observer, options = observer or Silence(), ProfileOptions()
    of_paths = _named([model_source(path, step) for path in listed(sources)])
    named = {
        name: source
        for path, found in of_paths.items()
        for name, source in (_checkpoints(path, found, observer) if every_checkpoint else {path: found}).items()
    }
    for source in named.values():
        source.check()
    first, *others = named
    with tempfile.TemporaryDirectory() as folder:
        corpus = named[first].text(observer) if text is None else _named_text(Path(text))
        model = named[first].load()
        reading = _Reading.begin(Path(folder), corpus, model, n_tokens, seq_len, batch_size)
        models = [_analysed(first, named[first], model, reading.held_out(first, model), options, observer)]
        for name in others:
            del model  # before the next takes its place
            model = named[name].load()
            models.append(_analysed(name, named[name], model, reading.held_out(name, model), options, observer))
    return Analysis(
        title=_title(list(of_paths)),
        command=command_line(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sentence=sentence(_spoken_of(models), options.utilisation_threshold),
        text=AnalysedText(source=corpus.name, seq_len=reading.seq_len, n_tokens=models[0].n_tokens),
        thresholds=options.thresholds,
        utilisation_threshold=options.utilisation_threshold,
        models=models,
    )


def write_analysis(analysis: Analysis, folder: Path | str) -> Path:
    """Writes `folder/analysis.json`. Raises UserError where it cannot be written."""
    return analysis.write(Path(folder))


@dataclass(frozen=True)
class _Reading:
    """The text and how it is cut into windows."""

    folder: Path
    excerpt: Excerpt
    tokenizer_id: str
    """The first model's; models with the same tokenizer read exactly the same windows."""
    n_tokens: int
    """Number of targets under that tokenizer."""
    seq_len: int
    batch_size: int

    @classmethod
    def begin(
        cls,
        folder: Path,
        corpus: Corpus,
        first: LoadedModel,
        n_tokens: int,
        seq_len: int | None,
        batch_size: int | None,
    ) -> "_Reading":
        """Cuts the text to what the first model reads of it. Raises UserError where that is not one window."""
        seq_len = seq_len or first.seq_len
        if n_tokens < seq_len:
            raise UserError(f"tokens: got {n_tokens}; must be at least one window, seq_len = {seq_len}")
        cut = excerpt(corpus, first.tokenizer, n_tokens, folder / "text.jsonl")
        batch_size = batch_size or max(1, TOKENS_AT_ONCE // seq_len)
        return cls(folder, cut, first.tokenizer.id, n_tokens, seq_len, batch_size)

    def held_out(self, name: str, model: LoadedModel) -> HeldOut:
        """Raises UserError where the model cannot read so long a window, or the text is shorter than one."""
        if model.n_positions is not None and self.seq_len > model.n_positions:
            raise UserError(f"seq_len: got {self.seq_len}; {name} was made for at most {model.n_positions} tokens")
        tokens = self.excerpt.tokens(model.tokenizer, Path(tempfile.mkdtemp(dir=self.folder)) / "text")
        if tokens.n_tokens <= self.seq_len:
            found = f"holds {tokens.n_tokens} tokens of {name}"
            raise UserError(f"{self.excerpt.source}: {found}; must be at least seq_len + 1 = {self.seq_len + 1}")
        text = TokenisedText(tokens, model.tokenizer)
        max_tokens = self.n_tokens if model.tokenizer.id == self.tokenizer_id else None
        return HeldOut(text, self.seq_len, self.batch_size, max_tokens, "fp32")


def _analysed(
    name: str, source: ModelSource, model: LoadedModel, held_out: HeldOut, options: ProfileOptions, observer: Observer
) -> AnalysedModel:
    for note in model.notes:
        observer.message(note)
    profile = Profile(model.subject, options)
    n_batches = math.ceil(held_out.n_windows / held_out.batch_size)
    with repeatable(model.device):
        for n_done, windows in enumerate(held_out.batches(), start=1):
            with _naming(name):
                profile.add(windows.to(model.device))
            observer.working(name, n_done, n_batches, "batches")
        beside = model.beside(held_out)
    described = {
        "name": name,
        "source": shown_path(source.path),
        "kind": source.kind,
        "step": model.step,
        "tokens": model.tokens,
        "run": source.run,
    }
    return AnalysedModel.model_validate({**described, **profile.summary(), **beside})


def _title(names: list[str]) -> str:
    return "-vs-".join(names) if len(names) <= N_IN_TITLE else f"{names[0]}-vs-{len(names) - 1}-others"


def _checkpoints(name: str, source: ModelSource, observer: Observer) -> dict[str, ModelSource]:
    """The good checkpoints of a run, each under a name of its own. Raises UserError for what is no run."""
    steps = kept_steps(source.path, observer.message)
    return {f"{name}, step {step}": RunSource(source.path, step, name) for step in steps}


def _spoken_of(models: Sequence[AnalysedModel]) -> Sequence[AnalysedModel]:
    """The models that words compare: of several runs at all checkpoints the last ones, of one the first and last."""
    last = {model.run: model for model in models if model.run is not None}
    if not last:
        return models
    return list(last.values()) if len(last) > 1 or len(models) == 1 else [models[0], models[-1]]


@contextmanager
def _naming(model: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{model}: {error}") from None


def _named(sources: Sequence[ModelSource]) -> dict[str, ModelSource]:
    """Sources by folder name, with as many parent folders as tell them apart. Raises UserError for a repeated one."""
    if not sources:
        raise UserError("analyze: expected at least one run directory or Hugging Face folder")
    paths = [source.path.resolve() for source in sources]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UserError(f"analyze: {twice.name} was named twice")
    n_parts = 1
    while len({path.parts[-n_parts:] for path in paths}) < len(paths):
        n_parts += 1
    return {"/".join(path.parts[-n_parts:]): source for path, source in zip(paths, sources)}


def _named_text(path: Path) -> Corpus:
    return Corpus(shown_path(path), lambda: read_documents(path))
