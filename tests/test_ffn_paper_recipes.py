"""The recipes of the hourglass paper and of the dynamic-width paper, and what the documents say of them.

tests/benchmarks/papers/test_item.py compares them with the printed counts."""

import json
import re
import shlex
from pathlib import Path

import pytest
from boxes import refusal

from widthwise.config_io import parse, to_data
from widthwise.experiments.compare import read_plan
from widthwise.experiments.matching import matched_ratio
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.yaml_io import merge, recipe_path

ROOT = Path(__file__).parent.parent
PAPER = json.loads((ROOT / "tests" / "data_files" / "hourglass_tables.json").read_text())
HOURGLASS = (ROOT / "docs" / "hourglass.md").read_text()
DYNAMIC = (ROOT / "docs" / "dynamic_width.md").read_text()

LINES = re.findall(r"^\| ([-\d, ]+) \| `(.+)` \| (\d+)x(\d+) \| (.+) \|$", HOURGLASS, re.MULTILINE)
"""tables, recipe and overrides, K, d_hidden, millions of attention and feed-forward"""
ROWS = [(f"table{number}", row) for number in (1, 2, 3, 5, 6) for row in PAPER[f"table{number}"]]
SIZES = (113, 403, 906, 1074)
TOKENS_PER_STEP = {0.5: 2**19, 2: 2**21, 4: 2**22}
"""The batch that the paper prints in millions of tokens."""
ABLATIONS = re.findall(r"^\| .+ \| `(qwen.+)` \|$", DYNAMIC, re.MULTILINE)


def recipe(command: str) -> Recipe:
    """The name of a recipe and overrides, as on a command line."""
    name, *overrides = shlex.split(command)
    return load_recipe(name, overrides)


def counts(summary: dict) -> tuple[int, int, int]:
    """Parameters as the hourglass paper counts them: attention, feed-forward, both."""
    attention, ffn = summary["params"]["attention"], summary["params"]["ffn"]
    return attention, ffn, attention + ffn


def sizes(summary: dict) -> tuple[int, int, int, int]:
    """d_model, d_hidden, K, n_layers of a model whose layers and blocks are alike."""
    ((d_model,), (hidden,)) = set(summary["widths"]), {tuple(widths) for widths in summary["hidden_widths"]}
    assert len(set(hidden)) == 1
    return d_model, hidden[0], len(hidden), summary["n_layers"]


def sizes_of_row(row: dict) -> tuple[int, int, int, int]:
    """As `sizes`, of a row of the paper."""
    return row["d_model"], row["d_h"], row["K"], row["L"]


@pytest.fixture(scope="module")
def models() -> dict[tuple[int, int, int, int], dict]:
    """Sizes -> inspection of every line of the document."""
    return {sizes(summary): summary for summary in (inspect_recipe(recipe(line[1])) for line in LINES)}


class TestHourglassTables:
    def test_every_row_is_a_recipe_with_overrides_and_counts_what_its_sizes_say(self, models):
        for _, row in ROWS:
            d_model, d_hidden, n_blocks, n_layers = sizes_of_row(row)
            summary = models[sizes_of_row(row)]
            attention, ffn = 4 * n_layers * d_model**2, 3 * n_layers * n_blocks * d_model * d_hidden
            assert counts(summary) == (attention, ffn, attention + ffn)
            assert set(summary["n_heads"]) == set(summary["n_kv_heads"]) == {12 if n_layers <= 12 else 16}
            assert summary["params"]["norm"] == (n_layers * (1 + n_blocks) + 1) * d_model
            assert summary["params"]["embedding"] == summary["params"]["head"] == 100352 * d_model

    def test_the_document_prints_what_inspect_counts(self, models):
        assert len(LINES) == len(models) == 24
        for (tables, _, n_blocks, d_hidden, millions), (key, summary) in zip(LINES, models.items()):
            assert (d_hidden, n_blocks) == (str(key[1]), str(key[2]))
            assert millions == f"{counts(summary)[2] / 1e6:.2f}"
            holding = dict.fromkeys(name.removeprefix("table") for name, row in ROWS if sizes_of_row(row) == key)
            assert tables == (", ".join(holding) or "-")


