"""Models that no other format says, as `widthwise` folders that transformers runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import VOCAB_SIZE, tokens
from widthwise_models import MODELS, config_of, left_padded, loaded, own_model, prompts, standalone, written

from widthwise.interop.hf_import import import_hf
from widthwise.model.config import cost_summary
from widthwise.model.decoder import Decoder
from widthwise.model.generate import SamplingConfig, generate

N_NEW = 9
GREEDY = SamplingConfig(temperature=0)
Pair = tuple[Decoder, Any, Path]


@pytest.fixture(autouse=True)
def _fp32() -> None:
    """As a user has it; what needs fp64 says so."""
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A model of ours, the same in transformers, and its folder."""
    torch.set_default_dtype(torch.float32)
    model = own_model(config_of(request.param))
    folder = written(model, tmp_path_factory.mktemp(request.param) / "hf")
    return model, loaded(folder), folder


@torch.no_grad()
def test_logits_are_the_same(pair: Pair) -> None:
    ours, theirs, _ = pair
    torch.testing.assert_close(theirs(tokens()).logits, ours(tokens()), rtol=0, atol=1e-5)


@torch.no_grad()
def test_logits_of_padded_texts_are_the_same(pair: Pair) -> None:
    ours, theirs, _ = pair
    batch = left_padded(prompts())
    is_real = batch["attention_mask"].bool()
    expected = ours(batch["input_ids"], is_real=is_real)
    torch.testing.assert_close(theirs(**batch).logits[is_real], expected[is_real], rtol=0, atol=1e-5)


def _generated(model: Any, **options: Any) -> list[list[int]]:
    batch = left_padded(prompts())
    found = model.generate(**batch, max_new_tokens=N_NEW, pad_token_id=0, **options)
    return found[:, batch["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_text_is_the_same(pair: Pair, cache: str) -> None:
    ours, theirs, _ = pair
    expected = generate(ours, prompts(), N_NEW, GREEDY)
    assert _generated(theirs, do_sample=False, cache_implementation=cache) == expected
    assert len({tuple(text) for text in expected}) == 3


def test_text_drawn_with_a_seed_is_the_same(pair: Pair) -> None:
    ours, theirs, _ = pair
    expected = generate(ours, prompts(), N_NEW, SamplingConfig(temperature=0.8, top_k=20, top_p=0.9), seed=7)
    torch.manual_seed(7)
    assert _generated(theirs, do_sample=True, temperature=0.8, top_k=20, top_p=0.9) == expected


@torch.no_grad()
def _beams(model: Decoder, prompt: list[int], n_beams: int) -> list[int]:
    """The best text of a plain beam search, without a cache."""
    beams = [(0.0, prompt)]
    for _ in range(N_NEW):
        logits = model(torch.tensor([text for _, text in beams]))[:, -1].log_softmax(dim=-1)
        scores = logits + torch.tensor([score for score, _ in beams])[:, None]
        best = scores.flatten().topk(n_beams)
        beams = [
            (float(score), [*beams[index // VOCAB_SIZE][1], index % VOCAB_SIZE])
            for score, index in zip(best.values, best.indices.tolist())
        ]
    return beams[0][1][len(prompt) :]


def test_the_text_of_a_beam_search_is_the_same(pair: Pair) -> None:
    ours, theirs, _ = pair
    expected = [_beams(ours, prompt, 3) for prompt in prompts()]
    assert _generated(theirs, do_sample=False, num_beams=3) == expected


@torch.no_grad()
def test_the_cache_takes_what_inspect_says(pair: Pair) -> None:
    ours, theirs, _ = pair
    cache = theirs(tokens(), use_cache=True).past_key_values
    n_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    in_bf16 = cost_summary(ours.config, seq_len=16).kv_bytes_per_token
    assert n_bytes == 2 * in_bf16 * tokens().numel()


def test_it_is_imported_bit_by_bit(pair: Pair) -> None:
    ours, _, folder = pair
    imported = import_hf(folder)
    assert imported.config == ours.config
    assert (imported.model_type, imported.n_positions) == ("widthwise", imported.n_positions)
    weights = dict(ours.named_parameters())
    assert imported.weights.keys() == weights.keys()
    assert all(torch.equal(imported.weights[name], weights[name]) for name in weights)


def test_what_transformers_saves_is_imported_too(pair: Pair, tmp_path: Path) -> None:
    ours, theirs, _ = pair
    theirs.save_pretrained(tmp_path / "again")
    imported = import_hf(tmp_path / "again")
    assert imported.config == ours.config.model_copy(update={"mtp": imported.config.mtp})
    weights = dict(ours.named_parameters())
    assert all(torch.equal(imported.weights[name], weights[name]) for name in imported.weights)


def test_gradients_are_the_same_with_checkpointing(pair: Pair) -> None:
    _, theirs, folder = pair
    checkpointed = loaded(folder).train()
    checkpointed.gradient_checkpointing_enable()
    for model in (theirs, checkpointed):
        model.zero_grad()
        model(tokens(), labels=tokens()).loss.backward()
    for (name, parameter), other in zip(theirs.named_parameters(), checkpointed.parameters()):
        if parameter.grad is not None:
            assert other.grad is not None, name
            torch.testing.assert_close(other.grad, parameter.grad, rtol=0, atol=1e-6)


@torch.no_grad()
def test_eager_attention_and_hidden_states_are_there(pair: Pair) -> None:
    ours, theirs, folder = pair
    eager = loaded(folder, attn_implementation="eager")
    found = eager(tokens(), output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(found.logits, theirs(tokens()).logits, rtol=0, atol=1e-5)
    n_layers, n_tokens = ours.config.n_layers, tokens().shape[1]
    assert [weights.shape[1:] for weights in found.attentions] == [
        (layer.attention.n_heads, n_tokens, n_tokens) for layer in ours.config.layers
    ]
    assert len(found.hidden_states) == n_layers + 1
    assert {state.shape[-1] for state in found.hidden_states[:-1]} == {ours.config.stream_width}


WITHOUT_US = """
import json, sys

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "widthwise":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotHere())
try:
    import widthwise
except ModuleNotFoundError:
    pass
else:
    sys.exit("widthwise is here")
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


def test_with_its_code_a_folder_needs_no_widthwise(tmp_path: Path) -> None:
    models = [own_model(config_of(name)) for name in MODELS]
    folders = [str(standalone(model, tmp_path / name)) for name, model in zip(MODELS, models)]
    said = {"folders": folders, "tokens": tokens().tolist(), "n_new": N_NEW}
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    environment.pop("PYTHONPATH", None)
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_US],
        input=json.dumps(said),
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    expected = [
        [text + more for text, more in zip(tokens().tolist(), generate(model, tokens().tolist(), N_NEW, GREEDY))]
        for model in models
    ]
    assert json.loads(found.stdout.splitlines()[-1]) == expected
