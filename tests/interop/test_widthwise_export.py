"""Models that no other format says, as `widthwise` folders that transformers runs."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from operator import add
from pathlib import Path
from typing import Any

import pytest
import torch
from boxes import refusal
from hf_models import assert_close, tokens
from thinned import hard_but
from widthwise_models import (
    N_POSITIONS,
    NAMES,
    check_padded,
    config_of,
    left_padded,
    loaded,
    own_model,
    prompts,
    standalone,
    written,
)

from widthwise.interop import modeling_widthwise, widthwise_format
from widthwise.interop.hf_export import hf_config
from widthwise.interop.hf_import import import_hf
from widthwise.interop.widthwise_format import model_code
from widthwise.model.config import cost_summary
from widthwise.model.decoder import Decoder
from widthwise.model.generate import SamplingConfig, generate

N_NEW = 9
GREEDY = SamplingConfig(temperature=0)
Pair = tuple[Decoder, Any, Path]
BASIC = ("slim_grouped", "layer_norm", "slots", "dynamic_soft")
"""One of each way a model may be asked: rotary or learned positions, a plain stream or slots, by tokens or not."""
OTHERS = (
    *(*BASIC, "windows", "capped", "moe", "mtp", "frozen", "frozen_slots", "projection", "reordered"),
    *("hourglass_reordered", "slots_static", "slots_in_turn", "dynamic_sliced"),
)

OF_EVERY_KIND = (
    *("slim_grouped", "windows", "capped", "projection", "reordered", "layer_norm", "profile", "moe", "mtp"),
    *("hourglass_reordered", "slots", "slots_static", "slots_in_turn"),
    *("dynamic_sliced", "dynamic_soft", "frozen_slots", "inserted"),
)
"""Names without those whose parts another one has."""


@pytest.fixture(autouse=True)
def _fp32() -> None:
    """As a user has it; what needs fp64 says so."""
    torch.set_default_dtype(torch.float32)


@cache
def _pair(name: str, folder: Path) -> Pair:
    model = own_model(config_of(name))
    path = written(model, folder / name)
    return model, loaded(path), path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def _generated(model: Any, **options: Any) -> list[list[int]]:
    batch = left_padded(prompts())
    found = model.generate(**batch, max_new_tokens=N_NEW, pad_token_id=0, **options)
    return found[:, batch["input_ids"].shape[1] :].tolist()


@torch.no_grad()
@pytest.mark.parametrize("name", hard_but(OF_EVERY_KIND, NAMES))
def test_transformers_computes_the_same_and_it_is_imported_bit_by_bit(folder: Path, name: str) -> None:
    """Logits, those of padded texts too, greedy text, and a cache that takes what `inspect` says."""
    ours, theirs, path = _pair(name, folder)
    assert_close(theirs(tokens()).logits, ours(tokens()))
    found = check_padded(ours, theirs)
    n_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in found.past_key_values.layers)
    in_bf16 = cost_summary(ours.config, seq_len=16).kv_bytes_per_token
    if name not in ("windows", "capped"):  # transformers keeps the keys and values before a window
        assert n_bytes == 2 * in_bf16 * found.logits[..., 0].numel()
    expected = generate(ours, prompts(), N_NEW, GREEDY)
    assert _generated(theirs, do_sample=False) == expected
    assert len({tuple(text) for text in expected}) == 3
    imported = import_hf(path)
    assert (imported.config, imported.model_type, imported.n_positions) == (ours.config, "widthwise", N_POSITIONS)
    assert_same_weights(imported.weights, dict(ours.named_parameters()))


@torch.no_grad()
@pytest.mark.parametrize("name", hard_but(["frozen_slots", "layer_norm"], OTHERS))
def test_logits_in_fp64_differ_by_rounding_only(tmp_path: Path, name: str) -> None:
    torch.set_default_dtype(torch.float64)
    model = own_model(config_of(name), torch.float64)
    theirs = loaded(written(model, tmp_path / name), dtype=torch.float64)
    assert_close(theirs(tokens()).logits, model(tokens()), 1e-12)


@pytest.mark.parametrize("name", hard_but(BASIC, OTHERS))
def test_text_by_any_way_of_decoding_is_the_same(folder: Path, name: str) -> None:
    """From a static cache, and drawn with a seed."""
    ours, theirs, _ = _pair(name, folder)
    expected = generate(ours, prompts(), N_NEW, GREEDY)
    assert _generated(theirs, do_sample=False, cache_implementation="static") == expected
    expected = generate(ours, prompts(), N_NEW, SamplingConfig(temperature=0.8, top_k=20, top_p=0.9), seed=7)
    torch.manual_seed(7)
    assert _generated(theirs, do_sample=True, temperature=0.8, top_k=20, top_p=0.9) == expected


@pytest.mark.parametrize("name", hard_but(["layer_norm", "slots", "mtp"], OTHERS))
def test_it_trains_with_checkpointing_and_what_transformers_saves_is_imported_too(
    folder: Path, tmp_path: Path, name: str
) -> None:
    """All but the further heads, which it does not load."""
    ours, theirs, path = _pair(name, folder)
    theirs.save_pretrained(tmp_path / "again")
    imported = import_hf(tmp_path / "again")
    assert imported.config == ours.config.model_copy(update={"mtp": None})
    weights = {name: weight for name, weight in ours.named_parameters() if not name.startswith("mtp.")}
    assert_same_weights(imported.weights, weights)
    checkpointed = loaded(path).train()
    checkpointed.activation_checkpointing_enable()
    assert all(layer.gradient_checkpointing for layer in checkpointed.model.layers)
    for model in (theirs, checkpointed):
        model.zero_grad()
        model(tokens(), labels=tokens()).loss.backward()
    others = dict(checkpointed.named_parameters())
    for name, parameter in theirs.named_parameters():
        assert (parameter.grad is None) == (others[name].grad is None)
        if parameter.grad is not None:
            torch.testing.assert_close(others[name].grad, parameter.grad, rtol=1e-5, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", BASIC)
def test_eager_attention_hidden_states_rows_and_bf16_are_there(folder: Path, tmp_path: Path, name: str) -> None:
    """Also from a folder with its code, which is not run where the package is registered."""
    ours, theirs, path = _pair(name, folder)
    expected, n_tokens = ours(tokens()), tokens().shape[1]
    eager = loaded(path, attn_implementation="eager")
    found = eager(tokens(), output_attentions=True, output_hidden_states=True)
    assert_close(found.logits, expected)
    sizes = [(layer.attention.n_heads, n_tokens, n_tokens) for layer in ours.config.layers]
    assert [weights.shape[1:] for weights in found.attentions] == sizes
    assert len(found.hidden_states) == len(sizes) + 1
    assert {state.shape[-1] for state in found.hidden_states[:-1]} == {ours.config.stream_width}
    rows = theirs.get_input_embeddings()(tokens())
    assert_close(theirs(inputs_embeds=rows).logits, expected)
    short = loaded(standalone(ours, tmp_path / name), dtype=torch.bfloat16)
    assert type(short).__module__ == "widthwise.interop.modeling_widthwise"
    logits = short(tokens()).logits
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).square().mean() < 0.1 * expected.square().mean()


@torch.no_grad()
@pytest.mark.parametrize("name", hard_but(OF_EVERY_KIND, NAMES))
def test_every_linear_is_called_as_one(folder: Path, name: str) -> None:
    """Quantisers and adapters replace each `nn.Linear`, and what they put there only answers calls."""
    _, theirs, _ = _pair(name, folder)
    linears = {module for module in theirs.modules() if isinstance(module, torch.nn.Linear)}
    called = set()
    hooks = [module.register_forward_hook(lambda module, *_: called.add(module)) for module in linears]
    theirs(tokens())
    for hook in hooks:
        hook.remove()
    assert {type(module) for module in linears} == {torch.nn.Linear}
    assert called == linears


def test_a_new_model_has_finite_weights_of_the_config_s_deviation(folder: Path) -> None:
    torch.manual_seed(0)
    for name in ("moe", "slots_expanded", "dynamic_sliced"):
        _, theirs, _ = _pair(name, folder)
        new = type(theirs)(theirs.config)
        for module in new.modules():
            if isinstance(module, modeling_widthwise.Matrix) and module.weight.numel() > 200:
                assert float(module.weight.detach().std()) == pytest.approx(theirs.config.initializer_range, rel=0.25)


def test_what_can_be_written_is_what_transformers_runs() -> None:
    assert set(widthwise_format.FEED_FORWARDS) == set(modeling_widthwise.FEED_FORWARDS)
    assert set(widthwise_format.RESIDUALS) == set(modeling_widthwise.RESIDUALS)
    files = {"configuration_widthwise", "modeling_widthwise"}
    imported = {line.split()[1] for code in model_code().values() for line in code.splitlines() if line[:4] == "from"}
    allowed = {"collections", "functools", "itertools", "torch", "transformers", "typing"}
    assert {name.partition(".")[0] for name in imported if name[0] != "."} <= allowed
    assert {name[1:] for name in imported if name[0] == "."} <= files


def test_values_outside_of_layers_are_the_largest() -> None:
    _, data = hf_config(config_of("slim_grouped"), N_POSITIONS, model_type="widthwise")
    sizes = {key: data[key] for key in ("hidden_size", "layer_width", "num_attention_heads", "intermediate_size")}
    assert sizes == {"hidden_size": 48, "layer_width": 48, "num_attention_heads": 8, "intermediate_size": 72}
    assert data["per_layer_config"]["0"] == {"layer_in": 36}


def test_a_broken_config_is_refused_with_the_place(tmp_path: Path) -> None:
    path = written(own_model(config_of("slim_grouped")), tmp_path / "hf")
    said = json.loads((path / "config.json").read_text())
    for change, message in (
        ({"per_layer_config": {"5": {}}}, "per_layer_config: got '5'; allowed: the number of a layer below 5"),
        ({"per_layer_config": {"9" * 5000: {}}}, "per_layer_config: got '9+[.]{3}; allowed: the number of a layer"),
        ({"per_layer_config": {"1": {"head_dimm": 4}}}, "per_layer_config: 1: got 'head_dimm'; did you mean 'head_d"),
        ({"per_layer_config": [1]}, r"per_layer_config: got \[1\]; allowed: a mapping from layers to mappings"),
        ({"residual": {"kind": "other"}}, "residual.*'other', which is not registered"),
        ({"head_dim": 7}, "head_dim: got 7; rotary positions rotate pairs"),
        ({"num_hidden_layers": 4}, "per_layer_config: got '4'; allowed: the number of a layer below 4"),
    ):
        (path / "config.json").write_text(json.dumps({**said, **change}))
        assert re.search(message, refusal(import_hf, path))


WITHOUT_US = """
import json, sys
sys.modules["widthwise"] = None  # cannot be imported
import torch
from transformers import AutoModelForCausalLM

said = json.loads(sys.stdin.read())
texts = []
for folder in said["folders"]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    found = model.generate(torch.tensor(said["tokens"]), max_new_tokens=said["n_new"], do_sample=False, pad_token_id=0)
    texts.append(found.tolist())
print(json.dumps(texts))
"""


@pytest.mark.hard
def test_with_its_code_a_folder_needs_no_widthwise(tmp_path: Path) -> None:
    models = [own_model(config_of(name)) for name in NAMES]
    folders = [str(standalone(model, tmp_path / name)) for name, model in zip(NAMES, models)]
    said = {"folders": folders, "tokens": tokens().tolist(), "n_new": N_NEW}
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    environment.pop("PYTHONPATH", None)
    command, at = [sys.executable, "-c", WITHOUT_US], {"env": environment, "cwd": tmp_path}
    found = subprocess.run(command, input=json.dumps(said), capture_output=True, text=True, check=False, **at)
    assert found.returncode == 0, found.stderr
    texts = tokens().tolist()
    expected = [[*map(add, texts, generate(model, texts, N_NEW, GREEDY))] for model in models]
    assert json.loads(found.stdout.splitlines()[-1]) == expected
