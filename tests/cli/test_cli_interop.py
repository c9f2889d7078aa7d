"""`widthwise import` and `widthwise export`, and what works between them."""

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
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from widthwise.cli.convert import import_
from widthwise.interop.families import FAMILIES
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

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


def _save_llama(folder: Path, tokenizer: tokenizers.Tokenizer, vocab_size: int, **token_ids: int) -> None:
    """A tiny llama with its tokenizer."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        **{"vocab_size": vocab_size, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48},
        **{"initializer_range": 0.4, **token_ids},
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


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


@pytest.fixture
def source(tokenizer: tokenizers.Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama with its tokenizer in the working folder of the test, beside training.yaml."""
    n_tokens = tokenizer.get_vocab_size()
    _save_llama(tmp_path / "source", tokenizer, n_tokens + 3, bos_token_id=0, eos_token_id=1, pad_token_id=0)
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(RECIPE))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "source"


def _logits(folder: str | Path) -> torch.Tensor:
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    with torch.no_grad():
        return model.float().eval()(torch.arange(4, 21)[None]).logits


def _greedy(folder: Path, ids: list[int], n: int) -> list[int]:
    """The n tokens with which transformers continues a prompt."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([ids])
    options = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": n, "do_sample": False}
    return model.generate(prompt, **options, eos_token_id=None, pad_token_id=0)[0, len(ids) :].tolist()


def _prepare(succeeds: Callable, name: str, spec: str) -> str:
    """The override that names data prepared with a tokenizer."""
    succeeds("data", "prepare", "synthetic", "--out", name, "--tokenizer", spec)
    return f"data.path={name}"


def test_the_help_of_import_names_every_architecture() -> None:
    named = (import_.__doc__ or "").partition("Architectures: ")[2].partition(".")[0]
    assert {name.strip() for name in named.split(",")} == {*FAMILIES, "widthwise"}


def test_an_imported_model_generates_as_it_did_and_leaves_as_it_came(
    succeeds, answer, refused, next_command: Callable, source: Path, tokenizer: tokenizers.Tokenizer
) -> None:
    Path("text.txt").write_text(TEXT)
    plan, _ = succeeds("import", source, "--plan-only")
    assert not RunDir("run").exists
    out, _ = succeeds("import", source, "run")
    assert plan.startswith("source: llama of ")
    assert "contexts of up to 48 tokens" in plan
    assert re.match(r"run: llama of [\d,]+ parameters, with its tokenizer", out)
    origin = RunDir("run").environment()["imported"]
    assert (origin["folder"], origin["model_type"], origin["n_positions"]) == ("source", "llama", 48)
    assert str(source.parent) not in json.dumps(origin)

    said = answer(*next_command(out, TEXT="def fold"), "--max-new-tokens", 7, "--temperature", 0)
    continued = tokenizer.decode(_greedy(source, tokenizer.encode("def fold").ids, 7))
    assert said["continuations"][0]["continuation"] == continued

    out, _ = succeeds("export", "run", "out")
    assert "llama of step 0 in fp32, with tokenizer.json" in out
    files = sorted(Path("out").iterdir())
    evaluated, _ = succeeds(*next_command(out, FILE="text.txt"))
    assert "wrote" not in evaluated
    assert sorted(Path("out").iterdir()) == files
    assert torch.equal(_logits("out"), _logits(source))
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings", "vocab_size")
    before, after = (json.loads(Path(folder, "config.json").read_text()) for folder in (source, "out"))
    assert [after[key] for key in keys] == [before[key] for key in keys]
    theirs = transformers.AutoTokenizer.from_pretrained("out")
    assert theirs(TEXT)["input_ids"] == tokenizer.encode(TEXT).ids
    assert (theirs.eos_token, theirs.decode(theirs(TEXT)["input_ids"])) == ("<stop>", TEXT)
    for verb, said in (
        (("import", source), "RUN: is required, except with --plan-only"),
        (("import", source, "run"), "already holds a run"),
        (("import", source, "wider", "model.d_model=64"), f"model.d_model=64: {source} defines the model"),
        (("import", "nowhere", "another"), "nowhere: no such folder"),
        (("import", source, "another", "train.steps=1", "schedule.warmup_steps=9"), "schedule.warmup_steps: got 9"),
        (("export", "run", source), "exists already"),
    ):
        assert said in refused(*verb)
    assert not RunDir("another").exists


def test_it_is_trained_further_on_a_recipe(succeeds, answer, next_command: Callable, source: Path) -> None:
    imported, _ = succeeds("import", source, "run", "train.steps=3", "--recipe", "training.yaml")
    succeeds(*next_command(imported))
    assert [record["step"] for record in RunDir("run").metrics() if record["event"] == "train"] == [3]
    assert RunDir("run").environment()["data"]["tokenizer"]["spec"].endswith("tokenizer.json#<stop>")
    succeeds("generate", "run", "--prompt", "def", *TWO_TOKENS)
    answer("export", "run", "half", "--dtype", "bf16")
    assert json.loads(Path("half/config.json").read_text())["dtype"] == "bfloat16"
    succeeds("export", "run", "padded", "--pad-heads", 8)
    assert json.loads(Path("padded/config.json").read_text())["head_dim"] == 8
    succeeds("export", "run", "out")
    assert 0 < (_logits("out") - _logits(source)).abs().max() < 0.05  # three small steps from where it came


def test_data_of_another_tokenizer_or_end_of_text_are_refused(succeeds, refused, source) -> None:
    ends_otherwise = _prepare(succeeds, "padded", f"{source / 'tokenizer.json'}#<pad>")
    for name, changes in (("first", ()), ("second", (ends_otherwise,)), ("bytes", ("data.tokenizer=bytes",))):
        succeeds("import", source, name, *changes, "--recipe", "training.yaml")
    for arguments, said in (
        (("grow", "first", ends_otherwise, "--out", "grown"), "whose texts end in '<stop>' and not in '<pad>'"),
        (("resume", "second"), "whose texts end in '<stop>' and not in '<pad>'"),
        (("resume", "bytes"), ", or one with the same tokens, merges and end of text"),
    ):
        assert said in refused(*arguments)
    assert not Path("grown").exists()


def test_data_of_a_tokenizer_with_the_same_vocabulary_are_taken_and_then_kept(succeeds, source) -> None:
    data = json.loads((source / "tokenizer.json").read_text())
    data["truncation"] = {"max_length": 9, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    Path("same.json").write_text(json.dumps(data, indent=4))
    succeeds("import", source, "run", _prepare(succeeds, "same", "same.json#<stop>"), "--recipe", "training.yaml")
    succeeds("resume", "run")
    kept = json.loads(Path("same/manifest.json").read_text())["tokenizer"]["id"]
    assert RunDir("run").environment()["data"]["tokenizer"]["id"] == kept
    succeeds("generate", "run", "--prompt", "def", *TWO_TOKENS)
    mixture = {name: {"path": "same", "weight": 1} for name in ("a", "b")}
    succeeds("import", source, "mixed", f"data.mixture={json.dumps(mixture)}", "--recipe", "training.yaml")
    succeeds("resume", "mixed")


def test_without_a_tokenizer_all_but_text_works(succeeds, refused, source: Path) -> None:
    (source / "tokenizer.json").unlink()
    out, _ = succeeds("import", source, "run", "data.tokenizer=bytes", "--recipe", "training.yaml")
    assert "without a tokenizer" in out
    assert "holds no tokenizer" in refused("generate", "run", "--prompt", "def")
    succeeds("export", "run", "out")
    assert torch.equal(_logits("out"), _logits(source))
    assert not Path("out/tokenizer.json").exists()
    succeeds("resume", "run")
    succeeds("generate", "run", "--prompt", "def", *TWO_TOKENS)


def test_a_run_that_no_format_can_say_leaves_as_our_own_and_comes_back(succeeds, recipe: Path, tmp_path: Path) -> None:
    run, folder, again = tmp_path / "run", tmp_path / "out", tmp_path / "again"
    succeeds("train", recipe, *HOURGLASS, "model.n_layers=2", "--out", run)
    out, err = succeeds("export", run, folder, "--standalone", "--n-positions", 99)
    assert len(err.strip().splitlines()) == 1
    assert "exported in widthwise format: layers.0.ffn.kind: got hourglass; llama has swiglu there" in err
    assert "widthwise of step" in out
    wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    wanted |= {"modeling_widthwise.py", "configuration_widthwise.py", "README.md"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 99
    card = (folder / "README.md").read_text()
    assert all(f"## {title}\n" in card for title in ("Use", "Cost", "Training", "Evaluation"))
    assert "nats_per_token" in card
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs(TEXT)["input_ids"] == open_model(run).tokenizer.encode(TEXT)
    succeeds("import", folder, again)
    succeeds("export", again, tmp_path / "twice")
    assert (tmp_path / "twice" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    prompt = ("--prompt", "def a", "--max-new-tokens", 5, "--temperature", 0)
    assert succeeds("generate", run, *prompt) == succeeds("generate", again, *prompt)


@pytest.mark.hard
def test_the_python_of_a_card_runs_as_it_stands(succeeds, recipe: Path, tmp_path: Path) -> None:
    """With the package where the folder has no code, and without it where it has."""
    succeeds("train", recipe, *HOURGLASS, "--out", tmp_path / "run")
    for name, options, hidden in (("out", (), ()), ("alone", ("--standalone",), ("widthwise",))):
        succeeds("export", tmp_path / "run", tmp_path / name, *options)
        card = (tmp_path / name / "README.md").read_text()
        assert re.search(r"\| data \| \S+ \w{12}, tokenizer bpe-300", card)
        (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
        hide = f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
        surroundings = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", hide + code]
        done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("Once upon a time")


FLAGS = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
SETTINGS = {
    "bos_token": {"__type": "AddedToken", "content": "<s>", **FLAGS},
    **{"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>", "padding_side": "left", "model_max_length": 33},
    "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content }}<eot>{% endfor %}",
}
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
CHAT = [{"role": "user", "content": "ab a"}, {"role": "assistant", "content": "b"}]


@pytest.fixture
def chat_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama as makers give it away: SentencePiece's spaces, a beginning of text, two ends, a token too many."""
    special = ["<unk>", "<s>", "</s>", "<eot>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijk", "▁a"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([*special, "<past>"])
    source = tmp_path / "source"
    _save_llama(source, tokenizer, len(pieces), bos_token_id=1, eos_token_id=2)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **SETTINGS}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 3], **SAMPLING}))
    monkeypatch.chdir(tmp_path)
    return source


