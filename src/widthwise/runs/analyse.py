"""Statistics of the activations of trained models over one text: the content of analysis.json."""

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path

from widthwise.analysis.profile import Profile, ProfileOptions
from widthwise.config_io import mistakes_of
from widthwise.data.config import open_data
from widthwise.data.corpus import Corpus, Document
from widthwise.data.loader import HeldOut, TokenisedText
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.readers import read_documents
from widthwise.data.shards import TokenFile, write_tokens
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import listed, reading, writing
from widthwise.mistakes import UserError
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.model.execution import repeatable
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.analysis import AnalysedModel, AnalysedText, Analysis
from widthwise.run_dir import RunDir
from widthwise.runs.environment import command_line, shown_path
from widthwise.runs.open import Model, check_model, checkpoint_steps, is_run, open_model
from widthwise.runs.result import model_analyses
from widthwise.training.observer import Observer, SilentObserver
from widthwise.training.validation import validate

N_TOKENS = 2**16
TOKENS_AT_ONCE = 4096
"""Tokens per forward pass, if the user does not give the number of windows."""
N_IN_TITLE = 3
"""Largest number of models that the title names."""
SPARE_TOKENS = 16
"""Tokens that `cut_text` writes in addition, because a document cut within a word can become fewer tokens."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""The text to which a token is decoded that holds only part of the bytes of a character."""


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

    Models are loaded one at a time, and memory does not grow with the text.

    sources: run directories or Hugging Face folders. text: a file or folder as `data prepare` reads it; default: the
    held-out documents of the first run's data. n_tokens: number of predicted tokens of the first model, cut to whole
    windows; the other models read the same text. seq_len: default: the first model's. batch_size: windows of a forward
    pass. step: of the checkpoint of every run; default: its newest undamaged one. every_checkpoint: analyse all
    checkpoints of every run, each as a separate model. Raises UserError for a model or text that cannot be read.
    """
    observer = observer or SilentObserver()
    options = ProfileOptions()
    paths = _named([Path(path) for path in listed(sources)])
    for path in paths.values():
        check_model(path, step)
    checkpoints = {name: (path, step, None) for name, path in paths.items()}  # path, step, run
    if every_checkpoint:
        checkpoints = {
            f"{name}, step {saved_step}": (path, saved_step, name)
            for name, path in paths.items()
            for saved_step in checkpoint_steps(path, observer.message)
        }
    first = next(iter(paths.values()))
    if text is not None:
        corpus = Corpus(shown_path(Path(text)), lambda: read_documents(text))
    elif is_run(first, step):
        corpus = held_out_text(open_data(saved_recipe(RunDir(first)).data, observer.preparing))
    else:
        raise UserError(f"{first}: a Hugging Face folder has no held-out text; name a text with --text")
    models: list[AnalysedModel] = []
    tokens_of: dict[str, TokenFile] = {}  # by id of the tokenizer, the first model's first
    with tempfile.TemporaryDirectory() as folder:
        text_file = Path(folder) / "text.jsonl"
        for name, (path, saved_step, run) in checkpoints.items():
            model = open_model(path, step=saved_step)
            tokenizer = model.tokenizer
            seq_len = seq_len or model.seq_len
            if not models:
                if n_tokens < seq_len:
                    raise UserError(f"tokens: got {n_tokens}; must be at least one window, seq_len = {seq_len}")
                cut_text(corpus, tokenizer, n_tokens, text_file)
            if model.n_positions is not None and seq_len > model.n_positions:
                raise UserError(f"seq_len: got {seq_len}; {name} was made for at most {model.n_positions} tokens")
            if tokenizer.id not in tokens_of:
                tokens_of[tokenizer.id] = tokens_of_text(text_file, tokenizer, Path(folder) / str(len(tokens_of)))
            tokens = tokens_of[tokenizer.id]
            if tokens.n_tokens <= seq_len:
                raise UserError(
                    f"{corpus.name}: holds {tokens.n_tokens} tokens of {name}; must be at least seq_len + 1 = "
                    f"{seq_len + 1}"
                )
            # Models with the tokenizer of the first read exactly the same windows.
            max_tokens = n_tokens if tokenizer.id == next(iter(tokens_of)) else None
            n_rows = batch_size or max(1, TOKENS_AT_ONCE // seq_len)
            held_out = HeldOut(TokenisedText(tokens, tokenizer), seq_len, n_rows, max_tokens, "fp32")
            models.append(_analysed(name, run, model, held_out, options, observer))
            del model  # before the next is loaded
    assert seq_len is not None
    names = list(paths)
    if len(names) > N_IN_TITLE:
        names = [names[0], f"{len(names) - 1}-others"]
    return Analysis(
        title="-vs-".join(names),
        command=command_line(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        text=AnalysedText(source=corpus.name, seq_len=seq_len, n_tokens=models[0].n_tokens),
        thresholds=options.thresholds,
        utilisation_threshold=options.utilisation_threshold,
        models=models,
    )


def write_analysis(analysis: Analysis, folder: Path | str) -> Path:
    """Write `folder/analysis.json`. Raises UserError if it cannot be written."""
    return analysis.write(Path(folder))


def _analysed(
    name: str, run: str | None, model: Model, held_out: HeldOut, options: ProfileOptions, observer: Observer
) -> AnalysedModel:
    """Return the statistics of a model. run: name of its run if all checkpoints are analysed, otherwise None."""
    for damage in model.damages:
        observer.message(str(damage))
    decoder = model.model
    profile = Profile(decoder, options)
    n_batches = math.ceil(held_out.n_windows / held_out.batch_size)
    with repeatable(model.device):
        for n_done, windows in enumerate(held_out.batches(), start=1):
            with mistakes_of(name):
                profile.add(windows.to(model.device))
            observer.working(name, n_done, n_batches, "batches")
        widths = validate(decoder, held_out).token_widths if dynamic_layers(decoder.config) else None
        analyses = model_analyses(decoder, held_out, widths)
    return profile.summary(
        name=name,
        source=shown_path(model.path),
        kind="hf" if model.recipe is None else "widthwise",
        step=model.step,
        tokens=model.tokens,
        run=run,
        exit_flops=decoder.config.exit_flops(held_out.seq_len),
        block_exit_flops=decoder.config.block_exit_flops(held_out.seq_len),
        **analyses,
    )


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Return a dict from name to path. Names are the shortest ends of the paths that differ.

    Raises UserError without paths, and for a repeated one.
    """
    if not paths:
        raise UserError("analyze: expected at least one run directory or Hugging Face folder")
    resolved = [path.resolve() for path in paths]
    if len(set(resolved)) < len(resolved):
        repeated = next(path for path in resolved if resolved.count(path) > 1)
        raise UserError(f"analyze: {repeated.name} was named twice")
    n_parts = 1
    while len({path.parts[-n_parts:] for path in resolved}) < len(resolved):
        n_parts += 1
    return {"/".join(absolute.parts[-n_parts:]): path for absolute, path in zip(resolved, paths)}


