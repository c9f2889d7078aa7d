"""The decoder as the papers write it, for comparison. The plain residual keeps a list of all past layer outputs and
applies Eq. (1) of the variable-width paper to each coordinate; for hyper-connections see literal_hyper_connections.py.

Plain loops read the model's weights; nothing from the library's forward pass is used.
"""

import math

import torch
from literal_hyper_connections import entered, left, through
from torch import Tensor

from widthwise.model.axes import LayerNorm
from widthwise.model.decoder import Decoder


def carried(past: list[Tensor], width: int) -> Tensor:
    """Eq. (1): each coordinate from the last output wide enough to own it, 0 if there is none."""
    columns = []
    for i in range(width):
        owners = [state for state in past if state.shape[-1] > i]
        columns.append(owners[-1][..., i] if owners else torch.zeros_like(past[0][..., 0]))
    return torch.stack(columns, dim=-1)


def resized(past: list[Tensor], width: int, resize: str, layer) -> Tensor:
    """Return the input of a layer of `width` coordinates, by the methods of the paper's Table 4 and footnote 10."""
    last = past[-1]
    if resize == "carry" or width <= last.shape[-1]:
        return carried(past, width)
    if resize == "zero":
        return torch.cat((last, last.new_zeros(*last.shape[:-1], width - last.shape[-1])), dim=-1)
    projected = last @ layer.attention_residual.resize.w_widen.weight.T
    return projected if resize == "full_projection" else torch.cat((last, projected), dim=-1)


def norm(x: Tensor, gain: Tensor, eps: float, divisor: int, n_measured: int | None = None) -> Tensor:
    return x / ((x[..., :n_measured] ** 2).sum(-1, keepdim=True) / divisor + eps).sqrt() * gain


def normalised(module, x: Tensor) -> Tensor:
    """Return RMSNorm or LayerNorm of x, depending on the class of the module."""
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1] if isinstance(module, LayerNorm) else x
    y = norm(centred, module.gain_offset + module.weight, module.eps, module.norm_dim, module.stat_width)
    return y + module.bias.weight if isinstance(module, LayerNorm) else y


def rope(x: Tensor, config) -> Tensor:
    """Rotate x, (B, T, head_dim): pair i by position * base^(-2i / head_dim), or by position * rope_frequencies[i]."""
    if config.rope_base is None:
        return x
    half = x.shape[-1] // 2
    frequencies = config.rope_frequencies or [config.rope_base ** (-2 * i / x.shape[-1]) for i in range(half)]
    angles = torch.arange(x.shape[1])[:, None] * torch.tensor(frequencies, dtype=x.dtype)
    a, b = x.split(half, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)