def test_a_pretrained_model_begins_ends_and_spaces_its_texts_as_transformers_does(
    answer, succeeds, refused, chat_model: Path
) -> None:
    succeeds("import", chat_model, "run")
    theirs = transformers.AutoTokenizer.from_pretrained(chat_model)
    for text in ("ab", "ab ", "a cab"):
        ids = theirs(text)["input_ids"]
        assert ids[0] == 1
        for prompt, option in ((ids, ()), (ids[1:], ("--no-bos",))):
            whole = theirs.decode(prompt + _greedy(chat_model, prompt, 12), skip_special_tokens=True)
            arguments = ("--prompt", text, "--max-new-tokens", 12, "--temperature", 0, *option)
            for path in (chat_model, "run"):
                (row,) = answer("generate", path, *arguments)["continuations"]
                assert row["prompt"] + row["continuation"] == whole
    _, error = succeeds("generate", "run", "--prompt", "ab", *TWO_TOKENS)
    assert error == "texts begin with <s>, as in the model's tokenizer; --no-bos omits it\n"
    ids = theirs("ab")["input_ids"]
    added = _greedy(chat_model, ids, 12)
    (chat_model / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, added[5]]}))
    (row,) = answer("generate", chat_model, "--prompt", "ab", "--temperature", 0)["continuations"]
    until_end = ids + added[: added.index(added[5])]
    assert "ab" + row["continuation"] == theirs.decode(until_end, skip_special_tokens=True)
    config = json.loads((chat_model / "config.json").read_text())
    (chat_model / "config.json").write_text(json.dumps({**config, "model_type": "gpt_neox"}))
    assert "model_type: a gpt_neox has attention and feed-forward in" in refused("generate", chat_model, *TWO_TOKENS)