def held_out_text(data: OpenedData) -> Corpus:
    """Return the held-out documents of prepared data, decoded from their tokens.

    Documents of a mixture are interleaved in proportion to the weights, until the next source has no more documents.
    """
    names = ", ".join(folder.manifest.corpus.name for folder in data.folders)
    read = partial(_mixed_documents, data) if isinstance(data, MixedData) else partial(_held_out_documents, data)
    return Corpus(f"held-out documents of {names}", read)


def _held_out_documents(data: PreparedData) -> Iterator[Document]:
    tokenizer = data.tokenizer
    for index in range(data.held_out.n_documents):
        ids = data.held_out.document(index).tolist()
        if ids[-1:] == [tokenizer.eos_id]:
            ids.pop()
        yield Document(str(index), tokenizer.decode(ids))


def _mixed_documents(data: MixedData) -> Iterator[Document]:
    """Yield documents, the next always from the source with the fewest tokens relative to its weight."""
    documents = {name: _held_out_documents(source) for name, source in data.sources.items()}
    n_read = dict.fromkeys(data.sources, 0)
    tokens_over_weight = dict.fromkeys(data.sources, Fraction(0))
    while True:
        name = min(n_read, key=tokens_over_weight.__getitem__)
        document = next(documents[name], None)
        if document is None:
            return
        n_read[name] += 1
        n_tokens = int(data.sources[name].held_out.document_starts[n_read[name]])
        tokens_over_weight[name] = Fraction(n_tokens, data.weights[name])
        yield document


def cut_text(text: Corpus, tokenizer: Tokenizer, n_tokens: int, path: Path) -> None:
    """Write the first n_tokens + SPARE_TOKENS tokens of a text to a JSONL file, as text.

    Each line has `text`, and `is_whole`: False for a document that was cut. Raises UserError for an empty text.
    """
    n_left = n_tokens + SPARE_TOKENS
    with writing(path), open(path, "x", encoding="utf-8") as file:
        for document in text:
            ids = tokenizer.encode(document.text)
            is_whole = len(ids) < n_left
            beginning = document.text if is_whole else tokenizer.decode(ids[:n_left]).rstrip(REPLACEMENT)
            file.write(json.dumps({"text": beginning, "is_whole": is_whole}) + "\n")
            n_left -= len(ids) + 1
            if n_left <= 0:
                break
    if n_left == n_tokens + SPARE_TOKENS:
        raise UserError(f"{text.name}: holds no text")


def tokens_of_text(path: Path, tokenizer: Tokenizer, prefix: Path) -> TokenFile:
    """Tokenise a file of `cut_text` into `prefix.bin` and `prefix.idx`. End-of-text tokens follow whole documents."""
    with reading(path), open(path, encoding="utf-8") as file:
        tokens = (
            tokenizer.encode(document["text"]) + ([tokenizer.eos_id] if document["is_whole"] else [])
            for document in map(json.loads, file)
        )
        return write_tokens(prefix, tokenizer.vocab_size, tokens)
