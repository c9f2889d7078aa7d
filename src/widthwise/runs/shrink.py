"""A smaller model of a run: its least needed parts are cut off, and the rest is a run at step 0 to heal by training."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from widthwise.config_io import UserError, checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut
from widthwise.files import check_free, write_atomic
from widthwise.growth.certificate import model_size
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed, Need, energies_kept, layer_needs, measure, order_of_need
from widthwise.growth.shrink import (
    LayerSizes,
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
from widthwise.model.decoder import Decoder, build
from widthwise.model.eval_mode import evaluating
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.shrinking import check_budget, curve_of_cut, recipe_of_cut, sizes_at_budget
from widthwise.records.shrinking import SHRUNK, LayerCut, Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.conversion import batches_from
from widthwise.runs.data_identity import identity_of
from widthwise.runs.save import IMPORTED, write_first
from widthwise.runs.trained import check_tokenizer, load_trained
from widthwise.training.observer import SilentObserver
from widthwise.training.validation import validate
from widthwise.yaml_io import apply_overrides, dump_yaml


def shrink_run(
    path: Path | str,
    out: Path | str | None,
    options: ShrinkOptions,
    overrides: Sequence[str] = (),
    step: int | None = None,
    sizes: Sequence[LayerSizes] | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Shrinking:
    """Write a smaller model of a run as a run at step 0, and return what was cut and lost.

    out: folder of the new run; None: nothing is written. overrides: changes to the run's recipe for the new run, data
    and steps of healing among them; step: of the checkpoint, the newest good one where not given; sizes: of every
    layer, in place of a budget. Raises UserError for a model that cannot be cut, a budget that cannot be met, and where
    `out` is not free.
    """
    if options.budget is None and sizes is None:
        raise UserError("shrink: got no budget; give --params, --flops or --kv-bytes, or --to RECIPE")
    if sizes is not None:
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
    if sizes is None:
        check_budget(model.config, options, recipe.seq_len)
    else:
        smaller_config(model.config, sizes)
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
    reason = _arrange_stream(model, measured, options)
    need = measured()
    needs = layer_needs(model, need, options.score)
    order = order_of_need(needs)
    reorder(model, order)
    needs = [
        LayerNeed(each.stream, each.groups[groups], each.units[units])
        for each, groups, units in zip(needs, order.groups, order.units)
    ]
    sizes = sizes_at_budget(model.config, options, recipe.seq_len, needs) if sizes is None else list(sizes)
    smaller, energy = smaller_config(model.config, sizes), energies_kept(need, sizes)
    small = build(smaller, seed=0, device=loaded.device)
    small.set_weights(cut(model, smaller, energy))
    loss_after, tops_after = validate(small, held_out).loss, _most_likely(small, held_out)
    try:
        shape = curve_of_cut(model.config, smaller)
    except UserError as error:
        shape = None
        say(f"the shape is not kept as a curve: {error}")
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
        kv_bytes=[model.config.inference_cost().kv_bytes(), smaller.inference_cost().kv_bytes()],
        layers=[
            LayerCut(
                d_model=[before.d_model, after.d_model],
                n_kv_heads=[before.n_kv_heads, after.n_kv_heads],
                n_hidden=[before.n_hidden, after.n_hidden],
                lost=lost.lost(after),
                energy_kept=[energy[f"layers.{i}.attention.norm"], energy[f"layers.{i}.ffn.norm"]],
            )
            for i, (before, after, lost) in enumerate(zip(layer_sizes(model.config), sizes, needs))
        ],
        shape=shape,
    )
    if out is not None:
        resolved = checked_copy(recipe, "recipe", model=smaller).resolved()
        resolved.check()
        recorded = RunDir(path).environment()
        origin = {IMPORTED: recorded[IMPORTED]} if IMPORTED in recorded else {}
        write_first(Path(out), resolved, small, data.tokenizer, {**identity_of(data).record(), **origin}, found)
        if shape is not None:
            of_shape = recipe_of_cut(recipe, model.config, shape, options.budget or "params")
            write_atomic(Path(out) / f"{SHRUNK}.yaml", dump_yaml(of_shape))
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


def _arrange_stream(model: Decoder, measured: Callable[..., Need], options: ShrinkOptions) -> str | None:
    """Bring the coordinates of the stream into an order of need, in place; the function stays the same.

    Returns the reason for which the stream could not be turned; its coordinates are then sorted by the squares that
    sublayers read, or left where they are if layers already own parts of it.
    """
    config, reason = model.config, why_not_turned(model.config)
    if options.stream == "turned" and reason is None:
        fold_gains(model)
        covariance = torch.as_tensor(measured(with_covariance=True).covariance)
        reorder(model, Order(torch.linalg.eigh(covariance).eigenvectors.flip(-1)))
    elif all({layer.d_in, layer.d_model, layer.d_out} == {config.d_model} for layer in config.layers):
        energy = sum((torch.as_tensor(each.energy) for each in measured().read.values()), torch.zeros(()))
        reorder(model, Order(energy.argsort(descending=True, stable=True).cpu()))
    return reason


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
