"""What a finished run with hyper-connections says about its stream; see `analysis.virtual_width`."""

from typing import Any

from widthwise.analysis.virtual_width import VirtualWidthMeter
from widthwise.model.decoder import Decoder
from widthwise.model.evaluating import evaluating
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig
from widthwise.training.held_out import HeldOut
from widthwise.training.precision import autocast

SAMPLE_TOKENS = 4096
"""Tokens looked at: whole windows from the front of the validation text, at least one."""


def analyse_virtual_width(model: Decoder, held_out: HeldOut) -> dict[str, Any] | None:
    """The `virtual_width` of a result; None for a model without hyper-connections."""
    residual = model.config.residual
    if not isinstance(residual, HyperConnectionsConfig):
        return None
    meter = VirtualWidthMeter(model, residual)
    with evaluating(model) as device:
        for batch in held_out.batches(max(SAMPLE_TOKENS, held_out.seq_len)):
            for window in batch[:, :-1].split(1):  # a window at a time, because the meter needs much for a token
                with autocast(device, held_out.precision):
                    meter.add(window.to(device))
    return meter.summary()
