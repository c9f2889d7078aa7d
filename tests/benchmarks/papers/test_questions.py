"""Questions made from held-out text."""

import json
from pathlib import Path

from papers.questions import write_questions

from widthwise.evaluation.local_tasks import load_task

TEXTS = [
    "\n".join(f"line {i} of text{name} has words of text{name} again" for i in range(15)).replace("text", "document")
    for name in "abcdefg"
]
"""Every line names its document twice, so that the next word has often occurred before."""


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_question_asks_for_the_line_that_follows_or_for_a_word_that_occurred_before(tmp_path: Path) -> None:
    continuations, last_words = write_questions(TEXTS, 5, tmp_path)
    found = rows(continuations)
    assert len(found) == 5
    for text, question in zip(TEXTS, found):
        passage = question["query"] + "\n" + question["choices"][question["gold"]]
        assert passage in text
        wrong = [choice for i, choice in enumerate(question["choices"]) if i != question["gold"]]
        assert len(set(wrong)) == 3
        assert not any(choice in text for choice in wrong)
    assert [question["gold"] for question in found] == [0, 1, 2, 3, 0]

    for text, question in zip(TEXTS, rows(last_words)):
        context, word = question["context"], question["continuation"]
        assert f"{context} {word}" in " ".join(text.split())
        assert word in context.split()
    assert [len(load_task(file).items) for file in tmp_path.glob("*.jsonl")] == [5, 5]
