"""Learned positions. Decoders that have them are compared with the definition in test_decoder.py, with caches in
test_kv_cache.py.
"""

import pytest
import torch
from model_cases import config, decoder, random_tokens
from mtp_cases import mtp_decoder

from widthwise.mistakes import UserError
from widthwise.model.generate import SamplingConfig, generate, generate_drafted, pad_left

N_POSITIONS = 19
POSITIONS = {"positions": {"n_positions": N_POSITIONS}}
ALONE = {**POSITIONS, "attention": {"rope_base": None}}
"""Only the table tells places apart."""


def test_the_last_position_is_used_and_the_next_refused():
    model = decoder(config("x", **ALONE))
    tokens = random_tokens(2, N_POSITIONS + 1)
    model(tokens[:, :-1]).sum().backward()
    assert (model.positions.weight.grad != 0).any(dim=1).all()
    for refused in (lambda: model(tokens), lambda: model.loss(tokens, tokens)):
        with pytest.raises(ValueError, match="20 tokens do not fit into 19 learned positions"):
            refused()


@torch.no_grad()
def test_padding_takes_no_positions_and_cached_tokens_do():
    model = decoder(config("x", **ALONE))
    tokens, is_real = pad_left([[5] * N_POSITIONS, [7, 8]], torch.device("cpu"))
    cache = model.new_cache(2, N_POSITIONS + 6)
    pad = torch.nn.functional.pad
    assert torch.isfinite(model(pad(tokens, (4, 0)), cache, pad(is_real, (4, 0)))).all()
    with pytest.raises(ValueError, match="20 tokens do not fit into 19 learned positions"):
        model(tokens[:, -1:], cache)


@pytest.mark.usefixtures("float64")
def test_generation_and_drafting_read_as_many_tokens_as_there_are_positions_and_no_more():
    model, greedy = mtp_decoder("plain", 2, **POSITIONS), SamplingConfig(temperature=0)
    for n_prompt in (1, 6, N_POSITIONS):
        prompts, n_new = [[3] * n_prompt, [4]], N_POSITIONS + 1 - n_prompt  # nothing reads the last token
        found = generate(model, prompts, n_new, greedy)
        assert [len(each) for each in found] == [n_new, n_new]
        assert generate_drafted(model, prompts, n_new)[0] == found
        refused = rf"max_new_tokens: got {n_new + 1} after a prompt of {n_prompt}; .* at most 19 tokens"
        for generated in (lambda *more: generate(*more, greedy), generate_drafted):
            with pytest.raises(UserError, match=refused):
                generated(model, prompts, n_new + 1)
