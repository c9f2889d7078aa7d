"""The adapter keeps answers for the harness, and refuses what it cannot do.

Likelihoods through it are compared with the harness's own in `test_lm_eval_equals_hf.py`.
"""

from typing import Any
from unittest.mock import Mock, call

import pytest
from harness_cases import instances, keep_harness_in
from scored_models import N_POSITIONS, tiny_scorer

from widthwise.mistakes import UserError
from widthwise.runs.evaluate import run_lm_eval

lm_eval_model = pytest.importorskip("widthwise.evaluation.lm_eval_model", reason="needs the extra [eval]")


def adapter() -> Any:
    return lm_eval_model.ScorerLM(tiny_scorer("x", N_POSITIONS))


def test_what_a_task_cannot_have_is_refused(tmp_path, monkeypatch) -> None:
    keep_harness_in(tmp_path, monkeypatch)
    (tmp_path / "texts.jsonl").write_text('{"question": "a", "answer": "b"}\n')
    task = tmp_path / "writes.yaml"
    task.write_text(
        f"task: writes\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/texts.jsonl}}}}\n"
        "test_split: test\noutput_type: generate_until\ndoc_to_text: question\ndoc_to_target: answer\n"
    )
    with pytest.raises(UserError, match="tasks: writes generates text; `widthwise export` the model and use `lm_eval"):
        run_lm_eval(tiny_scorer(), [str(task)])
    with pytest.raises(
        UserError, match=r"tasks: got 'piqaa'; lm-evaluation-harness has no task of that name; `lm_eval ls"
    ):
        run_lm_eval(tiny_scorer(), ["piqaa"])
    with pytest.raises(UserError, match="has no chat template"):
        adapter().apply_chat_template([{"role": "user", "content": "a"}])


def test_answers_are_kept_for_the_cache_of_the_harness() -> None:
    lm, hook = adapter(), Mock()
    lm.set_cache_hook(hook)
    pair = ("The gate", " stood")
    asked = {"loglikelihood": pair, "loglikelihood_rolling": pair[:1]}
    expected = [call(kind, each, getattr(lm, kind)(instances(kind, [each]))[0]) for kind, each in asked.items()]
    assert hook.add_partial.call_args_list == expected
