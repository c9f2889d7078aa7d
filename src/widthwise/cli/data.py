"""`widthwise data`: text or Megatron-LM shards -> a folder to train on."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import progress_console, say, say_json
from widthwise.config_io import UserError
from widthwise.reports.page.formats import clean, fixed
from widthwise.reports.page.table import Table

if TYPE_CHECKING:
    from widthwise.data.documents import ProgressCallback
    from widthwise.data.manifest import Manifest

OutOption = Annotated[Path, typer.Option("--out", help="The folder to write; it must be new or empty.")]
SPLITS: Mapping[str, Literal["held_out", "train"]] = {"held_out": "held_out", "train": "train"}
JsonOption = Annotated[bool, typer.Option("--json", help="Print the manifest instead of a table.")]

data_app = typer.Typer(
    no_args_is_help=True,
    help="Turn text, or Megatron-LM shards, into a folder to train on.",
    rich_markup_mode="markdown",
)


@data_app.command("prepare")
def prepare_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A file, a folder, hf:NAME, hf:NAME@CONFIG:SPLIT, python-stdlib, installed-python or synthetic.",
        ),
    ],
    out: OutOption,
    tokenizer: Annotated[
        str,
        typer.Option(
            help="bytes, bpe-N (trained on SRC), tiktoken:NAME, path/to/tokenizer.json (#TOKEN names its end of text)."
        ),
    ] = "bpe-4096",
    held_out: Annotated[
        str | None,
        typer.Option(metavar="FLOAT", help="Fraction of documents kept for validation; 0.05 where nothing is said."),
    ] = None,
    held_out_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Keep all documents of this source for validation, in place of a fraction, and leave those equal to "
            "one out of training; may be given several times.",
        ),
    ] = None,
    field: Annotated[str, typer.Option(help="The field or column that holds the text.")] = "text",
    document_bytes: Annotated[
        int | None, typer.Option(help="Split longer texts at line ends into documents of about this size.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Stop before the document that would make more training tokens than this.")
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Encode in this many processes, for which one reads; 1 uses threads.")
    ] = 1,
    workers: Annotated[
        int | None,
        typer.Option(help="Share the files of SRC among this many processes that read and encode (extra prep)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tokenize SRC (.txt .md .py .jsonl .jsonl.gz .jsonl.zst .parquet, or a folder) into train and held-out shards.

    Example: `widthwise data prepare books/ --out data/books --tokenizer bpe-8192 --document-bytes 20000`
    """
    if held_out is not None and held_out_from:
        raise UserError(f"--held-out: got {held_out} beside --held-out-from; give one of them")
    options = {"tokenizer": tokenizer, "max_tokens": max_tokens}
    fraction = 0.05 if held_out is None else _fraction(held_out)
    _check_held_out_from(held_out_from or (), source)
    reading = {"field": field, "document_bytes": document_bytes}
    with _progress_shown() as progress:
        if workers is None:
            from widthwise.data.prepare import prepare
            from widthwise.data.readers import open_source

            corpus = open_source(source, **reading)
            kept = [open_source(path, **reading) for path in held_out_from or ()] or fraction
            prepared = prepare(corpus, out, held_out=kept, n_processes=processes, progress=progress, **options)
        else:
            from widthwise.data.plan import make_plan
            from widthwise.data.workers import prepare_with_workers

            _refuse_both(processes)
            plan = make_plan(source, held_out=held_out_from or fraction, **reading, **options)
            prepared = prepare_with_workers(plan, out, workers, progress)
    _show(prepared.manifest, out, as_json)


@data_app.command("adopt")
def adopt_command(
    train: Annotated[
        Path, typer.Option("--train", metavar="PREFIX", help="Shards to train on: PREFIX.bin and PREFIX.idx.")
    ],
    held_out: Annotated[Path, typer.Option("--held-out", metavar="PREFIX", help="Shards kept for validation.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="SPEC",
            help="Their tokenizer: path/to/tokenizer.json (#TOKEN names its end of text), tiktoken:NAME or bytes.",
        ),
    ],
    out: OutOption,
    as_json: JsonOption = False,
) -> None:
    """Check Megatron-LM shards (.bin and .idx) and link them into a folder, copying only where necessary.

    Example: `widthwise data adopt --train wiki_train --held-out wiki_valid --tokenizer tokenizer.json --out data/wiki`
    """
    from widthwise.data.adopt import adopt

    with _progress_shown() as progress:
        adopted = adopt(train, held_out, out, tokenizer=tokenizer, progress=progress)
    _show(adopted.manifest, out, as_json)


