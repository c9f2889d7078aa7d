"""What preparing a corpus costs beyond tokenizing it: `prepare` with one worker against a loop over the bare tokenizer.

python benchmarks/preparation.py [--quick] [--out benchmarks/results/preparation_cpu.json]

Both encode the same texts with the same tokenizer.json on the same threads. The bare loop has the texts in memory and
throws the tokens away; `prepare` reads them from files twice, decides the split, writes shards that survive a power cut
and computes all checksums.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import tokenizers
from harness import Part, cpu_command, interleave, summarise

from widthwise.data.corpus import named_corpus
from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.prepare import BATCH_BYTES, prepare
from widthwise.data.readers import open_source

TARGET_WALL_RATIO = 1.15
HELD_OUT = 0.2
FULL = {"n_bytes": 2_000_000, "vocab_size": 4096, "n_rounds": 7}
QUICK = {"n_bytes": 300_000, "vocab_size": 300, "n_rounds": 2}


def corpus_texts(n_bytes: int) -> list[str]:
    """Source files of the standard library, about this much in all."""
    texts: list[str] = []
    for document in named_corpus("python-stdlib"):
        texts.append(document.text)
        n_bytes -= len(document.text.encode())
        if n_bytes <= 0:
            break
    return texts


def write_jsonl(texts: list[str], folder: Path) -> None:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_files(texts: list[str], folder: Path) -> None:
    for index, text in enumerate(texts):
        (folder / f"{index:05d}.txt").write_text(text)


FORMS: dict[str, Callable[[list[str], Path], None]] = {"jsonl": write_jsonl, "text_files": write_files}


def batches(texts: list[str]) -> Iterator[list[str]]:
    """Of the size that `prepare` encodes at once."""
    batch: list[str] = []
    n_bytes = 0
    for text in texts:
        batch.append(text)
        n_bytes += len(text.encode())
        if n_bytes >= BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
    yield batch


def measure(form: str, sizes: dict[str, int], seconds: float) -> dict[str, Any]:
    texts = corpus_texts(sizes["n_bytes"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source").mkdir()
        FORMS[form](texts, folder / "source")
        tokenizer_path = train_bpe(iter(texts), sizes["vocab_size"]).save(folder)
        together = [*batches(texts)]
        numbers = count()

        def bare(method: str) -> None:
            """A new tokenizer each time, whose cache of words is empty, as that of `prepare` is."""
            encode = getattr(tokenizers.Tokenizer.from_file(str(tokenizer_path)), method)
            for batch in together:
                encode(batch, add_special_tokens=False)

        def prepared() -> None:
            out = folder / f"out{next(numbers)}"
            prepare(open_source(str(folder / "source")), out, tokenizer=str(tokenizer_path), held_out=HELD_OUT)

        variants = {
            "encode_batch_fast": partial(bare, "encode_batch_fast"),
            "encode_batch": partial(bare, "encode_batch"),
            "prepare": prepared,
        }
        times = interleave(variants, n_rounds=sizes["n_rounds"], n_warmup=1)
    found = {baseline: summarise(times, baseline)["prepare"]["wall_ratio"] for baseline in [*variants][:2]}
    medians = {baseline: ratio["median"] for baseline, ratio in found.items()}
    return {
        "variants": summarise(times, "encode_batch_fast"),
        "prepare_over_encode_batch": found["encode_batch"],
        "n_documents": len(texts),
        "n_bytes": sum(len(text.encode()) for text in texts),
        "target": TARGET_WALL_RATIO,
        "meets_target": medians["encode_batch_fast"] < TARGET_WALL_RATIO,
        "summary": ", ".join(f"{ratio:.3f} of the bare {name}" for name, ratio in medians.items()),
    }


def main(argv: list[str] | None = None) -> int:
    def parts(quick: bool) -> list[Part]:
        return [Part(form, partial(measure, form, QUICK if quick else FULL), seconds=280) for form in FORMS]

    return cpu_command(__doc__, "preparation", parts, 560, argv)


if __name__ == "__main__":
    sys.exit(main())
