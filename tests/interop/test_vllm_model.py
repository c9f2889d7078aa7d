"""The model in vLLM itself, where that is installed; a build for CPUs will do. Its own engine, attention and cache."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from widthwise_models import N_POSITIONS, keep_constants, models, own_model, prompts, sized, written

from widthwise.config_io import parse, to_data
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.generate import SamplingConfig, generate

vllm: Any = pytest.importorskip("vllm", reason="needs the extra [vllm]")

pytestmark = pytest.mark.hard
N_NEW = 9
NAMES = ("slim_grouped", "full", "projection", "reordered", "layer_norm", "hourglass", "hourglass_reordered", "mtp")
HEAD_DIM = 32
"""One of those that vLLM's attention on CPUs has."""
INSTEAD: dict[str, dict[str, Any]] = {
    "layer_norm": {
        "attention": {"head_dim": HEAD_DIM, "rope_base": None, "bias": True, "out_bias": True},
        "ffn": {"kind": "swiglu", "ratio": 1.5},
    }
}
"""Sections that vLLM needs otherwise: one head_dim for all layers, and a feed-forward that it runs."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine in this process, where an error of ours keeps its type."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    yield
    vllm.distributed.cleanup_dist_env_and_memory()


def _config(name: str) -> ModelConfig:
    return sized(name, HEAD_DIM, 4 * HEAD_DIM, **INSTEAD.get(name, {}))


def _engine(model: Decoder, folder: Path, **options: Any) -> Any:
    usual = {"dtype": "float32", "max_num_seqs": 4, "gpu_memory_utilization": 0.3, "enforce_eager": True}
    path = written(model, folder / "model")
    return vllm.LLM(str(path), skip_tokenizer_init=True, max_model_len=N_POSITIONS, **{**usual, **options})


def _generated(engine: Any, texts: list[list[int]]) -> tuple[list[list[int]], list[list[dict[int, Any]]]]:
    """Greedy tokens of each text, and the log-probabilities of the likeliest four at each."""
    options = vllm.SamplingParams(temperature=0, max_tokens=N_NEW, logprobs=4, detokenize=False, ignore_eos=True)
    requests = [{"prompt_token_ids": text} for text in texts]
    found = [response.outputs[0] for response in engine.generate(requests, options, use_tqdm=False)]
    return [list(one.token_ids) for one in found], [one.logprobs for one in found]


@torch.no_grad()
def _assert_same(model: Decoder, engine: Any, texts: list[list[int]]) -> None:
    tokens, logprobs = _generated(engine, texts)
    assert tokens == generate(model, texts, N_NEW, SamplingConfig(temperature=0))
    for text, added, likeliest in zip(texts, tokens, logprobs):
        expected = model(torch.tensor([text + added])).log_softmax(dim=-1)[0, len(text) - 1 :]
        for step, given in enumerate(likeliest):
            for token, found in given.items():
                assert math.isclose(found.logprob, float(expected[step, token]), rel_tol=0, abs_tol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_says_what_our_decoding_says(name: str, tmp_path: Path) -> None:
    """Texts of three lengths in one batch, each layer with heads of its own in the cache."""
    model = own_model(_config(name))
    _assert_same(model, _engine(model, tmp_path), prompts())


def test_constants_of_a_grown_model_are_kept(tmp_path: Path) -> None:
    grown = to_data(_config("slim_grouped"))
    for layer in grown["layers"]:
        keep_constants(layer)
    model = own_model(parse(ModelConfig, grown))
    _assert_same(model, _engine(model, tmp_path), prompts())


@pytest.mark.parametrize("options", [{"enforce_eager": False}, {"tensor_parallel_size": 2}], ids=["compiled", "split"])
def test_compiled_and_on_two_devices_it_says_the_same(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer has an even number of heads, key-value heads and hidden units."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    shape = {**models(HEAD_DIM)["slim_grouped"]["shape"], "quantum": 4 * HEAD_DIM}
    model = own_model(sized("slim_grouped", HEAD_DIM, 8 * HEAD_DIM, shape=shape))
    _assert_same(model, _engine(model, tmp_path, **options), prompts())


def test_a_prompt_in_parts_and_one_seen_before_change_nothing(tmp_path: Path) -> None:
    """Chunked prefill and the cache of prefixes."""
    model = own_model(_config("slim_grouped"))
    engine = _engine(model, tmp_path, max_num_batched_tokens=16, enable_prefix_caching=True, block_size=32)
    text = [token for prompt in prompts() * 3 for token in prompt][:43]
    _assert_same(model, engine, [text])
    _assert_same(model, engine, [text, text[:37], text[:7]])


def test_a_model_that_does_not_run_is_refused_where_it_is_loaded(tmp_path: Path) -> None:
    model = own_model(_config("moe"))
    with pytest.raises(UserError, match=r"model: vLLM cannot run this model: layer 1: feed_forward moe; supported: "):
        _engine(model, tmp_path)
