"""The questions behind items that flipped."""

from pathlib import Path

from harness_cases import write_lines

from widthwise.config_io import parse
from widthwise.runs.evaluate import EvaluationConfig
from widthwise.runs.flipped import Flipped, flipped_items

CHOICES = [{"query": f"Question {i}:", "choices": ["no", "yes"], "gold": i % 2} for i in range(4)]
SCHEMAS = [{"context_options": ["he said so she", "he said so he"], "continuation": "left.", "gold": 1}]
CLOZES = [{"context": "once upon", "continuation": "a time"}]


def test_flipped_items_are_shown_with_their_right_answers(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    path = write_lines(tmp_path / "mine.jsonl", CHOICES)
    path.write_text("\n" + path.read_text())  # an empty line counts as a line, not as an item
    write_lines(tmp_path / "local" / "winogrande.jsonl", SCHEMAS)
    write_lines(tmp_path / "local" / "lambada_openai.jsonl", CLOZES)
    write_lines(tmp_path / "local" / "piqa.jsonl", CHOICES)
    asked = {"task_files": [str(path)], "suite": "variable-width", "local": str(tmp_path / "local"), "partial": True}
    one = {"gained": [1], "lost": [], "p_value": 1.0}
    entries = [
        {"on": "mine", "metric": "acc", "flips": {"gained": [2, 3, 4], "lost": [1], "p_value": 0.6}},
        {"on": "mine", "metric": "nats"},
        {"on": "variable-width/winogrande", "metric": "acc", "flips": one},
        {"on": "variable-width/lambada_openai", "metric": "acc", "flips": one},
        {"on": "variable-width/piqa", "metric": "acc_norm", "flips": one},
        {"on": "lm-eval race", "metric": "acc", "flips": one},
    ]
    found = list(flipped_items(parse(EvaluationConfig, asked), entries, 2))
    suite = tmp_path / "local"
    assert found == [
        Flipped("mine", "acc", True, f"{path}: line 3", "Question 1: ", "yes"),
        Flipped("mine", "acc", True, f"{path}: line 4", "Question 2: ", "no"),
        Flipped("mine", "acc", False, f"{path}: line 2", "Question 0: ", "no"),
        *(
            Flipped(f"variable-width/{stem}", metric, True, f"{suite / stem}.jsonl: line 1", question, answer)
            for stem, metric, question, answer in (
                ("winogrande", "acc", "he said so he ", "left."),
                ("lambada_openai", "acc", "once upon ", "a time"),
                ("piqa", "acc_norm", "Question 0:Answer: ", "no"),
            )
        ),
    ]
