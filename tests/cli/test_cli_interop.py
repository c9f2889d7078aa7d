"""`widthwise import` and `widthwise export`, and what works between them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import yaml
from tokenizers import decoders, models, pre_tokenizers, trainers

from widthwise.run_dir import RunDir

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

Run = Callable[..., tuple[int, str, str]]
TEXT = "def fold(items):\n    return [item + 1 for item in items]\n"
RECIPE: dict[str, Any] = {
    "seq_len": 16,
    "data": {"corpus": "synthetic"},
    "optimizer": {"lr": 1e-5},
    "schedule": {"kind": "constant"},
    "train": {"steps": 2, "batch_size": 2, "precision": "fp32", "validation_tokens": 64},
}
TWO_TOKENS = ("--max-new-tokens", 2)
HOURGLASS = ("model.ffn.kind=hourglass", "model.ffn.n_blocks=2", "data.tokenizer=bpe-300", "model.vocab_size=300")


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    """The token that ends a text is not among the usual names, so that the config's number must be heeded."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=["<pad>", "<stop>"], **options)
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def llama(tokenizer: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with source, a tiny llama with its tokenizer, and training.yaml. Read only."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size() + 3,
        hidden_size=24,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "source")
    tokenizer.save(str(folder / "source" / "tokenizer.json"))
    (folder / "training.yaml").write_text(yaml.safe_dump(RECIPE))
    return folder


