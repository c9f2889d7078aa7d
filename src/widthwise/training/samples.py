"""Texts that the model writes at validations."""

from typing import Any

import torch

from widthwise.computing import Precision
from widthwise.config_io import UserError
from widthwise.data.held_out import HeldOut
from widthwise.kernels.precision import autocast
from widthwise.model.compiling import uncompiled
from widthwise.model.decoder import Decoder
from widthwise.model.eval_mode import evaluating
from widthwise.model.generate import SamplingConfig, check_length, stream_tokens
from widthwise.model.shards import reshard
from widthwise.recipe.train_section import SampleConfig


class Sampler:
    """Continues the prompts of a recipe. Training goes on as if it had not been there."""

    def __init__(self, config: SampleConfig, held_out: HeldOut, model: Decoder):
        """held_out: says the tokenizer and the precision. Raises UserError where texts would not fit into the model."""
        self._config, self._tokenizer = config, held_out.data.tokenizer
        self._precision: Precision = held_out.precision
        self._prompts = [self._tokenizer.encode(text) or [self._tokenizer.eos_id] for text in config.prompts]
        self._sampling = SamplingConfig(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        try:
            check_length(model, max(map(len, self._prompts)), config.n_tokens)
        except UserError as error:
            raise UserError(f"train.sample: {error}") from None

    @classmethod
    def asked(cls, config: SampleConfig | None, held_out: HeldOut, model: Decoder) -> "Sampler | None":
        """That of a recipe; None where it asks for no texts. Raises as the class."""
        return None if config is None else cls(config, held_out, model)

    def records(self, model: Decoder, step: int) -> list[dict[str, Any]]:
        """A record for each prompt. All processes that share the model call this, and all make every token: where one
        ended a text before another did, the other would wait for it."""
        config, sampling, eos_id = self._config, self._sampling, self._tokenizer.eos_id
        with evaluating(model) as device, uncompiled(model), autocast(device, self._precision):
            drawn = stream_tokens(model, self._prompts, config.n_tokens, sampling, config.seed)
            rows = torch.stack(list(drawn), dim=1).tolist()
        reshard(model)
        ends = [row.index(eos_id) if eos_id in row else len(row) for row in rows]
        return [
            {"step": step, "event": "sample", "prompt": prompt, "text": self._tokenizer.decode(row[:end])}
            for prompt, row, end in zip(config.prompts, rows, ends)
        ]
