"""The numbers that the documents cite, recomputed from the records in benchmarks/results.

`python docs/cited_numbers.py` prints what a page says and no record does.

A page's citations are pieces of its text, in its order and with computed numbers. Together with what is GIVEN they must
hold every number of the page that has a fraction. A difference from the baseline is the record's own, paired by seed
and text; one of two other variants is paired by seed alone.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from widthwise.evaluation.estimate import seed_interval, students_t
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.scaling import ScalingLaws

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
D32, D64, D80 = "compute_optimal_d32", "compute_optimal_d64", "compute_optimal_d80"
D64_SHAPES = "compute_optimal_d64_shapes"
AT_16 = (D32, "compute_optimal_d32_reordered")
AT_39 = ("compute_optimal", "compute_optimal_reordered", "compute_optimal_more_seeds")
"""The records of 0.16M and of 0.39M parameters; all but the first of each have the same texts in another order."""
MORE_KINDS, GROWN, MHC = "compute_optimal_more_kinds", "compute_optimal_growth", "compute_optimal_d32_manifold"
MHC_AT_39 = "compute_optimal_manifold"
F6, MORE, LONGER, F12 = "found_6m", "found_6m_more_seeds", "found_6m_longer", "found_12m"
E6, SWEEP, FFN, VIRTUAL = "evidence_6m", "sweep_shapes", "compare_ffn", "compare_virtual_width"
GROWTH, RESIZING, HEADS = "compare_growth_2x", "variable_width_table_4_small", "x_heads_d64"
BOOKS = "discovered_books"
DEEP, RATES = "compare_manifold_deep_rates", ("0.002", "0.004", "0.008", "0.016", "0.032")
NUMBER, SIZE, DEFAULT_X = "x_constant_number", "x_constant_size", "x-0.75-0.3"
TRAINING = "train_loss"


@cache
def outcome(folder: str) -> Outcome:
    return Outcome.read(RESULTS / folder)


@cache
def read_json(path: str) -> dict[str, Any]:
    return json.loads((RESULTS / path).read_text())


def trend_slope() -> Estimate:
    """Return the slope of the loss over log2 of the virtual width, from a section that only older records have."""
    return Estimate(**read_json(f"{VIRTUAL}/outcome.json")["trend"]["slope"])


def variant(folder: str, name: str) -> Variant:
    return next(each for each in outcome(folder).variants if each.name == name)


def per_seed(folder: str, name: str, of: str = "val_loss") -> list[float]:
    """Return a loss by seed; of a group of a sweep, the mean over its points."""
    points = [each for each in outcome(folder).variants if name in (each.name, each.group)]
    return [fmean(seed) for seed in zip(*(getattr(each, of).per_seed for each in points), strict=True)]


def paired(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the mean difference, with Student's t interval. values, others: one per seed."""
    return seed_interval([value - other for value, other in zip(values, others, strict=True)])


def minus(folder: str, name: str, other: str | None = None, of: str = "val_loss") -> Estimate:
    """Return a loss minus the baseline's, as the record has it, or minus that of another variant or group."""
    if other is not None:
        return paired(per_seed(folder, name, of), per_seed(folder, other, of))
    own = variant(folder, name)
    found = own.validated[of].difference if of in own.validated else own.differences.get(of)
    found = own.difference if of == "val_loss" else found
    assert found is not None, (folder, name, of)
    return found


def ci(estimate: Estimate, form: str = "+.3f", unit: str = "") -> str:
    return f"{estimate.mean:{form}}{unit} ({estimate.low:{form}} to {estimate.high:{form}})"


def d(folder: str, name: str, other: str | None = None, of: str = "val_loss", form: str = "+.3f") -> str:
    return ci(minus(folder, name, other, of), form)


def mean(folder: str, name: str, other: str | None = None, of: str = "val_loss", form: str = "+.3f") -> str:
    return f"{minus(folder, name, other, of).mean:{form}}"


def pooled(records: Sequence[str], name: str) -> Estimate:
    """Return the difference from uniform over the seeds of all records that have a variant."""
    of_seeds = (minus(record, name).per_seed for record in records if has(record, name))
    return seed_interval([difference for seeds in of_seeds for difference in seeds])


def has(record: str, name: str) -> bool:
    return any(name == each.name for each in outcome(record).variants)


def by(folder: str, name: str, other: str) -> str:
    """Return by how much the first is better than the other."""
    return d(folder, other, name, form=".3f")