def test_what_transformers_knows_of_a_tokenizer_survives_import_growth_cut_and_export(
    succeeds, chat_model: Path
) -> None:
    _, error = succeeds("import", chat_model, "run")
    assert "ignored 1 special tokens past the vocabulary of the model, such as <past>" in error
    succeeds("grow", "run", "--d-ff", 48, "--out", "grown")
    data = (
        "seq_len=16",
        "train.validation_tokens=64",
        "schedule.warmup_steps=1",
        "train.steps=2",
        "train.batch_size=2",
    )
    _, error = succeeds("shrink", "grown", "--flops", "0.9", "--calibration-batches", 1, "--out", "cut", *data)
    assert "texts begin with <s>" in error
    succeeds("resume", "cut")
    succeeds("export", "cut", "out")
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (chat_model, "out"))
    assert [getattr(after, key) for key in SETTINGS] == [getattr(before, key) for key in SETTINGS]
    generation = json.loads(Path("out/generation_config.json").read_text())
    assert SAMPLING.items() <= generation.items()
    assert generation["eos_token_id"] == [2, 3]
    ids = after.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    assert ids == before.apply_chat_template(CHAT, tokenize=True, return_dict=False)
    assert (ids[0], ids.count(3)) == (1, 2)
    batch = after(["ab", "a longer one"], padding=True, return_tensors="pt")
    succeeds("export", "run", "short", "--n-positions", 20)
    model = transformers.AutoModelForCausalLM.from_pretrained("short")
    found = model.generate(**batch, max_new_tokens=3, do_sample=False)
    alone = model.generate(**after("ab", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    assert found[0].tolist()[-3:] == alone[0].tolist()[-3:]
    assert transformers.AutoTokenizer.from_pretrained("short").model_max_length == 20


def test_a_tokenizer_that_cannot_be_used_names_the_way_out(refused, succeeds, chat_model: Path) -> None:
    wordpiece = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "</s>": 2}, unk_token="[UNK]"))
    wordpiece.decoder = decoders.WordPiece()
    wordpiece.save(str(chat_model / "tokenizer.json"))
    assert refused("import", chat_model, "run").endswith("; or remove tokenizer.json to import the model alone")
    (chat_model / "tokenizer.json").unlink()
    succeeds("import", chat_model, "run", "data.tokenizer=bytes")


def test_an_export_of_a_run_adds_no_token_that_its_model_has_not_seen(succeeds, chat_model: Path) -> None:
    tokenizer = "source/tokenizer.json"
    Path("training.yaml").write_text(yaml.safe_dump(RECIPE))
    sizes = ("model.d_model=64", "model.n_layers=1", "model.vocab_size=280", f"data.tokenizer={tokenizer}")
    succeeds("train", "training.yaml", *sizes, "--out", "run")
    succeeds("export", "run", "out")
    ids = transformers.AutoTokenizer.from_pretrained("out")("ab")["input_ids"]
    assert ids == tokenizers.Tokenizer.from_file(tokenizer).encode("ab", add_special_tokens=False).ids
