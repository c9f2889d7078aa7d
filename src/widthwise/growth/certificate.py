"""The certificate of a grown model: measurements that show whether it computes the same function.

Both models are rebuilt on the CPU, in float64 if it fits, and read the same random tokens. Logits must agree, and the
gradient of the grown model, pulled back through the plan to the old parameters, must equal the old gradient: a
misplaced row can hide in logits, not in gradients. Two optimizer steps then show which new entries learn.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from widthwise.growth.plan import GrowthPlan
from widthwise.model.axes import Weight
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.memory import allocating, free_memory
from widthwise.records.resizing import Certificate, LivenessCounts, ModelSize

N_SEQUENCES = 2
N_TOKENS = 32
N_STEPS = 2
"""Steps after which every new entry that can learn has had a gradient, even in tied embeddings and normed queries."""
BOUNDS = {
    # Rounding is about 1e-15 of the largest logit, unless norms amplify it. Gradients lose more digits, most where a
    # softmax is saturated; the worst seen was 6e-13 of the largest. The error of a misplaced entry is its whole value.
    torch.float64: (1e-12, 1e-10),
    # 84 and 8400 times the eps of fp32.
    torch.float32: (1e-5, 1e-3),
}
"""Dtype -> allowed differences: of logits, relative to max(1, largest logit), and of gradients, relative to the largest
entry of all gradients. In exact arithmetic both are 0."""
STORED_BOUND = 1e-5
"""Like BOUNDS, of logits with the weights as stored: fp32 rounds multiplied and averaged entries."""


def model_size(model: ModelConfig, seq_len: int) -> ModelSize:
    """Return parameters and forward FLOPs. seq_len: sequence length at which FLOPs are counted."""
    return ModelSize(params=int(model.cost().params), flops_per_token=model.inference_cost().forward_flops(seq_len))


def certify(
    plan: GrowthPlan,
    old_weights: Mapping[str, Tensor],
    new_weights: Mapping[str, Tensor],
    *,
    seq_len: int,
    lr: float,
    seed: int = 0,
) -> Certificate:
    """Compare a grown model with its original.

    old_weights, new_weights: fp32, by parameter name (tied ones by their first name); seed: the one that drew the new
    entries; seq_len: for counting FLOPs; lr: of the two optimizer steps. The caller's random state is not touched.
    """
    n_old = plan.old.cost().params
    n_new = plan.new.cost().params
    # Memory holds two tensors for each old parameter (weight, gradient) and six for each grown one: weight and
    # gradient of the comparison; weight, gradient and two moments of the model that takes steps.
    n_bytes = (2 * n_old + 6 * n_new) * torch.float64.itemsize
    dtype = torch.float64 if n_bytes <= free_memory() / 2 else torch.float32
    logit_bound, gradient_bound = BOUNDS[dtype]
    n_positions = N_TOKENS if plan.old.positions is None else plan.old.positions.n_positions
    size = (N_SEQUENCES, min(N_TOKENS, n_positions))
    tokens = torch.randint(plan.old.vocab_size, size, generator=torch.Generator().manual_seed(seed))
    stored = {name: weight.detach() for name, weight in new_weights.items()}
    old = {name: weight.detach().to(dtype) for name, weight in old_weights.items()}
    grown = dict(plan.weights(old, seed)) if dtype == torch.float64 else stored
    with (
        allocating(f"certificate: the two models, {n_old + n_new:,.0f} parameters, do not fit into memory"),
        torch.random.fork_rng(devices=[]),
    ):
        old_logits, old_gradients = _logits_and_gradients(plan.old, old, tokens, seed, 1.0)
        # Added MTP heads add a loss that the old model lacks, so it is excluded here.
        mtp_coefficient = 0.0 if plan.old.mtp is None else 1.0
        new_logits, new_gradients = _logits_and_gradients(plan.new, grown, tokens, seed, mtp_coefficient)
        largest_logit = largest(old_logits)
        logit_difference = largest(old_logits - new_logits)
        stored_difference = logit_difference
        if any(not torch.equal(stored[name].to(dtype), weight) for name, weight in grown.items()):
            stored_logits = logits_of(decoder_of(plan.new, stored, dtype), tokens, seed)
            stored_difference = largest(old_logits - stored_logits)
        gradient_difference = relative_difference(old_gradients, _pulled_back(plan, old, new_gradients))
        liveness = liveness_of(plan, stored, tokens, dtype, lr, seed)
    scale = max(1.0, largest_logit)
    return Certificate(
        dtype=str(dtype).removeprefix("torch."),
        n_sequences=tokens.shape[0],
        n_tokens=tokens.shape[1],
        largest_logit=largest_logit,
        logit_difference=logit_difference,
        logit_bound=logit_bound * scale,
        stored_logit_difference=stored_difference,
        stored_logit_bound=STORED_BOUND * scale,
        gradient_difference=gradient_difference,
        gradient_bound=gradient_bound,
        liveness=liveness,
        seq_len=seq_len,
        before=model_size(plan.old, seq_len),
        after=model_size(plan.new, seq_len),
    )


def decoder_of(config: ModelConfig, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Decoder:
    """Build a decoder with these weights on the CPU, in evaluation mode."""
    model = blueprint(config).to(dtype).to_empty(device="cpu")
    model.tie()
    model.set_weights(weights.items())
    return model.eval()


def _logits_and_gradients(
    config: ModelConfig, weights: Mapping[str, Tensor], tokens: Tensor, seed: int, mtp_coefficient: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits and, by name, gradients of next-token loss + mtp_coefficient * MTP loss, in evaluation mode.

    Router losses are 0 in that mode.
    """
    dtype = next(iter(weights.values())).dtype
    model = decoder_of(_with_mtp_coefficient(config, mtp_coefficient), weights, dtype)
    logits = logits_of(model, tokens, seed)
    torch.manual_seed(seed)
    return logits, _gradients(model, tokens)