def loss(folder: str, name: str) -> str:
    return f"{fmean(per_seed(folder, name)):.3f}"


def ratio(folder: str, name: str, of: str, form: str = ".3f") -> str:
    """Return a quantity over the baseline's."""
    return f"{variant(folder, name).ratio[of]:{form}}"


def tokens(folder: str, name: str, form: str = ".2f") -> str:
    """Return tokens to equal loss over the baseline's."""
    return ci(variant(folder, name).at_equal_loss["val_loss"].tokens_ratio, form)


def mean_tokens(folder: str, name: str) -> str:
    return f"{variant(folder, name).at_equal_loss['val_loss'].tokens_ratio.mean:.2f}"


def detail(folder: str, table: str, line: str, column: str) -> float:
    """Return the number of a cell of details.csv, or its share in brackets. table: a part of the name of the table."""
    cells = csv.reader((RESULTS / folder / "details.csv").open())
    [found] = {cell for name, *place, cell in cells if table in name and place == [line, column]}
    return float(re.findall(r"[\d.]+(?:e-\d+)?", found)[-1])


def asked(folder: str, name: str, form: str = ".2f") -> str:
    """Return the share of a feed-forward's FLOPs that tokens ask for."""
    return f"{detail(folder, '', 'feed-forward FLOPs per token, asked', name):{form}}"


def of_layers(folder: str, name: str = "dynamic") -> list[str]:
    """Return the mean share of the hidden units that tokens use, by layer; of the first seed."""
    return [f"{detail(folder, f' of {name} by layer', str(layer), 'mean'):.2f}" for layer in range(1, 9)]


def row(*cells: str) -> str:
    """Return a row of a table, or its end."""
    return f"| {' | '.join(cells)} |"


def listed(texts: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}"


def seeds_of(estimate: Estimate) -> list[str]:
    return [f"{each:+.3f}" for each in estimate.per_seed]


def findings() -> Iterator[str]:
    virtual, few = "virtual-2-3", asked(FFN, "dynamic")
    yield from (d(D32, "x"), d(D64_SHAPES, "x"), d(HEADS, NUMBER), d(E6, "x"), d(E6, "x-head-size"))
    yield from (ci(pooled(AT_16, "hourglass")), d(E6, "hourglass"))
    yield from (d(D32, "dynamic"), d(FFN, "dynamic"), d(E6, "dynamic"), few, ci(pooled(AT_16, virtual)), d(E6, virtual))
    yield f"logits change by at most {largest_change('logits')} (relative) |"
    yield f"{d(f'{D32}_growth', 'grown')} at 0.16M | {d(GROWTH, 'depth_2x')} at 1.8M"
    yield f"{d(D32, 'found')} at 0.16M | {ci(five_seeds())} at 6.3M, five seeds"
    yield f"a head start: {mean(LONGER, 'mean')} is left"
    yield f"{ci(cut('found', LARGE_CUT))} at 6.3M"
    yield f"if {ratio(E6, virtual, 'activation_bytes', '.2f')} times the activation memory"
    yield f"takes [{step_ratio('x_200m_hw'):.3f}]"
    yield f"it takes {step_ratio('x_200m'):.3f}"
    yield f"may be {ratio(D32, 'hourglass', 'kv_bytes', '.2f')} times as large"
    yield f"at {ratio(D32, 'cut', 'flops')} of the FLOPs, with no"
    of_cut = d(D64_SHAPES, "cut")
    yield f"differs by {ci(pooled(AT_39, 'cut'))}, at 0.66M by {of_cut} at {ratio(D64_SHAPES, 'cut', 'flops')} of the"
    sections = (twenty_tokens, ten_times_the_size, variable_width, inside_the_models, heads, hourglass, dynamic_width)
    for section in (*sections, virtual_width, growth, found_shapes):
        yield from section()


