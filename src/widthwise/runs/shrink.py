"""Shrinking of a run or a Hugging Face folder: the least needed parts of the model are cut. The smaller model becomes a
run at step 0, and training it repairs the loss.

One weight is reordered and cut at a time, so that memory barely exceeds the model. Weights in bf16 stay bf16 if the run
computes in bf16.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.config_io import checked_copy, to_data
from widthwise.data.config import open_data
from widthwise.data.identity import IMPORTED, has_seen_data
from widthwise.data.loader import HeldOut, Loader, with_bos
from widthwise.files import check_free, write_atomic
from widthwise.growth.certificate import model_size
from widthwise.growth.choices import BUDGETS, ShrinkOptions
from widthwise.growth.need import covariance, energies_kept, layer_needs, measure, order_of_need
from widthwise.growth.shrink import (
    LayerSizes,
    Order,
    check_can_shrink,
    cut,
    fold_gains,
    layer_sizes,
    layers_kept,
    reorder,
    smaller_config,
    why_not_turned,
)
from widthwise.interop.hf_import import hub_name
from widthwise.kernels.dispatch import widened
from widthwise.kernels.linear_cross_entropy import rows_per_chunk
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, blueprint
from widthwise.model.memory import give_back_tensors
from widthwise.recipe.recipe import parse_recipe
from widthwise.recipe.shrinking import cost_limits, curve_of_cut, recipe_of_cut, sizes_at_budget, sizes_like
from widthwise.records.resizing import SHRUNK, LayerCut, Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.environment import faster_precision
from widthwise.runs.open import check_finite, check_same_tokens, check_vocabulary, is_run, open_model, usual_device
from widthwise.runs.save import InitialModel, read_import, write_new_run
from widthwise.training.validation import validate
from widthwise.yaml_io import apply_overrides, dump_yaml


def shrink_run(
    path: Path | str,
    out: Path | str | None,
    options: ShrinkOptions,
    overrides: Sequence[str] = (),
    step: int | None = None,
    to: ModelConfig | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Shrinking:
    """Write a smaller version of a trained model as a run at step 0, and return the record of the cut and its loss.

    path: a run, a Hugging Face folder, or `org/name` of the hub. out: folder of the new run; None: nothing is written.
    overrides: changes to the recipe of the new run, such as data and steps of training; the recipe is the run's, or the
    one that `import` writes. step: of the run's checkpoint; default: the newest undamaged one. to: a model with the
    sizes of the smaller one, instead of a budget. say: reports progress. Raises UserError for a model that cannot be
    cut, a budget that cannot be met, and if `out` is neither missing nor an empty folder.
    """
    _check_request(options, to, overrides)
    if out is not None:
        check_free(Path(out))
    give_back_tensors()
    if hub_name(path) is None and is_run(Path(path), step):
        source = _model_of_run(Path(path), step, overrides)
    elif step is None:
        source = read_import(path, overrides, device=usual_device(None), keep_bf16=True)
    else:
        raise UserError(f"{path}: step: got {step}; a model of the hub has no steps")
    model = _for_measuring(source.model)
    recipe = source.recipe
    config = model.config
    if out is not None:
        recipe.check()
    check_can_shrink(config)
    check_finite(path, model.named_parameters())
    if to is None:
        cost_limits(config, options, recipe.seq_len)
    else:
        smaller_config(config, sizes_like(config, to), to.d_model)
    data = open_data(recipe.data)
    if source.tokenizer is not None:
        check_same_tokens(source.tokenizer, data.tokenizer, source.allow_same_tokens)
    check_vocabulary(config.vocab_size, data.tokenizer)
    boundaries = recipe.data.boundaries(data)
    train = recipe.train
    n_rows = train.sequences_per_pass
    loader = Loader(data.train, seq_len=recipe.seq_len, batch_size=train.batch_size, seed=train.seed)
    bos_id = None if options.no_bos or source.tokenizer is None else source.tokenizer.bos_id
    batches = [with_bos(loader.batch(step), bos_id) for step in range(options.calibration_batches)]
    passes = [rows for batch in batches for rows in batch.split(n_rows)]
    held_out = replace(recipe.held_out(data), bos_id=bos_id)
    held_out.check()
    if source.tokenizer is not None and bos_id is not None:
        say(str(source.tokenizer.bos_note))
    say("reading held-out text")
    loss_before, predictions = _validate(model, held_out)
    if not math.isfinite(loss_before):
        raise UserError(f"{path}: its held-out loss is {loss_before}; only a model with a finite loss can be cut")
    say(f"measuring the need of the parts on {options.calibration_batches} batches")
    reason = _arrange_stream(model, partial(covariance, model, passes, boundaries))
    need = measure(model, batches, boundaries, n_rows)
    scores = layer_needs(model, need)
    reorder(model, order_of_need(scores))
    needs = [layer.in_order() for layer in scores]
    sizes = sizes_at_budget(config, options, recipe.seq_len, needs) if to is None else sizes_like(config, to, needs)
    smaller = smaller_config(config, sizes, None if to is None else to.d_model)
    energy = energies_kept(need, smaller, sizes)
    small = _shrink(model, smaller, sizes, energy)
    loss_after, predictions_after = _validate(small, held_out)
    try:
        shape = curve_of_cut(config, smaller)
    except UserError as error:
        shape = None
        say(f"the shape is not kept as a curve: {error}")
    shrinking = Shrinking(
        source=source.name,
        step=source.step,
        request=to_data(options),
        turned=reason is None,
        not_turned=reason,
        loss_before=loss_before,
        loss_after=loss_after,
        agreement=float((predictions == predictions_after).double().mean()),
        n_tokens=predictions.numel(),
        before=model_size(config, recipe.seq_len),
        after=model_size(smaller, recipe.seq_len),
        d_model=[config.d_model, smaller.d_model],
        kv_bytes=[model.inference_cost().kv_bytes(recipe.seq_len) for model in (config, smaller)],
        layers=[
            LayerCut(
                **{size: [old, new] for size, old, new in zip(LayerSizes._fields, before, after)},
                lost=layer.lost(after),
                energy_kept=[energy.get(f"layers.{i}.{part}.norm", 0.0) for part in ("attention", "ffn")],
            )
            for i, (before, after, layer) in enumerate(zip(layer_sizes(config), sizes, needs))
        ],
        shape=shape,
    )
    if out is not None:
        resolved = checked_copy(recipe, "recipe", model=smaller).resolved()
        resolved.check()
        provenance = {**data.identity.record(), **source.origin}

        def write_records(folder: Path) -> None:
            shrinking.write(folder)
            if shape is not None:
                shape_recipe = recipe_of_cut(recipe, config, shape, options.budget or "params")
                write_atomic(folder / f"{SHRUNK}.yaml", dump_yaml(shape_recipe))

        write_new_run(Path(out), resolved, small, data.tokenizer, provenance, write_records)
        shrinking.stored_in(Path(out))
    return shrinking


def _check_request(options: ShrinkOptions, to: ModelConfig | None, overrides: Sequence[str]) -> None:
    """Raise UserError without a budget or model, for a budget with a model, and for overrides of the model."""
    if options.budget is None and to is None:
        raise UserError("shrink: got no budget; give --params, --flops or --kv-bytes, or --to RECIPE")
    for name in (*BUDGETS, "shape", "multiple"):
        if to is not None and getattr(options, name) != ShrinkOptions.model_fields[name].default:
            raise UserError(f"--{name.replace('_', '-')}: conflicts with --to, which has the sizes of every layer")
    for override in overrides:
        if override.partition("=")[0].partition(".")[0].strip() == "model":
            raise UserError(f"{override}: the cut decides the model; give its sizes in a recipe, as --to RECIPE")


def _model_of_run(path: Path, step: int | None, overrides: Sequence[str]) -> InitialModel:
    """Load the model of a run as the initial model of another run."""
    run = RunDir(path)
    loaded = open_model(path, step=step)
    assert loaded.recipe is not None
    data = to_data(checked_copy(loaded.recipe, "recipe", growth=(), rewarmup=None))
    apply_overrides(data, overrides)
    return InitialModel(
        name=path.resolve().name,
        step=loaded.step or 0,
        model=loaded.model,
        recipe=parse_recipe(data, str(path)).settled(faster_precision),
        tokenizer=loaded.tokenizer,
        allow_same_tokens=not has_seen_data(run),
        origin={key: value for key, value in run.environment().items() if key == IMPORTED},
    )


def _for_measuring(model: Decoder) -> Decoder:
    """Set a model of any dtype to evaluation mode, with a stream that is summed in fp32 or fp64, and return it."""
    model.embedding.register_forward_hook(lambda *inputs: widened(inputs[-1]))
    return model.eval().requires_grad_(False)  # autocast caches its casts of weights with gradients


def _shrink(model: Decoder, smaller: ModelConfig, sizes: Sequence[LayerSizes], energy: Mapping[str, float]) -> Decoder:
    """Return the smaller model. Each weight of the larger model is freed before the next one is cut."""
    weights = {}
    layers = layers_kept(sizes)
    for name, weight in cut(model, smaller, sizes, energy):
        weights[name] = weight
        del model.get_submodule((layers.old_name(name) or name).removesuffix(".weight")).weight
    small = blueprint(smaller)
    small.load_state_dict(weights, strict=False, assign=True)  # strict fails for the second name of a tied weight
    small.tie()
    return _for_measuring(small)


def _arrange_stream(model: Decoder, stream_covariance: Callable[[], Tensor]) -> str | None:
    """Rotate the stream to the eigenvectors of its covariance, largest first, without changing the function.

    The model is changed in place. Returns the reason why the stream could not be rotated, or None. Coordinates that are
    not rotated are sorted by their sums of squares, or stay in place if layers have different widths.
    stream_covariance: measures (d_model, d_model) over the inputs of sublayers; called only if needed.
    """
    config = model.config
    reason = why_not_turned(config)
    if reason is None:
        fold_gains(model)
        reorder(model, Order(torch.linalg.eigh(stream_covariance()).eigenvectors.flip(-1)))
    elif all({layer.d_in, layer.d_model, layer.d_out} == {config.d_model} for layer in config.layers):
        reorder(model, Order(stream_covariance().diag().argsort(descending=True, stable=True)))
    return reason


def _validate(model: Decoder, held_out: HeldOut) -> tuple[float, Tensor]:
    """Return the loss on the held-out text, and the most likely next token at each position, (n_tokens,)."""
    tokens: list[Tensor] = []

    def collect(_: nn.Module, inputs: tuple[Any, ...], hidden: Tensor) -> None:
        n_rows = rows_per_chunk(hidden.device.type, model.config.vocab_size)
        tokens.extend(model.logits(rows).argmax(dim=-1).cpu() for rows in hidden.flatten(0, -2).split(n_rows))

    with model.exit.register_forward_hook(collect):
        return validate(model, held_out).loss, torch.cat(tokens)