@pytest.fixture
def source(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the llama in the working folder of the test, beside training.yaml."""
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "source"


@pytest.fixture
def run(widthwise: Run, source: Path) -> str:
    assert widthwise("import", source, "run")[0] == 0
    return "run"


def _logits(folder: str | Path) -> torch.Tensor:
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    with torch.no_grad():
        return model.float().eval()(torch.arange(4, 21)[None]).logits


def _prepare(succeeds: Run, name: str, spec: str) -> str:
    """The override that names data prepared with a tokenizer."""
    succeeds("data", "prepare", "synthetic", "--out", name, "--tokenizer", spec)
    return f"data.path={name}"


def test_an_imported_model_generates_as_it_did_and_leaves_as_it_came(
    succeeds, widthwise, next_command: Callable, source: Path, tokenizer: tokenizers.Tokenizer
) -> None:
    Path("text.txt").write_text(TEXT)
    out, _ = succeeds("import", source, "run")
    assert "llama of" in out
    assert "with its tokenizer" in out
    origin = RunDir("run").environment()["imported"]
    assert (origin["folder"], origin["model_type"], origin["n_positions"]) == ("source", "llama", 48)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= origin["files"].keys()
    assert str(source.parent) not in json.dumps(origin)

    greedy = ("--max-new-tokens", 7, "--temperature", 0, "--json")
    said, _ = succeeds(*next_command(out, TEXT="def fold"), *greedy)
    prompt = torch.tensor([tokenizer.encode("def fold").ids])
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=7, do_sample=False)
    expected = tokenizer.decode(ids[0, prompt.shape[1] :].tolist())
    assert json.loads(said)["continuations"][0]["continuation"] == expected

    assert "llama of step 0 in fp32, with tokenizer.json" in succeeds("export", "run", "out")[0]
    succeeds(*next_command(out, FILE="text.txt"))
    assert torch.equal(_logits("out"), _logits(source))
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "vocab_size")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, Path("out")))
    assert [after[key] for key in keys] == [before[key] for key in keys]
    theirs = transformers.AutoTokenizer.from_pretrained("out")
    assert theirs(TEXT)["input_ids"] == tokenizer.encode(TEXT).ids
    assert (theirs.eos_token, theirs.decode(theirs(TEXT)["input_ids"])) == ("<stop>", TEXT)
    for verb, said in (
        (("import", source, "run"), "already holds a run"),
        (("import", source, "wider", "model.d_model=64"), "model.d_model=64: the model is that of"),
        (("import", "nowhere", "another"), "nowhere: no such folder"),
        (("export", "run", source), "exists already"),
    ):
        code, _, err = widthwise(*verb)
        assert (code, said in err) == (2, True)


def test_it_is_trained_further_on_a_recipe(widthwise: Run, next_command: Callable, source: Path) -> None:
    imported = widthwise("import", source, "run", "train.steps=3", "--recipe", "training.yaml")
    assert widthwise(*next_command(imported[1]))[0] == 0
    assert [record["step"] for record in RunDir("run").metrics() if record["event"] == "train"] == [3]
    assert RunDir("run").environment()["data"]["tokenizer"]["spec"].endswith("tokenizer.json#<stop>")
    assert widthwise("generate", "run", "--prompt", "def", *TWO_TOKENS)[0] == 0
    assert widthwise("export", "run", "half", "--dtype", "bf16", "--json")[0] == 0
    assert json.loads(Path("half/config.json").read_text())["dtype"] == "bfloat16"
    assert widthwise("export", "run", "out")[0] == 0
    assert 0 < (_logits("out") - _logits(source)).abs().max() < 0.05  # three small steps from where it came


def _grown(widthwise: Run) -> tuple[int, str, str]:
    """Hidden width, feed-forward and one more layer."""
    data = yaml.safe_load(Path("run/config.yaml").read_text())
    model = data["model"]
    model["layers"].append(model["layers"][-1])
    model.update(d_model=32, final_norm_width=32)
    for layer in model["layers"]:
        layer.update(d_model=32, d_in=32, d_out=32, ffn={**layer["ffn"], "d_ff": 50})
    Path("larger.yaml").write_text(json.dumps(data))
    assert widthwise("grow", "run", "--to", "larger.yaml", "--out", "large")[0] == 0
    return widthwise("export", "large", "out")


def _padded(widthwise: Run) -> tuple[int, str, str]:
    assert widthwise("pad", "run", "--d-ff-multiple", 16, "--d-model-multiple", 32, "--out", "large")[0] == 0
    return widthwise("export", "large", "out")


def _with_padded_heads(widthwise: Run) -> tuple[int, str, str]:
    """Heads of 6 coordinates get 8; the base of the rotary angles gives the old frequencies and one more."""
    code, _, err = widthwise("export", "run", "other", "--pad-heads", 12)
    assert (code, "pad_heads: got 12; allowed: multiples of 8" in err, Path("other").exists()) == (2, True, False)
    code, out, err = widthwise("export", "run", "out", "--pad-heads", 8)
    assert "all heads have 8 coordinates; the cache takes 128 bytes a token, not 96" in err
    assert json.loads(Path("out/config.json").read_text())["rope_theta"] == pytest.approx(10000 ** (8 / 6))
    return code, out, err


@pytest.mark.parametrize(
    ("export", "sizes"),
    [
        (_grown, {"hidden_size": 32, "intermediate_size": 50, "num_hidden_layers": 3, "max_position_embeddings": 48}),
        (_padded, {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}),
        (_with_padded_heads, {"head_dim": 8, "num_attention_heads": 4}),
    ],
)
def test_larger_it_leaves_as_a_plain_llama_of_the_same_logits(
    widthwise: Run, source: Path, run: str, export: Callable, sizes: dict[str, int]
) -> None:
    """Nothing in its config that only newer programs know, so that any converter of a llama takes it."""
    code, _, err = export(widthwise)
    assert code == 0, err
    config = json.loads(Path("out/config.json").read_text())
    assert {key: config[key] for key in sizes} == sizes
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert (config["model_type"], rope.get("rope_type", "default")) == ("llama", "default")
    expected = _logits(source)
    torch.testing.assert_close(_logits("out"), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_data_of_another_tokenizer_or_end_of_text_are_refused(succeeds, widthwise, source) -> None:
    ends_otherwise = _prepare(succeeds, "padded", f"{source / 'tokenizer.json'}#<pad>")
    for name, changes in (("first", ()), ("second", (ends_otherwise,)), ("bytes", ("data.tokenizer=bytes",))):
        assert widthwise("import", source, name, *changes, "--recipe", "training.yaml")[0] == 0
    for arguments, said in (
        (("grow", "first", ends_otherwise, "--out", "grown"), "whose texts end in '<stop>' and not in '<pad>'"),
        (("resume", "second"), "whose texts end in '<stop>' and not in '<pad>'"),
        (("resume", "bytes"), "error: data.tokenizer: got bytes; must be that of the model"),
    ):
        code, _, err = widthwise(*arguments)
        assert (code, said in err.splitlines()[-1]) == (2, True), err
    assert not Path("grown").exists()


def test_data_of_a_tokenizer_with_the_same_vocabulary_are_taken_and_then_kept(succeeds, widthwise, source) -> None:
    data = json.loads((source / "tokenizer.json").read_text())
    data["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    Path("same.json").write_text(json.dumps(data, indent=4))
    data["model"]["merges"].reverse()
    Path("other.json").write_text(json.dumps(data))
    for name in ("same", "other"):
        changed = _prepare(succeeds, name, f"{name}.json#<stop>")
        widthwise("import", source, f"run_{name}", changed, "--recipe", "training.yaml")
    code, _, err = widthwise("resume", "run_other")
    assert (code, "one with the same tokens, merges and end of text" in err) == (2, True)
    _, err = succeeds("resume", "run_same")
    kept = json.loads(Path("same/manifest.json").read_text())["tokenizer"]["id"]
    assert RunDir("run_same").environment()["data"]["tokenizer"]["id"] == kept
    succeeds("generate", "run_same", "--prompt", "def", *TWO_TOKENS)
    mixture = {name: {"path": "same", "weight": 1} for name in ("a", "b")}
    succeeds("import", source, "mixed", f"data.mixture={json.dumps(mixture)}", "--recipe", "training.yaml")
    succeeds("resume", "mixed")


def test_without_a_tokenizer_all_but_text_works(widthwise: Run, source: Path) -> None:
    (source / "tokenizer.json").unlink()
    code, out, _ = widthwise("import", source, "run", "data.tokenizer=bytes", "--recipe", "training.yaml")
    assert (code, "without a tokenizer" in out) == (0, True)
    code, _, err = widthwise("generate", "run", "--prompt", "def")
    assert (code, "holds no tokenizer" in err) == (2, True)
    assert widthwise("export", "run", "out")[0] == 0
    assert torch.equal(_logits("out"), _logits(source))
    assert not Path("out/tokenizer.json").exists()
    assert widthwise("resume", "run")[0] == 0
    assert widthwise("generate", "run", "--prompt", "def", *TWO_TOKENS)[0] == 0


def test_a_recipe_that_does_not_fit_is_refused(widthwise: Run, source: Path) -> None:
    for changes, message in (
        (("train.stepz=3",), "train.stepz: unknown key; did you mean 'steps'?"),
        (("compare.seeds=[1]",), "has a compare section"),
        (("train.steps=1", "schedule.warmup_steps=9"), "schedule.warmup_steps: got 9; must be less than"),
    ):
        code, _, err = widthwise("import", source, "run", *changes)
        assert (code, message in err, len(err.strip().splitlines())) == (2, True, 1)
        assert not RunDir("run").exists


def test_a_run_that_no_format_can_say_leaves_as_our_own_and_comes_back(
    widthwise: Run, recipe: Path, tmp_path: Path
) -> None:
    run, folder, again = tmp_path / "run", tmp_path / "out", tmp_path / "again"
    assert widthwise("train", recipe, *HOURGLASS, "model.n_layers=2", "--out", run)[0] == 0
    code, out, err = widthwise("export", run, folder, "--standalone")
    assert (code, len(err.strip().splitlines())) == (0, 1)
    assert "because no other format says all of it: layers.0.ffn.kind: got hourglass; llama has swiglu there" in err
    assert "widthwise of step" in out
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    wanted |= {"modeling_widthwise.py", "configuration_widthwise.py", "README.md"}
    assert {path.name for path in folder.iterdir()} == wanted
    card = (folder / "README.md").read_text()
    assert all(f"## {title}\n" in card for title in ("Use", "Shape", "Cost", "Training", "Evaluation"))
    assert "nats_per_token" in card
    assert widthwise("import", folder, again)[0] == 0
    assert widthwise("export", again, tmp_path / "twice")[0] == 0
    assert (tmp_path / "twice" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    prompt = ("--prompt", "def a", "--max-new-tokens", 5, "--temperature", 0)
    assert widthwise("generate", run, *prompt)[1] == widthwise("generate", again, *prompt)[1]


@pytest.mark.hard
def test_the_python_of_a_card_runs_as_it_stands(widthwise: Run, recipe: Path, tmp_path: Path) -> None:
    """With the package where the folder has no code, and without it where it has."""
    assert widthwise("train", recipe, *HOURGLASS, "--out", tmp_path / "run")[0] == 0
    for name, options, hidden in (("out", (), ()), ("alone", ("--standalone",), ("widthwise",))):
        assert widthwise("export", tmp_path / "run", tmp_path / name, *options)[0] == 0
        card = (tmp_path / name / "README.md").read_text()
        assert "A decoder, x-shaped" in card or "A decoder, uniform in width" in card
        assert "hourglass feed-forwards" in card
        assert re.search(r"\| data \| \S+ \w{12}, tokenizer bpe-300", card)
        (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
        hide = f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
        surroundings = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", hide + code]
        done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Once upon a time")


def test_a_model_trained_here_is_loaded_by_transformers(widthwise: Run, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ("data.tokenizer=bpe-300", "model.vocab_size=300", "model.n_layers=2")
    assert widthwise("train", recipe, *small, "--out", run)[0] == 0
    assert widthwise("export", run, tmp_path / "out", "--n-positions", 99)[0] == 0
    options = ("--prompt", "a", "--max-new-tokens", 5, "--temperature", 0, "--json")
    ours = json.loads(widthwise("generate", run, *options)[1])["continuations"][0]["continuation"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.max_position_embeddings == 99
    prompt = tokenizer("a", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=5, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    assert tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True) == ours