def twenty_tokens() -> Iterator[str]:
    of_uniform = [value for record in AT_39[1:] for value in per_seed(record, "uniform")]
    yield f"| {loss(AT_16[0], 'uniform')} and {loss(AT_16[1], 'uniform')} |"
    yield f"| {listed(loss(record, 'uniform') for record in AT_39)} |"
    yield from (f"| {loss(record, 'uniform')} |" for record in (D64, D80))
    for name in ("virtual-2-3", "hourglass", "x-head-size", "x", "found", "cut", "dynamic", "hidden-early"):
        cells = [ci(pooled(AT_16, name))]
        cells.append(ci(pooled(AT_39, name)) if has(AT_39[0], name) else d(MORE_KINDS, name))
        if has(D64, name):
            cells.append(d(D64, name))
        else:
            cells.append(d(D64_SHAPES, name) if has(D64_SHAPES, name) else "")
        cells.append(" and ".join(seeds_of(minus(D80, name))) if has(D80, name) else "")
        yield row(*cells, ratio(D32, name, "flops"), ratio(D32, name, "kv_bytes"))
    costs = [ratio(MHC, "sinkhorn-0.016", cost) for cost in ("flops", "kv_bytes")]
    yield row(d(MHC, "sinkhorn-0.016"), d(MHC_AT_39, "sinkhorn-0.008"), "", "", *costs)
    yield f"differs by up to {max(of_uniform) - min(of_uniform):.3f}"
    yield listed(seeds_of(minus(D64, "virtual-2-3")))
    yield from grown_at_full_length()
    for name in ("virtual-2-3", "hourglass", "x-head-size"):
        yield row(*in_the_course(D80, name, 960), mean_tokens(D80, name))
    savings = ScalingLaws.read(RESULTS / "compute_optimal_laws").savings
    ratios = {saving.group: saving.ratio for saving in savings if saving.fit == "log_linear" and saving.kind == "curve"}
    yield f"virtual width {ci(ratios['virtual-2-3'], '.2f')}, the hourglass {ci(ratios['hourglass'], '.2f')}"
    yield f"the x {ci(ratios['x-head-size'], '.2f')}"


def in_the_course(folder: str, name: str, validate_every: int) -> list[str]:
    """Return the differences from uniform after 2, 4, 8, 12 and 20 tokens per parameter; a step has 2048."""
    gap = variant(folder, name).gap["val_loss"]
    means = dict(zip(gap.tokens, gap.mean))
    return [f"{means[n * 2048 * validate_every]:+.3f}" for n in (1, 2, 4, 6, 10)]


def step_ratio(name: str) -> float:
    """Return the step time of a model on a GPU over the uniform model's."""
    return read_json("gpu.json")["parts"]["training/200m/eager"]["variants"][name]["wall_ratio"]["median"]


def losses_at_rates(name: str, folder: str = "compute_optimal_d32_rates") -> dict[str, float]:
    """Return the loss of a variant at each learning rate, by rate."""
    points = outcome(folder).variants
    return {p.name.rpartition("-")[2]: p.val_loss.mean or 0 for p in points if p.name.rpartition("-")[0] == name}


def ten_times_the_size() -> Iterator[str]:
    yield f"whose loss is {loss(E6, 'uniform')}, at equal parameters"
    shapes = ("x", "x-head-size", "grown", "grown-at-0.7m", "hourglass", "virtual-2-3")
    for name in (*shapes, "dynamic", "dynamic-const", "dynamic-random"):
        yield row(d(E6, name), tokens(E6, name), ratio(E6, name, "flops"), ratio(E6, name, "kv_bytes"))


def five_seeds() -> Estimate:
    """Return the loss of the mean of the searches minus the uniform model's, of both records of that pair.

    The interval is made as theirs: the variance of the text, beyond that of the seeds, is widened by n / (n - 1), and
    both are multiplied by Student's t of n - 1 degrees of freedom.
    """
    records = [minus(folder, "mean") for folder in (F6, MORE)]
    n_seeds, of_text = sum(len(each.per_seed) for each in records), 0.0
    for each in records:
        n, alone = len(each.per_seed), seed_interval(each.per_seed)
        beyond_seeds = (width(each) ** 2 - width(alone) ** 2) / students_t(n - 1) ** 2
        of_text += n / n_seeds * beyond_seeds * (n - 1) / n
    seeds = seed_interval([each for record in records for each in record.per_seed])
    widened = students_t(n_seeds - 1) ** 2 * of_text * n_seeds / (n_seeds - 1)
    half = (width(seeds) ** 2 + widened) ** 0.5
    return seeds.with_changes(low=seeds.mean - half, high=seeds.mean + half)


def width(estimate: Estimate) -> float:
    """Return half of an interval."""
    return (estimate.high - estimate.low) / 2


