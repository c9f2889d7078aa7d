"""A smaller model of a run: its least needed parts are cut off, and the rest is a run at step 0 to heal by training."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from widthwise.config_io import UserError, checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut
from widthwise.files import check_free
from widthwise.growth.certificate import model_size
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import Need, energies_kept, layer_needs, measure, order_of_need
from widthwise.growth.shrink import (
    Order,
    check_can_shrink,
    cut,
    fold_gains,
    layer_sizes,
    reorder,
    smaller_config,
    why_not_turned,
)
from widthwise.kernels.dispatch import autocast
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.model.eval_mode import evaluating
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.shrinking import check_budget, sizes_at_budget, sizes_like
from widthwise.records.shrinking import LayerCut, Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.conversion import batches_from
from widthwise.runs.data_identity import identity_of
from widthwise.runs.save import IMPORTED, write_first
from widthwise.runs.trained import check_tokenizer, load_trained
from widthwise.training.observer import SilentObserver
from widthwise.training.teacher import Origin
from widthwise.training.validation import validate
from widthwise.yaml_io import apply_overrides


def shrink_run(
    path: Path | str,
    out: Path | str | None,
    options: ShrinkOptions,
    overrides: Sequence[str] = (),
    step: int | None = None,
    to: ModelConfig | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Shrinking:
    """Write a smaller model of a run as a run at step 0, and return what was cut and lost.

    out: folder of the new run; None: nothing is written. overrides: changes to the run's recipe for the new run, data
    and steps of healing among them; step: of the checkpoint, the newest good one where not given; to: a model whose
    sizes the smaller one has, in place of a budget. Raises UserError for a model that cannot be cut, a budget that
    cannot be met, and where `out` is not free.
    """
    if options.budget is None and to is None:
        raise UserError("shrink: got no budget; give --params, --flops or --kv-bytes, or --to RECIPE")
    if to is not None:
        ignored = [
            name for name in ("params", "flops", "kv_bytes", "shape", "parts", "multiple") if _is_given(options, name)
        ]
        if ignored:
            raise UserError(
                f"--{ignored[0].replace('_', '-')}: conflicts with --to, which has the sizes of every layer"
            )
    if out is not None:
        check_free(Path(out))
    loaded = load_trained(Path(path), None, step)
    assert loaded.recipe is not None
    model, recipe = loaded.model, _recipe(loaded.recipe, overrides, str(path))
    check_can_shrink(model.config)
    if to is None:
        check_budget(model.config, options, recipe.seq_len)
    else:
        smaller_config(model.config, sizes_like(model.config, to), to.d_model)
    data = open_data(recipe.data)
    check_tokenizer(RunDir(path), data.tokenizer)
    n_rows, boundaries = recipe.train.sequences_per_pass, recipe.data.boundaries(data)
    batches = batches_from(recipe, 0, options.calibration_batches, SilentObserver())
    text = [part for batch in batches for part in batch.split(n_rows)]
    held_out = recipe.held_out(data)
    held_out.check()
    say("reading held-out text")
    loss_before, tops = validate(model, held_out).loss, _most_likely(model, held_out)
    say(f"measuring the need of the parts on {options.calibration_batches} batches")
    measured = partial(measure, model, text, boundaries=boundaries)
    first_rows = model.embedding.weight[:256].detach().to("cpu", torch.float32, copy=True)
    stream, reason = _arrange_stream(model, measured, options)
    need = measured()
    needs = layer_needs(model, need, options.score)
    reorder(model, order_of_need(needs))
    needs = [each.in_order() for each in needs]
    if to is None:
        sizes = sizes_at_budget(model.config, options, recipe.seq_len, needs)
    else:
        sizes = sizes_like(model.config, to, needs)
    smaller = smaller_config(model.config, sizes, None if to is None else to.d_model)
    energy = energies_kept(need, smaller, sizes)
    small = build(smaller, seed=0, device=loaded.device)
    small.set_weights(cut(model, smaller, sizes, energy))
    loss_after, tops_after = validate(small, held_out).loss, _most_likely(small, held_out)
    found = Shrinking(
        source=loaded.path.resolve().name,
        step=loaded.step or 0,
        request=to_data(options),
        turned=options.stream == "turned" and reason is None,
        not_turned=reason if options.stream == "turned" else None,
        loss_before=loss_before,
        loss_after=loss_after,
        agreement=float((tops == tops_after).double().mean()),
        n_tokens=tops.numel(),
        before=model_size(model.config, recipe.seq_len),
        after=model_size(smaller, recipe.seq_len),
        d_model=[model.config.d_model, smaller.d_model],
        kv_bytes=[model.config.inference_cost().kv_bytes(), smaller.inference_cost().kv_bytes()],
        layers=[
            LayerCut(
                d_model=[before.d_model, after.d_model],
                n_kv_heads=[before.n_kv_heads, after.n_kv_heads],
                n_hidden=[before.n_hidden, after.n_hidden],
                n_experts=[before.n_experts, after.n_experts],
                lost=lost.lost(after),
                energy_kept=[energy.get(f"layers.{i}.{part}.norm", 0.0) for part in ("attention", "ffn")],
            )
            for i, (before, after, lost) in enumerate(zip(layer_sizes(model.config), sizes, needs))
        ],
    )
    if out is not None:
        resolved = checked_copy(recipe, "recipe", model=smaller).resolved()
        resolved.check()
        recorded = RunDir(path).environment()
        imported = {IMPORTED: recorded[IMPORTED]} if IMPORTED in recorded else {}
        provenance = {**identity_of(data).record(), **imported}
        origin = Origin(stream[..., : smaller.d_model], torch.arange(model.config.n_layers), first_rows)
        write_first(Path(out), resolved, small, data.tokenizer, provenance, found, origin)
    return found


def _is_given(options: ShrinkOptions, name: str) -> bool:
    return getattr(options, name) != ShrinkOptions.model_fields[name].default


def _recipe(recipe: Recipe, overrides: Sequence[str], where: str) -> Recipe:
    """The recipe of the new run but for its model: the run's, with changes, and without growth."""
    for each in overrides:
        if (key := each.partition("=")[0].strip()).partition(".")[0] == "model":
            raise UserError(f"{key}: the cut decides the model; give its sizes as --to RECIPE")
    data = to_data(checked_copy(recipe, "recipe", growth=(), rewarmup=None))
    apply_overrides(data, overrides)
    return parse_recipe(data, where)