@data_app.command("verify")
def verify_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder made by prepare or adopt, or its URL.")],
    as_json: JsonOption = False,
) -> None:
    """Read a prepared folder and check every checksum and every token, as a run does before its first step.

    Example: `widthwise data verify data/books`
    """
    from widthwise.data.prepared import PreparedData

    with _progress_shown() as progress:
        data = PreparedData.open(folder, progress)
        data.verify(progress)
    _show(data.manifest, data.path, as_json)


@data_app.command("list")
def list_command(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder made by prepare, or its URL.")],
    split: Annotated[str, typer.Option(metavar="held-out|train", help="Which documents to list.")] = "held-out",
    n: Annotated[int, typer.Option("--n", min=1, help="How many at most; --json prints all.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print all names and tokens instead of a table.")] = False,
) -> None:
    """List the documents of a prepared folder by name, with their tokens: those held out, or those trained on.

    Example: `widthwise data list data/books --split train`
    """
    from widthwise.data.prepared import PreparedData

    asked = SPLITS.get(split.replace("-", "_"))
    if asked is None:
        raise UserError(f"--split: got {split!r}; allowed: held-out, train")
    with _progress_shown() as progress:
        data = PreparedData.open(folder, progress)
    documents = data.documents(asked)
    if as_json:
        say_json([{"name": name, "n_tokens": n_tokens} for name, n_tokens in documents])
        return
    n_documents = getattr(data.manifest.splits, asked).n_documents
    shown = f"{n_documents:,}" if n_documents <= n else f"the first {n:,} of {n_documents:,}"
    title = f"documents {'held out' if asked == 'held_out' else 'to train on'}: {shown}, in {data.path}"
    rows = [[clean(name), f"{n_tokens:,}"] for name, n_tokens in islice(documents, n)]
    say_tables(Table(clean(title), ["document", "tokens"], rows))


def _fraction(held_out: str) -> float:
    """Raises UserError for what is no number."""
    try:
        return float(held_out)
    except ValueError:
        raise UserError(
            f"--held-out: got {held_out!r}; expected a fraction between 0 and 1; `--held-out-from {held_out}` holds "
            "out the documents of a path"
        ) from None


def _check_held_out_from(paths: Sequence[str], source: str) -> None:
    """Raises UserError for the name of a document of `source`, as `data list` shows it, in place of a path."""
    folder = source if os.path.isdir(source) else os.path.dirname(source)
    for path in paths:
        file = os.path.join(folder, re.split("[#:]", path)[0])
        if not os.path.exists(path) and os.path.isfile(file):
            raise UserError(f"--held-out-from: got {path!r}; expected a path; did you mean {file!r}?")


def _refuse_both(processes: int) -> None:
    if processes != 1:
        raise UserError(f"processes: got {processes} beside workers; give one of them")


@contextmanager
def _progress_shown() -> Iterator["ProgressCallback"]:
    """Progress on standard error, so that the output of --json stays clean."""
    from widthwise.cli.progress import shown_progress

    with shown_progress(progress_console()) as observer:
        yield observer.preparing


def _show(manifest: "Manifest", out: Path, as_json: bool) -> None:
    if as_json:
        say_json(manifest.model_dump(mode="json"))
        return
    tokenizer, splits = manifest.tokenizer, manifest.splits
    title = f"{out} ({tokenizer.spec}, {tokenizer.vocab_size:,} tokens in the vocabulary)"
    rows = [
        [
            name,
            *(f"{n:,}" for n in (split.n_documents, split.n_tokens, split.n_bytes)),
            fixed(split.n_bytes / split.n_tokens, 3),
        ]
        for name, split in (("train", splits.train), ("held out", splits.held_out))
    ]
    say_tables(Table(clean(title), ["split", "documents", "tokens", "bytes", "bytes per token"], rows))
    if (kept := manifest.held_out_from) is not None:
        say(f"held out: {', '.join(kept.sources)}; documents left out of training as equal to one: {kept.n_left_out:,}")