def found_shapes() -> Iterator[str]:
    for name in ("mean", "hidden-only", "heads-only", "stream-only", "mean-permuted", "mean-reversed"):
        yield f"| {d(F6, name)} |"
    gap = variant(LONGER, "mean").gap["val_loss"]
    means = dict(zip(gap.tokens, gap.mean))
    yield row(*(f"{means[n * 61 * 4096]:+.3f}" for n in (1, 2, 4, 8, 12, 16)))


def variable_width() -> Iterator[str]:
    others = ("diamond", "growing", "narrowing")
    yield of_group("x")
    yield ", ".join(f"{other} {d(SWEEP, 'x', other)}" for other in others)
    yield f"{d(SWEEP, DEFAULT_X)}, the best of 18; training loss {d(SWEEP, DEFAULT_X, 'uniform', TRAINING)}"
    yield from (d("compare_small", "x"), d(FFN, "x"))
    yield f"{d('variable_width_moe_small', 'x')}; in training loss (in the paper -0.016),"
    yield d("variable_width_moe_small", "x", of=TRAINING)
    yield from (d(RESIZING, "carry"), d(RESIZING, "carry", of=TRAINING))
    yield from (d(RESIZING, name, "carry") for name in ("zero", "projection"))
    yield d(RESIZING, "full_projection", "carry", form="+.2f")


def of_group(name: str) -> str:
    """Return the difference of a group of the sweep: the mean of its points, with the interval of the record."""
    judged = next(each.difference for each in outcome(SWEEP).judged if each.name == name)
    return f"{mean(SWEEP, name, 'uniform')} ({judged.low:+.3f} to {judged.high:+.3f})"


def inside_the_models() -> Iterator[str]:
    """Yield what an analysis of three uniform models and three x models shows."""
    models = read_json("sweep_shapes_analysis/analysis.json")["models"]

    def means(part: str, key: str, first: int, last: int) -> list[float]:
        return [fmean(each[key] for each in model[part] if first <= each["depth"] <= last) for model in models]

    def change(values: list[float], form: str = "+.3f", unit: str = "") -> str:
        return ci(paired(values[1::2], values[::2]), form, unit)

    yield change(means("logit_lens", "target_log_prob", 1, 6), "+.2f", " nats")
    yield f"layers 4 to 8: {change(means('stream', 'entropy', 4, 8))} |"


def heads() -> Iterator[str]:
    yield f"{d(HEADS, NUMBER)} and {d(HEADS, SIZE)}"


def hourglass() -> Iterator[str]:
    yield f"the better of two rates: {d(FFN, 'hourglass')} |"
    alike = sorted(d("hourglass_table_1_small", f"k{n}") for n in (5, 6, 8, 10))
    yield f"{alike[0]} to {alike[-1]}"
    yield ", ".join(d("hourglass_table_2_small", f"k{n}_{depth}") for n in (2, 4) for depth in ("deep", "shallow"))
    of_ratios = [f"hourglass-{n}-{size}" for n in (4, 2) for size in (0.2, 0.4, 0.8)]
    means = [mean("hourglass_figure_3_small", name, form="+.2f") for name in of_ratios]
    yield "four blocks {}, {}, {}, two blocks {}, {}, {} |".format(*means)
    means = [mean("hourglass_figure_4_small", f"hourglass-4-{depth}") for depth in (3, 4, 8)]
    yield "four blocks {}, {}, {} at 3, 4 and 8 layers |".format(*means)
    yield ", ".join(loss("hourglass_tables_5_6_small", f"k{n}") for n in (1, 2, 4, 6, 8)) + " for 1, 2, 4, 6, 8 blocks"


def dynamic_width() -> Iterator[str]:
    yield from (d(FFN, "dynamic"), f"{asked(FFN, 'dynamic')} of the width")
    yield "{} better than one width per layer, {} better than random widths".format(
        *(mean(FFN, f"dynamic-{control}", "dynamic", form=".3f") for control in ("const", "random"))
    )
    losses = read_json("width_oracle/analysis.json")["models"][0]["token_widths"]["oracle"]["losses"]
    profile, widths = (losses["uniform"] - losses[name] for name in ("by_layer", "chosen"))
    yield f"{losses['chosen'] - losses['oracle']:.2f} worse than an oracle that knows the targets"
    yield f"{widths:.3f} better than one width"
    yield f"{profile:.3f} of it from widths that differ by layer |"
    yield d("distilled_narrow", "distilled")