@torch.no_grad()
def logits_of(model: Decoder, tokens: Tensor, seed: int) -> Tensor:
    """Return the logits (B, T, vocab_size). seed: of random widths, which evaluation draws too."""
    torch.manual_seed(seed)
    return model(tokens)


def _gradients(model: Decoder, tokens: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the objective by parameter. tokens: (B, T + 1)."""
    model.zero_grad()
    model.loss(tokens[:, :-1], tokens[:, 1:]).objective.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


def _with_mtp_coefficient(config: ModelConfig, coefficient: float) -> ModelConfig:
    mtp = config.mtp and config.mtp.model_copy(update={"coefficient": coefficient})
    return config.model_copy(update={"mtp": mtp})


def _pulled_back(plan: GrowthPlan, old: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Backpropagate the gradients of the grown parameters through the plan to the old parameters."""
    pulled = {name: torch.zeros_like(weight) for name, weight in old.items()}
    for name, tensor_plan in plan.tensors.items():
        if not tensor_plan.source:
            continue
        leaf = old[tensor_plan.source].clone().requires_grad_()
        # Free entries do not depend on the old weights, so any values will do.
        grown = tensor_plan.grow(leaf, torch.Generator().manual_seed(0))
        pulled[tensor_plan.source] += torch.autograd.grad(grown, leaf, gradients[name])[0]
    return pulled


def liveness_of(
    plan: GrowthPlan, weights: Mapping[str, Tensor], tokens: Tensor, dtype: torch.dtype, lr: float, seed: int
) -> dict[str, LivenessCounts]:
    """Take AdamW steps in training mode with auxiliary losses, and count new entries that ever get a gradient.

    In tables of tokens or positions only rows that `tokens` use are judged.
    """
    is_new = {name: entries for name, entries in plan.is_new().items() if entries.any()}
    torch.manual_seed(seed)  # of random width masks
    model = decoder_of(_with_mtp_coefficient(plan.new, 1.0), weights, dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    alive = {name: torch.zeros_like(entries) for name, entries in is_new.items()}
    for step in range(N_STEPS + 1):
        gradients = _gradients(model, tokens)
        for name in alive:
            alive[name] |= gradients[name].view(alive[name].shape) != 0  # exact: a dead entry is multiplied by 0
        if step < N_STEPS:
            optimizer.step()
    counts = {}
    for name, entries in is_new.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        assert isinstance(owner, Weight)
        judged = entries.clone()
        if "vocab_size" in owner.in_axes:
            judged[~torch.isin(torch.arange(len(judged)), tokens[:, :-1].flatten())] = False
        elif "n_positions" in owner.in_axes:
            judged[tokens.shape[1] - 1 :] = False
        counts[name] = LivenessCounts(
            n_new=int(entries.sum()),
            n_alive=int((judged & alive[name]).sum()),
            n_dead=int((judged & ~alive[name]).sum()),
            n_unjudged=int((entries & ~judged).sum()),
        )
    return counts


def relative_difference(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> float:
    """Return the largest difference over all tensors, relative to the largest old entry; NaN if any entry is NaN."""
    differences = [largest(values - new[name]) for name, values in old.items()]
    # Python's max would lose a NaN that is not first.
    return float(np.max(differences) / np.max([largest(values) for values in old.values()]))


def largest(values: Tensor) -> float:
    """Return the largest absolute value."""
    return float(values.abs().max()) if values.numel() else 0.0
