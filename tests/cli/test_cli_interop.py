"""`widthwise import` and `widthwise export`, and what works between them."""

import importlib
import json
import os
import re
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


def _tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # The token that ends a text is not among the usual names, so that the config's number must be heeded.
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<pad>", "<stop>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 9, trainer)
    return tokenizer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tiny llama with its tokenizer."""
    tokenizer = _tokenizer()
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
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "source")
    tokenizer.save(str(tmp_path / "source" / "tokenizer.json"))
    return tmp_path / "source"


@pytest.fixture
def training(tmp_path: Path) -> Path:
    path = tmp_path / "training.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


def _logits(folder: Path) -> torch.Tensor:
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    with torch.no_grad():
        return model.float().eval()(torch.arange(4, 21)[None]).logits


def test_an_imported_model_leaves_as_it_came(widthwise: Run, source: Path, tmp_path: Path) -> None:
    code, out, _ = widthwise("import", source, tmp_path / "run")
    assert code == 0
    assert "llama of" in out
    assert "with its tokenizer" in out
    code, out, _ = widthwise("export", tmp_path / "run", tmp_path / "out")
    assert (code, "llama of step 0 in fp32, with tokenizer.json" in out) == (0, True)
    assert torch.equal(_logits(tmp_path / "out"), _logits(source))
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "vocab_size")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "out"))
    assert [after[key] for key in keys] == [before[key] for key in keys]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(TEXT)["input_ids"] == _tokenizer().encode(TEXT).ids
    assert (theirs.eos_token, theirs.decode(theirs(TEXT)["input_ids"])) == ("<stop>", TEXT)


def test_the_commands_that_come_next_work(widthwise: Run, next_command: Callable, source: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    generate = next_command(widthwise("import", source, tmp_path / "run")[1], TEXT="def")
    assert widthwise(*generate, "--max-new-tokens", 2)[0] == 0
    evaluate = next_command(widthwise("export", tmp_path / "run", tmp_path / "out")[1], FILE=str(tmp_path / "text.txt"))
    assert widthwise(*evaluate)[0] == 0


def test_the_run_says_where_it_came_from(widthwise: Run, source: Path, tmp_path: Path) -> None:
    widthwise("import", source, tmp_path / "run")
    origin = RunDir(tmp_path / "run").environment()["imported"]
    assert (origin["folder"], origin["model_type"], origin["n_positions"]) == ("source", "llama", 48)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= origin["files"].keys()
    assert str(tmp_path) not in json.dumps(origin)


def test_it_generates_what_transformers_does(widthwise: Run, source: Path, tmp_path: Path) -> None:
    widthwise("import", source, tmp_path / "run")
    options = ("--prompt", "def fold", "--max-new-tokens", 7, "--temperature", 0, "--json")
    code, out, _ = widthwise("generate", tmp_path / "run", *options)
    assert code == 0
    tokenizer = _tokenizer()
    prompt = torch.tensor([tokenizer.encode("def fold").ids])
    model = transformers.AutoModelForCausalLM.from_pretrained(source)
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=7, do_sample=False)
    expected = tokenizer.decode(ids[0, prompt.shape[1] :].tolist())
    assert json.loads(out)["continuations"][0]["continuation"] == expected


def test_it_is_trained_further_on_a_recipe(
    widthwise: Run, next_command: Callable, source: Path, training: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    resume = next_command(widthwise("import", source, run, "train.steps=3", "--recipe", training)[1])
    assert widthwise(*resume)[0] == 0
    assert [record["step"] for record in RunDir(run).metrics() if record["event"] == "train"] == [3]
    identity = RunDir(run).environment()["data"]
    assert identity["tokenizer"]["spec"].endswith("tokenizer.json#<stop>")
    assert widthwise("generate", run, "--prompt", "def", "--max-new-tokens", 2)[0] == 0
    assert widthwise("export", run, tmp_path / "half", "--dtype", "bf16", "--json")[0] == 0
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert widthwise("export", run, tmp_path / "out")[0] == 0
    difference = (_logits(tmp_path / "out") - _logits(source)).abs().max()
    assert 0 < difference < 0.05  # three small steps from where it came


def test_it_grows_and_leaves_as_what_it_was(widthwise: Run, source: Path, tmp_path: Path) -> None:
    """Hidden width, feed-forward and one more layer; transformers finds the same logits."""
    assert widthwise("import", source, tmp_path / "run")[0] == 0
    data = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    model = data["model"]
    model["layers"].append(model["layers"][-1])
    model.update(d_model=32, final_norm_width=32)
    for layer in model["layers"]:
        layer.update(d_model=32, d_in=32, d_out=32, ffn={**layer["ffn"], "d_ff": 50})
    (tmp_path / "larger.yaml").write_text(json.dumps(data))
    code, _, err = widthwise("grow", tmp_path / "run", "--to", tmp_path / "larger.yaml", "--out", tmp_path / "grown")
    assert code == 0, err
    assert widthwise("export", tmp_path / "grown", tmp_path / "out")[0] == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    sizes = (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"])
    assert (sizes, config["max_position_embeddings"]) == ((32, 50, 3), 48)
    expected = _logits(source)
    torch.testing.assert_close(_logits(tmp_path / "out"), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert widthwise("generate", tmp_path / "grown", "--prompt", "def", "--max-new-tokens", 2)[0] == 0


def test_sizes_rounded_up_leave_as_a_plain_llama(widthwise: Run, source: Path, tmp_path: Path) -> None:
    """Nothing in its config that only newer programs know, so that any converter of a llama takes it."""
    assert widthwise("import", source, tmp_path / "run")[0] == 0
    options = ("--d-ff-multiple", 16, "--d-model-multiple", 32)
    code, _, err = widthwise("pad", tmp_path / "run", *options, "--out", tmp_path / "padded")
    assert code == 0, err
    code, _, err = widthwise("export", tmp_path / "padded", tmp_path / "out")
    assert code == 0, err
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"], config["intermediate_size"]) == ("llama", 32, 48)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert rope.get("rope_type", "default") == "default"
    expected = _logits(source)
    torch.testing.assert_close(_logits(tmp_path / "out"), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_a_llama_with_odd_heads_leaves_with_padded_ones(widthwise: Run, source: Path, tmp_path: Path) -> None:
    """Its heads have 6 coordinates; it leaves as a plain llama, whose base gives the old frequencies and one more."""
    assert widthwise("import", source, tmp_path / "run")[0] == 0
    code, out, err = widthwise("export", tmp_path / "run", tmp_path / "out", "--pad-heads", 8)
    assert code == 0, err
    assert "all heads have 8 coordinates; the cache takes 128 bytes a token, not 96" in err
    assert "llama of step 0" in out
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["head_dim"], config["num_attention_heads"]) == (8, 4)
    assert config["rope_theta"] == pytest.approx(10000 ** (8 / 6))
    assert config["rope_parameters"]["rope_type"] == "default"
    expected = _logits(source)
    torch.testing.assert_close(_logits(tmp_path / "out"), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    code, _, err = widthwise("export", tmp_path / "run", tmp_path / "other", "--pad-heads", 12)
    assert (code, "pad_heads: got 12; allowed: multiples of 8" in err) == (2, True)
    assert not (tmp_path / "other").exists()


def test_layers_with_heads_of_their_own_leave_with_those_of_one_size(widthwise: Run, tmp_path: Path) -> None:
    """Both folders are imported again, the padded one as it is."""
    importlib.import_module("widthwise.hf")  # which makes transformers know its models
    model = {"vocab_size": 257, "d_model": 24, "attention": {"n_heads": 3, "qk_norm": {"over": "head"}}}
    shape = {"kind": "explicit", "widths": [24, 12, 36]}
    data = {"corpus": "synthetic", "tokenizer": "bytes"}
    recipe = {**RECIPE, "data": data, "model": {**model, "n_layers": 3, "shape": shape}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(recipe))
    assert widthwise("train", tmp_path / "x.yaml", "--out", tmp_path / "run")[0] == 0
    for name, options in (("as it is", ()), ("padded", ("--pad-heads", 8))):
        code, out, err = widthwise("export", tmp_path / "run", tmp_path / name, *options, "--json")
        assert code == 0, err
    assert json.loads(out)["padded"]["head_dim"] == 16
    expected = _logits(tmp_path / "as it is")
    found = _logits(tmp_path / "padded")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * max(1.0, float(expected.abs().max())))
    assert widthwise("import", tmp_path / "padded", tmp_path / "again", "data.tokenizer=bytes")[0] == 0
    layers = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())["model"]["layers"]
    assert {layer["attention"]["head_dim"] for layer in layers} == {16}
    assert {layer["attention"]["scale"] for layer in layers} == {8**-0.5, 4**-0.5, 12**-0.5}


def test_data_of_another_tokenizer_are_refused(widthwise: Run, source: Path, training: Path, tmp_path: Path) -> None:
    assert widthwise("import", source, tmp_path / "run", "data.tokenizer=bytes", "--recipe", training)[0] == 0
    code, _, err = widthwise("resume", tmp_path / "run")
    assert code == 2
    assert "error: data.tokenizer: got bytes; must be that of the model" in err.splitlines()[-1]


def test_data_of_a_tokenizer_with_the_same_vocabulary_are_taken_and_then_kept(
    widthwise: Run, source: Path, training: Path, tmp_path: Path
) -> None:
    data = json.loads((source / "tokenizer.json").read_text())
    data["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (tmp_path / "same.json").write_text(json.dumps(data, indent=4))
    data["model"]["merges"].reverse()
    (tmp_path / "other.json").write_text(json.dumps(data))
    for name in ("same", "other"):
        spec = f"{tmp_path / name}.json#<stop>"
        code, _, err = widthwise("data", "prepare", "synthetic", "--out", tmp_path / name, "--tokenizer", spec)
        assert code == 0, err
        widthwise("import", source, tmp_path / f"run_{name}", f"data.path={tmp_path / name}", "--recipe", training)
    code, _, err = widthwise("resume", tmp_path / "run_other")
    assert (code, "one with the same tokens, merges and end of text" in err) == (2, True)
    code, _, err = widthwise("resume", tmp_path / "run_same")
    assert code == 0, err
    kept = json.loads((tmp_path / "same/manifest.json").read_text())["tokenizer"]["id"]
    assert RunDir(tmp_path / "run_same").environment()["data"]["tokenizer"]["id"] == kept
    assert widthwise("generate", tmp_path / "run_same", "--prompt", "def", "--max-new-tokens", 2)[0] == 0


def test_data_whose_texts_end_in_another_token_are_refused(
    widthwise: Run, source: Path, training: Path, tmp_path: Path
) -> None:
    spec = f"{source / 'tokenizer.json'}#<pad>"
    assert widthwise("data", "prepare", "synthetic", "--out", tmp_path / "padded", "--tokenizer", spec)[0] == 0
    other = f"data.path={tmp_path / 'padded'}"
    widthwise("import", source, tmp_path / "first", "--recipe", training)
    widthwise("import", source, tmp_path / "second", other, "--recipe", training)
    for arguments in (
        ("grow", tmp_path / "first", other, "--out", tmp_path / "grown"),
        ("resume", tmp_path / "second"),
    ):
        code, _, err = widthwise(*arguments)
        assert (code, "whose texts end in '<stop>' and not in '<pad>'" in err.splitlines()[-1]) == (2, True), err
    assert not (tmp_path / "grown").exists()


def test_a_recipe_with_a_mixture_keeps_it(widthwise: Run, source: Path, training: Path, tmp_path: Path) -> None:
    spec = f"{source / 'tokenizer.json'}#<stop>"
    for name in ("a", "b"):
        widthwise("data", "prepare", "synthetic", "--out", tmp_path / name, "--tokenizer", spec)
    mixture = {name: {"path": str(tmp_path / name), "weight": 1} for name in ("a", "b")}
    run = tmp_path / "run"
    code, _, err = widthwise("import", source, run, f"data.mixture={json.dumps(mixture)}", "--recipe", training)
    assert code == 0, err
    assert widthwise("resume", run)[0] == 0


def test_without_a_tokenizer_all_but_text_works(widthwise: Run, source: Path, training: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").unlink()
    run = tmp_path / "run"
    code, out, _ = widthwise("import", source, run, "data.tokenizer=bytes", "--recipe", training)
    assert (code, "without a tokenizer" in out) == (0, True)
    code, _, err = widthwise("generate", run, "--prompt", "def")
    assert (code, "holds no tokenizer" in err) == (2, True)
    assert widthwise("export", run, tmp_path / "out")[0] == 0
    assert torch.equal(_logits(tmp_path / "out"), _logits(source))
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    assert widthwise("resume", run)[0] == 0
    assert widthwise("generate", run, "--prompt", "def", "--max-new-tokens", 2)[0] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("train.stepz=3",), "train.stepz: unknown key; did you mean 'steps'?"),
        (("compare.seeds=[1]",), "has a compare section"),
        (("train.steps=1", "schedule.warmup_steps=9"), "schedule.warmup_steps: got 9; must be less than"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    widthwise: Run, source: Path, tmp_path: Path, changes: tuple[str, ...], message: str
) -> None:
    code, _, err = widthwise("import", source, tmp_path / "run", *changes)
    assert (code, message in err) == (2, True)
    assert len(err.strip().splitlines()) == 1
    assert not RunDir(tmp_path / "run").exists


def test_nothing_is_overwritten(widthwise: Run, source: Path, tmp_path: Path) -> None:
    widthwise("import", source, tmp_path / "run")
    code, _, err = widthwise("import", source, tmp_path / "run")
    assert (code, "holds a run already" in err) == (2, True)
    code, _, err = widthwise("export", tmp_path / "run", source)
    assert (code, "exists already" in err) == (2, True)


def test_a_run_that_no_format_can_say_leaves_as_our_own_and_comes_back(
    widthwise: Run, recipe: Path, tmp_path: Path
) -> None:
    run, folder, again = tmp_path / "run", tmp_path / "out", tmp_path / "again"
    changes = ("model.ffn.kind=hourglass", "model.ffn.n_blocks=2", "data.tokenizer=bpe-300", "model.vocab_size=300")
    assert widthwise("train", recipe, *changes, "--out", run)[0] == 0
    code, out, err = widthwise("export", run, folder, "--standalone")
    assert (code, len(err.strip().splitlines())) == (0, 1)
    assert "because no other format says all of it: layers.0.ffn.kind: got hourglass; llama has swiglu there" in err
    assert "widthwise of step" in out
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    code_files = {"modeling_widthwise.py", "configuration_widthwise.py"}
    assert {path.name for path in folder.iterdir()} == wanted | code_files | {"README.md"}
    card = (folder / "README.md").read_text()
    assert all(f"## {title}\n" in card for title in ("Use", "Shape", "Cost", "Training", "Evaluation"))
    assert "nats_per_token" in card
    assert widthwise("import", folder, again)[0] == 0
    code, _, _ = widthwise("export", again, tmp_path / "twice")
    assert code == 0
    assert (tmp_path / "twice" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    prompt = ("--prompt", "def a", "--max-new-tokens", 5, "--temperature", 0)
    assert widthwise("generate", run, *prompt)[1] == widthwise("generate", again, *prompt)[1]


def test_the_python_of_a_card_runs_as_it_stands(widthwise: Run, recipe: Path, tmp_path: Path) -> None:
    """With the package where the folder has no code, and without it where it has."""
    changes = ("model.ffn.kind=hourglass", "model.ffn.n_blocks=2", "data.tokenizer=bpe-300", "model.vocab_size=300")
    assert widthwise("train", recipe, *changes, "--out", tmp_path / "run")[0] == 0
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
    assert widthwise("train", recipe, "data.tokenizer=bpe-300", "model.vocab_size=300", "--out", run)[0] == 0
    assert widthwise("export", run, tmp_path / "out", "--n-positions", 99)[0] == 0
    options = ("--prompt", "a", "--max-new-tokens", 5, "--temperature", 0, "--json")
    ours = json.loads(widthwise("generate", run, *options)[1])["continuations"][0]["continuation"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.config.max_position_embeddings == 99
    prompt = tokenizer("a", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=5, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    assert tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True) == ours