def affine(module, x: Tensor) -> Tensor:
    y = x @ module.weight.T
    return y if module.bias is None else y + module.bias.weight


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Return cap * tanh(x / cap), with tanh written out."""
    return x if cap is None else cap * (1 - 2 / (torch.exp(2 * x / cap) + 1))


def attention(module, x: Tensor) -> Tensor:
    c = module.config
    v_head_dim = c.v_head_dim or c.head_dim
    q, k, v = (affine(w, x) for w in (module.w_q, module.w_k, module.w_v))
    gains = () if c.qk_norm is None else [c.qk_norm.gain_offset + m.weight for m in (module.q_norm, module.k_norm)]
    if c.qk_norm is not None and c.qk_norm.over == "all_heads":
        q = norm(q, gains[0], c.qk_norm.eps, c.qk_norm.q_norm_dim or q.shape[-1])
        k = norm(k, gains[1], c.qk_norm.eps, c.qk_norm.k_norm_dim or k.shape[-1])
    q, k, v = (list(t.split(n, dim=-1)) for t, n in ((q, c.head_dim), (k, c.head_dim), (v, v_head_dim)))
    if c.qk_norm is not None and c.qk_norm.over == "head":
        q = [norm(t, gains[0], c.qk_norm.eps, c.qk_norm.q_norm_dim or c.head_dim) for t in q]
        k = [norm(t, gains[1], c.qk_norm.eps, c.qk_norm.k_norm_dim or c.head_dim) for t in k]
    n = x.shape[1]
    unseen = torch.ones(n, n, dtype=torch.bool).triu(1)
    if c.window is not None:
        unseen |= torch.ones(n, n, dtype=torch.bool).tril(-c.window)
    heads = []
    for head in range(c.n_heads):
        group = head // (c.n_heads // c.n_kv_heads)
        scores = capped(c.scale * rope(q[head], c) @ rope(k[group], c).transpose(1, 2), c.score_cap)
        heads.append(scores.masked_fill(unseen, -math.inf).softmax(-1) @ v[group])
    return affine(module.w_o, torch.cat(heads, dim=-1))


def gated(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    """Return a SwiGLU of x whose hidden units are multiplied by a mask."""
    gate = x @ w_gate.T
    return (mask * gate * torch.sigmoid(gate) * (x @ w_up.T)) @ w_down.T


def swiglu(module, x: Tensor, mask: Tensor | float = 1.0) -> Tensor:
    return gated(x, module.w_gate.weight, module.w_up.weight, module.w_down.weight, mask)


ACTIVATIONS = {
    "gelu": lambda h: h * (1 + torch.erf(h / math.sqrt(2))) / 2,
    "gelu_tanh": lambda h: h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))) / 2,
    "relu": lambda h: h * (h > 0),
    "relu2": lambda h: h**2 * (h > 0),
    "silu": lambda h: h * torch.sigmoid(h),
}
"""Activations with the normal distribution function written out."""


def mlp(module, x: Tensor) -> Tensor:
    c = module.config
    up = affine(module.w_up, x)
    activation = ACTIVATIONS[c.activation]
    return affine(module.w_down, activation(affine(module.w_gate, x)) * up if c.gated else activation(up))


def sublayer(module, function, x: Tensor, placement: str) -> Tensor:
    update = function(module, normalised(module.norm, x) if placement in ("pre", "both") else x)
    if placement == "reordered":
        return normalised(module.norm, update)
    return normalised(module.norm.post, update) if placement == "both" else update


def hourglass(module, x: Tensor, placement: str) -> Tensor:
    """Return h^K - h^0. A block that writes fewer coordinates adds 0 to the others."""
    h = x
    for block in module.blocks:
        update = sublayer(block, swiglu, h, placement)
        h = h + torch.nn.functional.pad(update, (0, h.shape[-1] - update.shape[-1]))
    return (h - x)[..., : module.d_out]


def mixture(module, x: Tensor) -> Tensor:
    """Apply every expert to every token, with weight 0 if it is not chosen."""
    c = module.config
    logits = x @ module.w_router.weight.T
    is_chosen = logits >= logits.topk(c.top_k, dim=-1).values[..., -1:]
    weights = logits.masked_fill(~is_chosen, -math.inf).softmax(-1)
    if not c.normalised:
        weights = logits.softmax(-1) * is_chosen
    update = swiglu(module.shared, x) if c.d_shared else 0.0
    if c.gated_shared:
        update = update * torch.sigmoid(x @ module.w_shared_gate.weight.T)
    matrices = (w.weight.chunk(c.n_experts) for w in (module.w_gate, module.w_up, module.w_down))
    for expert, expert_matrices in enumerate(zip(*matrices)):
        update = update + weights[..., expert, None] * gated(x, *expert_matrices)
    return update


def width_fraction(module, x: Tensor) -> Tensor:
    """Return the width of each token over d_ff, (B, T), with the score v . x."""
    score = (x * module.score.v.weight[0]).sum(-1) * module.score.log_gain.weight.exp() + module.bias.weight
    return module.config.min_fraction + (1 - module.config.min_fraction) * torch.sigmoid(score)


def dynamic(module, x: Tensor) -> Tensor:
    """Return a dynamic-width feed-forward with mask `soft` or `ste`.

    With `ste` the step has the derivative of the sigmoid.
    """
    c = module.config
    width = c.d_ff * width_fraction(module, x)
    distance = torch.stack([width - unit - 0.5 for unit in range(c.d_ff)], dim=-1)
    soft = torch.sigmoid(distance / c.mask.temperature)
    mask = soft if c.mask.kind == "soft" else (distance > 0).to(x.dtype) + soft - soft.detach()
    return swiglu(module, x, mask)


def feed_forward(module, kind: str, x: Tensor, placement: str) -> Tensor:
    if kind == "hourglass":
        return hourglass(module, x, placement)
    return sublayer(module, {"swiglu": swiglu, "mlp": mlp, "moe": mixture, "dynamic": dynamic}[kind], x, placement)


def sublayers(layer, sizes):
    """Return attention and feed-forward of a layer as functions (B, T, d_read) -> (B, T, d_write)."""
    placement = sizes.norm_placement
    return (
        lambda x: sublayer(layer.attention, attention, x, placement),
        lambda x: feed_forward(layer.ffn, sizes.ffn.kind, x, placement),
    )


def rows(model: Decoder, tokens: Tensor) -> Tensor:
    """Return the input of the entry: rows of the embedding times the multiplier, plus rows of learned positions."""
    embedded = model.embedding.weight[tokens] * model.config.embedding_multiplier
    return embedded if model.positions is None else embedded + model.positions.weight[: tokens.shape[1]]


def hidden_of_slots(model: Decoder, tokens: Tensor) -> Tensor:
    """Return the input of the head, with hyper-connections."""
    config = model.config
    state = entered(model, rows(model, tokens))
    for layer, sizes in zip(model.layers, config.layers, strict=True):
        attend, feed = sublayers(layer, sizes)
        state = through(layer.attention_residual, state, attend)
        state = through(layer.ffn_residual, state, feed)
    return normalised(model.exit.norm, left(model, state))


def hidden_of_prefix(model: Decoder, tokens: Tensor) -> Tensor:
    """Return the input of the head, with the plain residual."""
    config, past = model.config, [rows(model, tokens)]
    resize, multiplier = config.residual.resize, config.residual.multiplier
    for layer, sizes in zip(model.layers, config.layers, strict=True):
        h = resized(past, sizes.d_model, resize if sizes.d_in == sizes.d_model else "carry", layer)
        attend, feed = sublayers(layer, sizes)
        h = h + multiplier * attend(h[..., : sizes.d_in])
        past.append(h[..., : sizes.d_out] + multiplier * feed(h))
    d, n, last = config.d_model, config.final_norm_width, model.exit.norm
    if n == d:
        return normalised(last, carried(past, d))
    if n > d:
        return normalised(last, past[-1])[..., :d]
    return torch.cat((normalised(last, past[-1]), carried(past, d)[..., n:]), dim=-1)


def literal_logits(model: Decoder, tokens: Tensor) -> Tensor:
    """tokens: (B, T) -> logits (B, T, vocab_size)."""
    hidden = {"plain": hidden_of_prefix, "hyper_connections": hidden_of_slots}[model.config.residual.kind]
    logits = hidden(model, tokens) @ model.head.weight.T * model.config.logit_multiplier
    return capped(logits, model.config.logit_cap)