def _arrange_stream(model: Decoder, measured: Callable[..., Need], options: ShrinkOptions) -> tuple[Tensor, str | None]:
    """Bring the coordinates of the stream into an order of need, in place; the function stays the same.

    Returns where they come from, as `Origin.stream`, and the reason for which the stream could not be turned; its
    coordinates are then sorted by the squares that sublayers read, or left where they are if layers already own parts
    of it.
    """
    config, reason = model.config, why_not_turned(model.config)
    stream = torch.arange(config.d_model)
    if options.stream == "turned" and reason is None:
        fold_gains(model)
        covariance = torch.as_tensor(measured(with_covariance=True).covariance)
        turn = torch.linalg.eigh(covariance).eigenvectors.flip(-1)
        reorder(model, Order(turn))
        stream = turn.float().cpu()
    elif all({layer.d_in, layer.d_model, layer.d_out} == {config.d_model} for layer in config.layers):
        energy = sum((torch.as_tensor(each.energy) for each in measured().read.values()), torch.zeros(()))
        stream = energy.argsort(descending=True, stable=True).cpu()
        reorder(model, Order(stream))
    return stream, reason


@torch.no_grad()
def _most_likely(model: Decoder, held_out: HeldOut) -> Tensor:
    """Return the most likely token at every position of the held-out text, in order."""
    found = []
    with evaluating(model) as device, autocast(device, held_out.precision):
        for batch in held_out.batches():
            tokens = batch[:, :-1].to(device)
            documents, positions = held_out.boundaries.documents(tokens), held_out.boundaries.positions(tokens)
            stream = model.stream(tokens, documents=documents, positions=positions)
            found.append(model.logits(model.exit(stream)).argmax(dim=-1).flatten().cpu())
    return torch.cat(found)
