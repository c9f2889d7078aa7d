"""Turn text, or Megatron-LM shards, into a folder to train on."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widthwise.cli.options import Command, JsonOption, with_options
from widthwise.cli.progress import shown_progress
from widthwise.cli.terminal import progress_console, say, say_json, say_tables
from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.reports.formats import clean, fixed
from widthwise.reports.table import Table

if TYPE_CHECKING:
    from widthwise.data.identity import Manifest

FEW_TOKENS = 1000
"""With fewer held-out tokens, the validation loss is too noisy, and a note is printed."""

data_app = typer.Typer(name="data", no_args_is_help=True, help=__doc__, rich_markup_mode="markdown")


class PrepareOptions(Config):
    """Options of `data prepare`."""

    out: Path
    """Folder to write; must be new or empty."""
    tokenizer: str = "bpe-4096"
    """bytes, bpe-N (trained on SRC), or path/to/tokenizer.json (#TOKEN names its end of text)."""
    held_out: float | None = None
    """Fraction of documents held out for validation; default: 0.05."""
    held_out_from: tuple[str, ...] = ()
    """Hold out all documents of this source for validation, in place of a fraction, and drop equal documents from
    training; repeat for several."""
    field: str = "text"
    """The field or column that holds the text."""
    document_bytes: int | None = None
    """Split longer texts at line ends into documents of about this many bytes."""
    max_tokens: int | None = None
    """Stop before the document that would exceed this number of training tokens."""


@data_app.command("prepare", cls=Command)
@with_options
def prepare_command(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Text to tokenize.")],
    options: PrepareOptions,
    as_json: JsonOption = False,
) -> None:
    """Tokenize SRC into train and held-out shards.

    SRC is a file (.txt .md .py .jsonl .json, .gz and .zst of each, .parquet), a folder, hf:NAME, hf:NAME@CONFIG:SPLIT,
    python-stdlib, installed-python or synthetic.

    Example: `widthwise data prepare books/ --out data/books --tokenizer bpe-8192 --document-bytes 20000`
    """
    if options.held_out is not None and options.held_out_from:
        raise UserError(f"--held-out: got {options.held_out}; conflicts with --held-out-from; use one of them")
    fraction = 0.05 if options.held_out is None else options.held_out
    from widthwise.data.prepare import prepare
    from widthwise.data.readers import open_source

    reading = {"field": options.field, "document_bytes": options.document_bytes}
    with shown_progress(progress_console()) as shown:
        prepared = prepare(
            open_source(source, **reading),
            options.out,
            tokenizer=options.tokenizer,
            held_out=[open_source(path, **reading) for path in options.held_out_from] or fraction,
            max_tokens=options.max_tokens,
            progress=shown.preparing,
        )
    _show(prepared.manifest, options.out, as_json)


class AdoptOptions(Config):
    """Options of `data adopt`."""

    out: Path
    """Folder to write; must be new or empty."""
    train: Path
    """Shards to train on: the PREFIX of PREFIX.bin and PREFIX.idx, or a folder of shards, which are joined."""
    held_out: Path
    """Shards held out for validation: a PREFIX or a folder."""
    tokenizer: str
    """Tokenizer of the shards: path/to/tokenizer.json (#TOKEN names its end of text), or bytes."""


@data_app.command("adopt", cls=Command)
@with_options
def adopt_command(options: AdoptOptions, as_json: JsonOption = False) -> None:
    """Check Megatron-LM shards (.bin and .idx) and link them into a folder, copying only where necessary.

    Example: `widthwise data adopt --train wiki_train --held-out wiki_valid --tokenizer tokenizer.json --out data/wiki`
    """
    from widthwise.data.prepared import adopt

    with shown_progress(progress_console()) as shown:
        adopted = adopt(
            options.train, options.held_out, options.out, tokenizer=options.tokenizer, progress=shown.preparing
        )
    _show(adopted.manifest, options.out, as_json)


@data_app.command("verify")
def verify_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder made by prepare or adopt, or its URL.")],
    as_json: JsonOption = False,
) -> None:
    """Read a prepared folder and check every checksum and every token, as a run does before its first step.

    Example: `widthwise data verify data/books`
    """
    from widthwise.data.prepared import PreparedData

    with shown_progress(progress_console()) as shown:
        data = PreparedData.open(folder, shown.preparing)
        data.verify(shown.preparing)
    _show(data.manifest, data.path, as_json)


@data_app.command("list")
def list_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder made by prepare, or its URL.")],
    split: Annotated[str, typer.Option(metavar="held-out|train", help="Documents to list.")] = "held-out",
    n: Annotated[int, typer.Option("--n", min=1, help="Largest number of documents; --json prints all.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List the held-out or the training documents of a prepared folder by name, with their numbers of tokens.

    Example: `widthwise data list data/books --split train`
    """
    from widthwise.data.prepared import PreparedData

    if split not in ("held-out", "held_out", "train"):
        raise UserError(f"--split: got {split!r}; allowed: held-out, train")
    split_name = "train" if split == "train" else "held_out"
    with shown_progress(progress_console()) as shown:
        data = PreparedData.open(folder, shown.preparing)
    documents = data.documents(split_name)
    if as_json:
        say_json([{"name": name, "n_tokens": n_tokens} for name, n_tokens in documents])
        return
    n_documents = getattr(data.manifest.splits, split_name).n_documents
    count = f"{n_documents:,}" if n_documents <= n else f"the first {n:,} of {n_documents:,}"
    title = f"documents {'to train on' if split_name == 'train' else 'held out'}: {count}, in {data.path}"
    rows = [[clean(name), f"{n_tokens:,}"] for name, n_tokens in islice(documents, n)]
    say_tables(Table(clean(title), ["document", "tokens"], rows))


def _show(manifest: "Manifest", out: Path, as_json: bool) -> None:
    """Print the sizes of the splits of a prepared folder, with notes; or its manifest as JSON."""
    if as_json:
        say_json(manifest.model_dump(mode="json"))
        return
    splits = manifest.splits
    title = f"{out} ({manifest.tokenizer.spec}, {manifest.tokenizer.vocab_size:,} tokens in the vocabulary)"
    rows = []
    for name, split in (("train", splits.train), ("held out", splits.held_out)):
        counts = (f"{n:,}" for n in (split.n_documents, split.n_tokens, split.n_bytes))
        rows.append([name, *counts, fixed(split.n_bytes / split.n_tokens, 3)])
    say_tables(Table(clean(title), ["split", "documents", "tokens", "bytes", "bytes per token"], rows))
    if splits.held_out.n_tokens < FEW_TOKENS:
        say(
            f"note: only {splits.held_out.n_tokens:,} tokens are held out; hold out more (--held-out), or cut the text "
            "into smaller documents (--document-bytes)"
        )
    if splits.held_out.n_bytes != splits.held_out.n_token_bytes:
        say(
            f"note: the tokenizer changes the text: held-out tokens decode to {splits.held_out.n_token_bytes:,} bytes, "
            f"the text has {splits.held_out.n_bytes:,}; bits per byte use the bytes of the text"
        )
    held_out = manifest.held_out_from
    if held_out is not None:
        say(f"held out: {', '.join(held_out.sources)}; equal documents dropped from training: {held_out.n_left_out:,}")