def virtual_width() -> Iterator[str]:
    table, figure, widths = "virtual_width_table_1_small", "virtual_width_figure_4_small", ("r2", "r4", "r8")
    yield from (d(VIRTUAL, "r1"), d(VIRTUAL, "r8"))
    yield f"{ratio(VIRTUAL, 'r1', 'flops', '.2f')} to {ratio(VIRTUAL, 'r8', 'flops', '.2f')} of the FLOPs |"
    yield from (ci(trend_slope(), "+.4f"), d(VIRTUAL, "r2_full"))
    yield from (d("reduction_starts", name) for name in ("full_slow", "slot"))
    means = [mean(figure, name) for name in ("vwn", "mtp", "vwn_mtp")]
    yield "{} with virtual width, {} with the second token, {} with both".format(*means)
    yield f"{listed(tokens(table, name, '.3f') for name in widths)} at 2, 4 and 8 |"
    for name in ("free_1_4", "free_2_3", "sinkhorn", "permutations"):
        yield d("compare_manifold", name)
    small = [d("compare_manifold", f"{name}_small_scale") for name in ("sinkhorn", "permutations")]
    yield f"with initial scales of 0.01 {small[0]} and {small[1]}"
    for name in ("free_1_4", "free_2_3", "sinkhorn", "permutations"):
        yield d("compare_manifold_6m", name)


def free_carries() -> Iterator[str]:
    yield row(*(loss(DEEP, f"uniform-{rate}") for rate in RATES))
    carries = read_json(f"{DEEP}/carries.json")
    best = {"free_1_4": ("0.008", ".1e"), "free_2_3": ("0.008", ".0f"), "sinkhorn": ("0.004", ".2f")}
    best["permutations"] = best["sinkhorn"]
    for name, (rate, form) in best.items():
        *_, product = carries["product_gains"][f"{name}-{rate}-seed1"].values()
        losses = [loss(DEEP, f"{name}-{rate}") for rate in RATES]
        yield row(*losses, f"{product:{form}}", d("compare_manifold_deep", name))
    largest = {name: norms["largest_ratio"] for name, norms in carries["gradient_norms"].items()}
    bounded = max(norm for name, norm in largest.items() if not name.startswith("free"))
    yield f"gradients of up to {largest['free_1_4-0.016-seed1']:.1f} times their median"
    yield f"doubly stochastic models at most {bounded:.1f} at any rate"
    yield f"learns nothing (ln 2048 = {math.log(2048):.3f})"


def largest_change(of: str) -> str:
    """Return the largest change of logits or gradients by an expansion."""
    models = read_json("expansions_table_1/demonstration.json")["expansions"].values()
    return f"{max(max(each['quantities'][f'change_of_{of}']) for each in models):.0e}"


def jump() -> list[str]:
    """Return by how much a growth that changes the function raises the loss, on average and at most."""
    quantities = ("held-out before", "after", "largest change")
    before, after, most = (detail("grow_no_spike", "Growth", "naive", each) for each in quantities)
    return [f"{after - before:.2f}", f"{most:.2f}"]


def growth() -> Iterator[str]:
    yield f"at most {largest_change('logits')} (relative), gradients by {largest_change('gradients')} |"
    models = read_json("expansions_table_1/demonstration.json")["expansions"]
    printed = models["hidden_expansion"]["quantities"]["change_of_logits_as_printed"]
    yield f"by {fmean(printed):.1%} on average ({100 * min(printed):.2f} to {max(printed):.2%} of eight models)"
    yield f"grown naively it jumps by {jump()[0]} nats |"
    yield f"{d(GROWTH, 'depth_2x')} from half of the layers, {d(GROWTH, 'width_2x')} from half of the width |"


LARGE_CUT, SMALL_CUT = "shrinking_6m.json", "shrinking.json"


def shrink() -> Iterator[str]:
    large = read_json("shrinking_1b_cpu.json")
    yield f"A Llama of {large['params'][0] / 1e9:.2f}B random parameters"
    yield f"with a peak of {large['ratio']:.3f} times its weights"
    seeds = read_json(LARGE_CUT)["seeds"]
    for name in ("whole", "found", "x", "uniform", "found, distilled"):
        runs = [seed["cuts"][name] for seed in seeds]
        losses = [
            f"{fmean(run[key] for run in runs):.3f}" if key in runs[0] else ""
            for key in ("flops_ratio", "cut", "healed", "scratch_healing", "scratch")
        ]
        difference = "-" if name == "uniform" else ci(cut(name, LARGE_CUT))
        yield row(name, *losses[:3], difference, *losses[3:])
    yield f"healing then costs {1 + 1 / (3 * 0.7):.2f} times as much"
    found, x = (ci(cut(name, LARGE_CUT, "scratch")) for name in ("found", "x"))
    yield f"trained from scratch, {found}; so does the x, {x}"
    yield f"helps found and uniform, by about {-cut('uniform, distilled').mean:.2f}"


