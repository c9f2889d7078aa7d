"""Questions made from a text, for models that are too small for those of the papers.

Two kinds, as the papers have: `continuations`, which of four lines follows a passage, where the wrong ones follow other
passages, as HellaSwag asks; and `last_words`, the next word of a passage in which it has occurred, as LAMBADA asks.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from widthwise.files import write_atomic
from widthwise.mistakes import UserError

N_CHOICES = 4
CONTEXT_LINES = 6
CONTEXT_WORDS = 40
SHORTEST_WORD = 4
"""Letters of the shortest word; brackets and operators are no words."""
CONTINUATIONS, LAST_WORDS, TEXT = "continuations", "last_words", "held_out.txt"


def write_questions(texts: Iterable[str], n_items: int, folder: Path) -> list[Path]:
    """Write n_items questions of each kind, at most one from each text, and return their files.

    texts: documents. Raises UserError if they are too few for a single question.
    """
    passages, words = [], []
    for text in texts:
        passages += itertools.islice(_passages(text), 1)
        words += itertools.islice(_words(text), 1)
        if min(len(passages), len(words)) >= n_items:
            break
    if len({line for _, line in passages}) < N_CHOICES or not words:
        raise UserError(f"{folder}: the held-out text is too short for questions; give it more documents")
    questions = {
        CONTINUATIONS: [_choice(i, passages[:n_items]) for i in range(len(passages[:n_items]))],
        LAST_WORDS: [{"context": context, "continuation": word} for context, word in words[:n_items]],
    }
    files = []
    for name, rows in questions.items():
        files.append(folder / f"{name}.jsonl")
        write_atomic(files[-1], "".join(json.dumps(row) + "\n" for row in rows))
    return files


def _passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield lines, and the line that follows them, from the middle of the text on."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for i in range(max(len(lines) // 2, CONTEXT_LINES), len(lines)):
        yield "\n".join(lines[i - CONTEXT_LINES : i]), lines[i].strip()


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield words, and the word that follows them if it occurs among them, from the middle of the text on."""
    words = text.split()
    for i in range(max(len(words) // 2, CONTEXT_WORDS), len(words)):
        context, word = words[i - CONTEXT_WORDS : i], words[i]
        if word.isalpha() and len(word) >= SHORTEST_WORD and word in context:
            yield " ".join(context), word


def _choice(i: int, passages: list[tuple[str, str]]) -> dict[str, object]:
    """Return the question of a passage; the wrong answers are right ones of the passages after it."""
    context, right = passages[i]
    others = dict.fromkeys(line for _, line in (*passages[i:], *passages[:i]) if line != right)
    choices = list(itertools.islice(others, N_CHOICES - 1))
    gold = i % (len(choices) + 1)
    return {"query": context, "choices": [*choices[:gold], right, *choices[gold:]], "gold": gold}