class TestHourglassRecipes:
    @pytest.mark.parametrize(("size", "kind"), list(zip(SIZES, ["conventional", "hourglass"] * 2)))
    def test_train_as_tables_3_and_7_say(self, size, kind):
        run = recipe(f"{kind}_{size}m")
        (row,) = (row for row in PAPER["table3"] if (row["size_M"], row["model"].lower()) == (size, kind))
        (setting,) = (row for row in PAPER["table7"] if row["size_M"] == size)
        assert run.tokens_per_step == TOKENS_PER_STEP[row["batch_tokens_M"]]
        assert run.train.steps == round(row["tokens_B"] * 1e9 / run.tokens_per_step)
        assert run.schedule.warmup_steps == round(setting["warmup_tokens_M"] * 1e6 / run.tokens_per_step)
        assert run.seq_len == setting["seq_len"]
        assert {layer.attention.n_heads for layer in run.explicit_model.layers} == {setting["heads"]}
        assert run.train.seed == 6198
        schedule, steps = run.schedule, run.train.steps
        ends = (schedule.warmup_steps, steps)
        rates = [schedule.factor(step, run.optimizer.lr, steps, run.tokens_per_step) for step in ends]
        assert rates == pytest.approx([1.0, 0.1])
        line = re.search(rf"^\| {size}M \| (\S+) \| 2\^(\d+) \| (\d+) \| (\d+) \|$", HOURGLASS, re.MULTILINE)
        assert [float(line[1]), 2 ** int(line[2])] == [run.optimizer.lr, run.tokens_per_step]
        assert [int(line[3]), int(line[4])] == [run.train.steps, run.schedule.warmup_steps]

    @pytest.mark.parametrize("size", SIZES)
    def test_an_hourglass_differs_in_its_sizes_and_costs_what_the_document_says(self, size):
        pair = [recipe(f"{kind}_{size}m") for kind in ("conventional", "hourglass")]
        baseline, hourglass = map(to_data, pair)
        changed = {key: hourglass["model"][key] for key in ("d_model", "n_layers", "ffn")}
        assert merge(baseline, {"model": changed}) == hourglass
        models = [each.explicit_model for each in pair]
        found = re.search(rf"^\| {size}m (\|( \d+ -> \d+ \|){{4}})$", HOURGLASS, re.MULTILINE)
        columns = zip(*(map(int, cell.split(" -> ")) for cell in found[1].strip("| ").split(" | ")))
        for model, column in zip(models, columns, strict=True):
            cost = model.cost()
            millions = [round(cost.params / 1e6), round(cost.forward_flops(pair[0].seq_len, causal=True) / 1e6)]
            assert list(column) == [*millions, cost.kv_bytes(64), model.n_residual_additions]

    def test_olmo_2_differs_from_the_conventional_model_in_its_norms_alone(self):
        conventional, olmo2 = (recipe(f"{name}_1074m") for name in ("conventional", "olmo2"))
        norms = {"norm": {"placement": "reordered"}, "attention": {"qk_norm": {"over": "all_heads", "eps": 1e-6}}}
        assert parse(Recipe, merge(to_data(conventional), {"model": norms})) == olmo2
        assert olmo2.explicit_model.costs()["norm"].params == (16 * 4 + 1) * 2048


class TestDynamicWidthPaper:
    def test_the_guess_counts_134_43_million(self):
        layer = 2 * 512 * (8 + 4) * 64 + 3 * 512 * 1536 + 2 * 512
        model = recipe("qwen_134m_guess").explicit_model
        assert model.cost().params == 151936 * 512 + 18 * layer + 512 == 134_433_280
        assert {(layer.attention.n_heads, layer.attention.n_kv_heads) for layer in model.layers} == {(8, 4)}

    def test_controls_differ_in_the_hidden_width_alone(self):
        for name, d_ff in (("half", 768), ("two_thirds", 1024)):
            change = {"model": {"ffn": {"d_ff": d_ff}}}
            assert merge(to_data(recipe("qwen_134m_guess")), change) == to_data(recipe(f"qwen_134m_guess_{name}"))

    def test_every_ablation_differs_from_the_baseline_in_the_feed_forward_and_how_it_is_trained(self):
        assert len(ABLATIONS) == len(set(ABLATIONS)) > 10
        baseline = to_data(recipe("qwen_134m_guess"))
        found = []
        for command in ABLATIONS:
            ablation = to_data(recipe(command))
            found.append(ablation["model"]["ffn"])
            ablation["model"]["ffn"] = baseline["model"]["ffn"]
            for key in ("width_budget", "compile"):
                ablation["train"][key] = baseline["train"][key]
            assert ablation == baseline, command
        assert all(found.count(ffn) == 1 for ffn in found)

    def test_table_1_compares_the_method_of_section_3_1_with_swiglu_and_nothing_else(self):
        swiglu, own = (to_data(each) for each in read_plan(recipe_path("dynamic_width_table_1")).recipes.values())
        written = {"kind": "dynamic", "d_ff": 1536, "score": {"kind": "ln_mean"}, "mask": {"kind": "hard"}}
        change = {"model": {"ffn": {**written, "min_fraction": 0, "start": 0.5}}}
        assert own["train"]["width_budget"] is None
        assert parse(Recipe, merge(swiglu, change)) == parse(Recipe, own)
        assert swiglu["model"] == to_data(recipe("qwen_134m_guess"))["model"]


def test_the_pairs_of_table_3_match_in_what_the_paper_counts_and_in_nothing_else():
    for size in SIZES:
        pair = [f"{name}_{size}m" for name in ("conventional", "hourglass")]
        conventional, hourglass = read_plan(pair, match="layer_params").recipes.values()
        assert matched_ratio(hourglass, conventional, "layer_params") == pytest.approx(1, abs=4e-4)
    for match in ("params", "flops", "flops_causal", "kv_bytes"):
        assert f"{match} is 1." in refusal(read_plan, pair, match=match)


@pytest.mark.parametrize(
    ("size", "n_blocks", "n_layers", "ratio", "sizes"),
    [(113, 2, 6, 0.75, (1488, 1122)), (403, 4, 24, 0.4, (1376, 557)), (1074, 1, 20, 0.875, (2848, 2486))],
)
def test_adjusting_width_and_then_hidden_width_gives_the_papers_sizes(tmp_path, size, n_blocks, n_layers, ratio, sizes):
    shape = {"n_layers": n_layers, "ffn": {"kind": "hourglass", "n_blocks": n_blocks, "ratio": ratio}}
    compare = {
        "match": {"quantity": "layer_params", "adjust": "d_model,ffn"},
        "variants": {"conventional": {}, "hourglass": {"model": shape}},
    }
    path = tmp_path / "pair.yaml"
    path.write_text(json.dumps({"extends": f"conventional_{size}m", "compare": compare}))
    model = read_plan(path).recipes["hourglass"].final_model
    assert {(layer.d_model, layer.ffn.d_hidden) for layer in model.layers} == {sizes}