def cut(name: str, file: str = SMALL_CUT, key: str = "healed") -> Estimate:
    """Return the loss of a cut model, minus that of the uniform cut."""
    cuts = [seed["cuts"] for seed in read_json(file)["seeds"]]
    return paired([each[name][key] for each in cuts], [each["uniform"][key] for each in cuts])


def results() -> Iterator[str]:
    small, virtual = "compare_small", "virtual-2-3"
    yield from (ci(pooled(AT_16, virtual)), ratio(D32, virtual, "flops"))
    yield from at_larger_sizes(virtual)
    yield from (d(E6, virtual), ratio(E6, virtual, "flops", ".2f"), d(VIRTUAL, "r1.5"))
    yield from (ratio(VIRTUAL, "r1.5", of, ".2f") for of in ("params", "flops"))
    yield from (d(MHC, name) for name in ("sinkhorn-0.016", "sinkhorn-0.032"))
    yield from (d(MHC_AT_39, name) for name in ("sinkhorn-0.008", "sinkhorn-0.004"))
    yield from (d(D32, "found"), f"[{ci(pooled(AT_39, 'found'))}]")
    yield from (d(D64_SHAPES, "found"), ci(five_seeds()))
    yield listed(seeds_of(minus(F12, "mean")))
    yield from (d(D32, "x"), ci(pooled(AT_16, "x-head-size")), f"[{ci(pooled(AT_39, 'x'))}]")
    yield d(D64_SHAPES, "x")
    yield from at_larger_sizes("x-head-size")
    yield from (d(E6, "x"), d(E6, "x-head-size"))
    yield from (d(HEADS, NUMBER), d(HEADS, SIZE), d(BOOKS, "x"), d(FFN, "x"), d(small, "x"))
    yield ci(pooled(AT_16, "hourglass"))
    yield from at_larger_sizes("hourglass")
    yield from (d(E6, "hourglass"), d(FFN, "hourglass"))
    yield from (d(D32, "dynamic"), d(MORE_KINDS, "dynamic"))
    yield from (d(E6, "dynamic"), f"with {asked(E6, 'dynamic')} of the units")
    yield from (d(E6, "dynamic", "dynamic-const"), d(FFN, "dynamic"))
    yield f"{mean(FFN, 'dynamic', 'dynamic-const')} |"
    yield from (*grown_at_full_length(), d(GROWTH, "depth_2x"))
    yield from (tokens(E6, name) for name in ("grown", "grown-at-0.7m", virtual))

    yield f"minus {min(losses_at_rates('uniform').values()):.3f}, the lowest of uniform"
    for name in ("uniform", "virtual-2-3", "hourglass", "cut", "x-head-size", "found", "dynamic", "x", "hidden-early"):
        losses = losses_at_rates(name)
        difference = min(losses.values()) - min(losses_at_rates("uniform").values())
        of_rates = [f"{losses[rate]:.3f}" for rate in ("0.002", "0.004", "0.008", "0.016", "0.032")]
        yield row(*of_rates, f"{difference:+.3f}" if difference else "")
    yield f"at 0.064: {losses_at_rates('virtual-2-3')['0.064']:.3f}"
    of_uniform = min(losses_at_rates("uniform", "compute_optimal_rates").values())
    yield f"minus {of_uniform:.3f}"
    for name in ("virtual-2-3", "hourglass", "x-head-size", "x", "cut", "found", "uniform"):
        losses = losses_at_rates(name, "compute_optimal_rates")
        of_rates = [f"{losses[rate]:.3f}" if rate in losses else "" for rate in ("0.002", "0.004", "0.008", "0.016")]
        difference = min(losses.values()) - of_uniform
        yield row(*of_rates, f"{difference:+.3f}" if difference else "")
    for name, rate, tuned in (("uniform", "0.004", "0.008"), ("x", "0.008", "0.004")):
        above = listed(seeds_of(minus("compute_optimal_d64_rates", f"{name}-{rate}", name)))
        yield f"{name} ends {above} above its loss with {rate} in place of {tuned}"

    def ends(text: str) -> str:
        """Return a difference and its interval in two cells of a table."""
        return text.replace(" (", " | ").rstrip(")")

    yield f"whose loss is {loss(SWEEP, 'uniform')}."
    yield row(ends(of_group("x")))
    yield from (ratio(SWEEP, DEFAULT_X, "flops"), ratio(SWEEP, DEFAULT_X, "kv_bytes"), row(ends(d(SWEEP, DEFAULT_X))))
    yield from (row(ends(of_group(name))) for name in ("diamond", "growing", "narrowing"))
    yield from (loss(small, "x"), loss(small, "uniform"), ends(d(small, "x")).replace(" |", ", 95% interval"))
    yield from (ratio(small, "x", of) for of in ("flops", "kv_bytes"))
    yield f"costs nothing at {asked(FFN, 'dynamic')} of the units"
    yield f"whose loss is {loss(FFN, 'uniform')}."
    for name in ("x", "swiglu-2.75", "hourglass", "x+hourglass", "dynamic", "dynamic-const", "dynamic-random"):
        units = f"; {asked(FFN, name)} of the feed-forward used" if name == "dynamic" else ""
        if name.startswith("dynamic-"):
            yield f"({asked(FFN, name)})"
        yield row(ends(d(FFN, name)), ratio(FFN, name, "flops") + units, ratio(FFN, name, "kv_bytes"))
    used, between = of_layers(FFN), detail(FFN, "", "share of the variance between tokens", "dynamic")
    yield f"{100 * (1 - between):.0f} percent of the variance of the dynamic widths is between layers"
    yield f"mean width is {used[0]} in the first layer and {used[3]} in the middle"
    yield " to ".join(mean(VIRTUAL, "plain", name, form=".2f") for name in ("r1", "r8"))
    yield f"whose loss is {loss(VIRTUAL, 'plain')}."
    for name in ("r1", "r1.5", "r2", "r4", "r8", "r2_full"):
        yield row(ends(d(VIRTUAL, name)), ratio(VIRTUAL, name, "params"), ratio(VIRTUAL, name, "flops"))
    r_squared = read_json(f"{VIRTUAL}/outcome.json")["trend"]["r_squared"]
    yield f"by {ends(ci(trend_slope(), '+.4f')).replace(' |', ' nats, 95% interval')}, R² {r_squared:.3f}"
    yield from free_carries()
    yield f"the loss is {loss(GROWTH, 'scratch')} nats."
    for folder, name in ((GROWTH, "depth_2x"), (GROWTH, "width_2x"), ("compare_growth_4x", "width_4x")):
        yield row(ends(d(folder, name)), ratio(folder, name, "training_flops"))
    yield f"({detail('grow_no_spike', 'Growth', 'exact', 'after'):.3f} nats on average)"
    yield "it jumps by {} nats on average, and by {} with the worse of the two seeds".format(*jump())


