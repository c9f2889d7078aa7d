"""A smaller model of a run: its least needed parts are cut off, and the rest is a run at step 0 to heal by training."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from widthwise.config_io import UserError, checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.loader import HeldOut, Loader
from widthwise.files import check_free
from widthwise.growth.certificate import model_size
from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.need import LayerNeed, energies_kept, layer_needs, measure, order_of_need
from widthwise.growth.shrink import (
    LayerSizes,
    Order,
    check_can_shrink,
    cut,
    fold_gains,
    layer_sizes,
    reorder,
    smaller_config,
    sublayers,
    why_not_turned,
)
from widthwise.kernels.dispatch import autocast
from widthwise.model.decoder import Decoder, build
from widthwise.model.eval_mode import evaluating
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.shrinking import sizes_at_budget
from widthwise.records.shrinking import LayerCut, Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import identity_of
from widthwise.runs.save import write_first
from widthwise.runs.trained import check_tokenizer, load_trained
from widthwise.yaml_io import apply_overrides

SHRUNK = "shrunk"
"""Key in `environment.json` of the run that a smaller one was cut out of."""


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
    if (options.budget is None) == (sizes is None):
        raise UserError(f"shrink: got {options.budget or 'no budget'}; give one budget, or a recipe to cut to")
    if out is not None:
        check_free(Path(out))
    loaded = load_trained(Path(path), None, step)
    assert loaded.recipe is not None
    model, recipe = loaded.model, _recipe(loaded.recipe, overrides, str(path))
    check_can_shrink(model.config)
    data = open_data(recipe.data)
    check_tokenizer(RunDir(path), data.tokenizer)
    train = recipe.train
    loader = Loader(data.train, seq_len=recipe.seq_len, batch_size=train.batch_size, seed=train.seed)
    text = [loader.batch(i) for i in range(options.calibration_batches)]
    held_out = recipe.held_out(data)
    held_out.check()
    say("reading held-out text")
    loss_before, tops = _reading(model, held_out)
    say(f"measuring the need of the parts on {len(text)} batches")
    reason = _arrange_stream(model, text, options)
    need = measure(model, text)
    needs = layer_needs(model, need, options.score)
    order = order_of_need(needs)
    reorder(model, order)
    needs = [
        LayerNeed(each.stream, each.groups[groups], each.units[units])
        for each, groups, units in zip(needs, order.groups, order.units)
    ]
    sizes = sizes_at_budget(model.config, options, recipe.seq_len, needs) if sizes is None else list(sizes)
    smaller = smaller_config(model.config, sizes)
    energy = energies_kept(need, {name: sizes[int(name.split(".")[1])].d_model for name in sublayers(model)})
    small = build(smaller, seed=0, device=loaded.device)
    small.set_weights(cut(model, smaller, energy))
    loss_after, tops_after = _reading(small, held_out)
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
    )
    if out is not None:
        resolved = checked_copy(recipe, "recipe", model=smaller).resolved()
        resolved.check()
        origin = {SHRUNK: {"source": found.source, "step": found.step}}
        write_first(Path(out), resolved, small, data.tokenizer, {**identity_of(data).record(), **origin}, found)
    return found


def _recipe(recipe: Recipe, overrides: Sequence[str], where: str) -> Recipe:
    """The recipe of the new run but for its model: the run's, with changes, and without growth."""
    data = to_data(checked_copy(recipe, "recipe", growth=(), rewarmup=None))
    apply_overrides(data, overrides)
    return parse_recipe(data, where)


def _arrange_stream(model: Decoder, text: Sequence[Tensor], options: ShrinkOptions) -> str | None:
    """Bring the coordinates of the stream into an order of need, in place; the function stays the same.

    Returns the reason for which the stream could not be turned; its coordinates are then sorted by the squares that
    sublayers read, or left where they are if layers already own parts of it.
    """
    config, reason = model.config, why_not_turned(model.config)
    if options.stream == "turned" and reason is None:
        fold_gains(model)
        covariance = torch.as_tensor(measure(model, text, with_covariance=True).covariance)
        reorder(model, Order(torch.linalg.eigh(covariance).eigenvectors.flip(-1)))
    elif all({layer.d_in, layer.d_model, layer.d_out} == {config.d_model} for layer in config.layers):
        energy = sum((torch.as_tensor(each.energy) for each in measure(model, text).read.values()), torch.zeros(()))
        reorder(model, Order(energy.argsort(descending=True, stable=True).cpu()))
    return reason


@torch.no_grad()
def _reading(model: Decoder, held_out: HeldOut) -> tuple[float, Tensor]:
    """Return the loss on held-out text, nats per token, and the most likely token at every position."""
    losses, tops = [], []
    with evaluating(model) as device, autocast(device, held_out.precision):
        for batch in held_out.batches():
            tokens = batch.to(device)
            losses.append(model.loss(tokens[:, :-1], tokens[:, 1:]).losses.double().cpu())
            tops.append(model(tokens[:, :-1]).argmax(dim=-1).cpu())
    return float(torch.cat([each.flatten() for each in losses]).mean()), torch.cat([each.flatten() for each in tops])
