import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
RECIPE = """
model: {vocab_size: 257, d_model: 16, n_layers: 2, attention: {head_dim: 8}}
seq_len: 16
data: {corpus: synthetic, tokenizer: bytes}
optimizer: {lr: 0.01}
schedule: {kind: constant}
train: {steps: 6, batch_size: 2, precision: fp32, log_every: 2, validation_tokens: 64}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def start(tmp_path, cache):
    """Starts `widthwise ...` in an empty folder that holds recipe.yaml."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "WIDTHWISE_CACHE": str(cache)}

    def start(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", "from widthwise.cli.main import main; main()", *arguments]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def test_train_prints_lines_while_it_goes_and_the_result_at_the_end(start, tmp_path):
    code, out, err = finish(start("train", "recipe.yaml", "train.seed=5"))
    assert code == 0, err
    assert "recipe: step 4/6  train loss" in err
    assert "validation loss" in out
    assert json.loads((tmp_path / "runs" / "recipe" / "result.json").read_text())["seed"] == 5


def test_json_alone_is_on_standard_output_and_finished_runs_are_told(start):
    code, out, err = finish(start("train", "recipe.yaml", "--out", "there", "--json"))
    assert code == 0, err
    assert json.loads(out)["steps"] == 6
    code, again, err = finish(start("resume", "there", "--json"))
    assert (code, json.loads(again)) == (0, json.loads(out))
    assert err == "there: has finished already\n"


def test_a_mistake_is_one_line_and_exit_code_2(start):
    code, out, err = finish(start("train", "recipe.yaml", "schedule.warmup_steps=6"))
    assert (code, out) == (2, "")
    assert err == "error: schedule.warmup_steps: got 6; must be less than train.steps = 6\n"


def test_a_diverging_run_is_one_line_and_exit_code_1(start):
    code, _, err = finish(start("train", "recipe.yaml", "optimizer.lr=1e38", "train.log_every=1"))
    assert code == 1
    assert "stopped at step 2 of 6" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_says_how_to_go_on(start, number):
    process = start("train", "recipe.yaml", "train.steps=100000", "--out", "there")
    while "train loss" not in process.stderr.readline():
        pass
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 128 + number
    assert "`widthwise resume there` goes on" in err.splitlines()[-1]
    assert "Traceback" not in err