def at_larger_sizes(name: str) -> Iterator[str]:
    """Yield the differences from uniform at 0.39M, 0.66M and 0.98M parameters."""
    yield ci(pooled(AT_39, name))
    yield d(D64, name)
    yield " and ".join(seeds_of(minus(D80, name)))


def grown_at_full_length() -> Iterator[str]:
    """Yield the differences of the grown model at 0.16M, 0.39M and 0.66M parameters."""
    yield from (d(f"{D32}_growth", "grown"), d(GROWN, "grown"), d(f"{D64}_growth", "grown"))


def readme() -> Iterator[str]:
    """Yield the numbers at the end of training and early in it, idea by idea."""
    virtual = "virtual-2-3"
    for name in ("hourglass", virtual):
        yield from (ci(pooled(AT_16, name)), *at_larger_sizes(name), d(E6, name))
    yield from (d(D32, "x"), ci(pooled(AT_39, "x")), d(D64_SHAPES, "x"), d(HEADS, NUMBER))
    yield from (ci(pooled(AT_16, "x-head-size")), *at_larger_sizes("x-head-size"), d(E6, "x-head-size"))
    yield from (d(MHC, "sinkhorn-0.016"), d(MHC_AT_39, "sinkhorn-0.008"))
    yield from (d("compare_manifold", name) for name in ("sinkhorn", "free_1_4"))
    yield from (*grown_at_full_length(), d(GROWTH, "depth_2x"))
    yield f"hourglass has {ratio(D32, 'hourglass', 'kv_bytes', '.2f')} of the uniform model's KV cache"
    yield f"the x {ratio(D32, 'x', 'kv_bytes', '.2f')}."
    yield f"{ratio(E6, virtual, 'activation_bytes', '.2f')} of the activation memory"


CITATIONS = {"README.md": readme, "docs/findings.md": findings, "docs/results.md": results, "docs/shrink.md": shrink}
"""Page -> its citations."""
GIVEN = {
    "README.md": "after 0.16 to 0.5 tokens · at 0.79M · virtual width of 1.5 · Python 3.11 · Apache-2.0",
    "docs/findings.md": """
        its step takes up to [1.24] · on a CPU up to [1.29] · after 0.05 tokens per · at 0.7 of a trained ·
        Virtual width of 1.5 · virtual width 1.5, ·
        lowers it by 0.0069 nats · the paper's training loss -0.039 · (table 4, by 0.039) ·
        0.4 to 0.6 of the width · widths 0.2, 0.4, 0.8: ·
        0.40 of the tokens · 3.131 + 5.821 N^-0.629 · within 0.006 ·
        budget 0.6 · budget of 0.6 ·
        at 0.75 of the depth and 0.3 of""",
    "docs/results.md": """
        0.16 to 12.6 million · **virtual width of 1.5** · and more, 0.2 to 1.1 percent ·
        | | 0.002 | 0.004 | 0.008 | 0.016 | 0.032 · | 0.002 | 0.004 | 0.008 | 0.016 | best ·
        rate of 0.008; · with PyTorch 2.11 and ended · PyTorch 2.13 ·
        at 0.002 all eight · 0.25, 0.5, 0.75 of the depth ·
        0.3, 0.5, 0.7 of the width · default, 0.75 and 0.3 · matched to 0.4 percent · ratio 2.75 · budget 0.6 ·
        its start of 0.6 · | 1.5 ·
        the paper has -0.0069 · about 0.1 nats ·
        at 0.4 of the steps""",
    "docs/shrink.md": """
        0.75 of the depth · cut to 0.7 of its FLOPs · Llama 3.1 8B · | 53.3 GB | 63.9 GB · | 3.80 s | 5.66 s ·
        | 2.11 h | 3.14 h""",
}
"""Page -> its numbers without a record: of papers and laws fitted to their points, of recipes, or of log.md alone."""
FRACTION = re.compile(r"(?<![\w.])[+-]?\d+\.\d+(?!\w|\.\d)")
"""A number with a fraction; not a size, such as 0.66M."""
MOST_SKIPPED = 20
"""Fractions before a citation beyond which it is one of another place, so that one wrong number is not many."""
NO_PROSE = re.compile(r"\]\(.*?\)|(`+).*?\1|arXiv:\S+", re.DOTALL)
"""Addresses and code."""
OTHER_MEASUREMENTS = "\n## Speed"
"""Heading behind which the numbers of a page are of benchmarks and of the papers' models."""


@cache
def citations(page: str) -> list[str]:
    return [one_line(citation) for citation in CITATIONS[page]()]


def unsupported(page: str, text: str) -> Iterator[str]:
    """Yield what is wrong with the numbers in the text of a page: citations that it lacks, and other fractions."""
    text, rest = one_line(text.partition(OTHER_MEASUREMENTS)[0]), list[str]()
    for citation in citations(page):
        found = re.search(rf"(?<![\w.+-]){re.escape(citation)}(?!\w|\.\d)", text)
        if found and len(FRACTION.findall(text[: found.start()])) <= MOST_SKIPPED:
            rest.append(text[: found.start()])
            text = text[found.end() :]
        else:
            yield f"{page}: records have {citation!r}, and the page behind {text[:60]!r} does not"
    prose = " ... ".join([*rest, text])
    for given in one_line(GIVEN[page]).split(" · "):
        if given not in prose:
            yield f"{page}: {given!r} is given, and the page does not have it"
        prose = prose.replace(given, "")
    prose = NO_PROSE.sub("", prose)
    for at in FRACTION.finditer(prose):
        yield f"{page}: no record for the last number of {prose[max(0, at.start() - 60) : at.end()]!r}"


def one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    sys.exit("\n".join(line for page in CITATIONS for line in unsupported(page, (ROOT / page).read_text())) or None)


if __name__ == "__main__":
    main()
