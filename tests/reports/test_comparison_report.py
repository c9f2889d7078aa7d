"""The page of a comparison: whole, alone, safe whatever its names are, with the figures and sections of its record."""

import base64
import csv
import hashlib
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import at_equal_loss, estimate, write_comparison
from page_section import answers, change, check_broken, drawn, labels, markup_of, page_of, reported, rows_of, section

from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome, Tuning
from widthwise.reports.charts import MUTED, Figure, colour, styles
from widthwise.reports.comparison_page import tuning_table
from widthwise.reports.experiment_figures import difference_figure
from widthwise.reports.experiment_sections import compared_question, equal_loss_section
from widthwise.reports.formats import MINUS, MISSING
from widthwise.reports.main_table import csv_text, latex_text
from widthwise.reports.writing import answer, experiment_page
from widthwise.run_dir import RunDir

HOSTILE = (
    "<script>alert(1)</script>",
    r"x_{\input{/etc/passwd}} $\frac$",
    "\"'><img src=x onerror=alert(1)>\x1b[31m\n_y",
)


@pytest.fixture(scope="module")
def files(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return reported(comparison, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(files: dict[str, str]) -> str:
    return files[".html"]


def test_same_input_gives_same_files(comparison: Path, files: dict[str, str], tmp_path: Path) -> None:
    assert reported(comparison, tmp_path) == files


def test_the_first_screen_answers_with_one_number_a_sentence(page: str) -> None:
    """x is better, and hourglass not clearly different."""
    assert answers(page) == [
        "x is better than uniform: loss lower by 0.0123 nats (95% CI 0.0043 to 0.0203).",
        f"No clear difference from uniform with 2 seeds: hourglass, +0.0040 nats (95% CI {MINUS}0.0050 to +0.0130).",
    ]
    assert page.index('class="answer"') < page.index('id="figure-differences"') < page.index('<section id="results"')


def test_tokens_at_equal_loss_are_in_the_answer_where_they_are_surely_fewer(comparison: Path) -> None:
    found = Outcome.read(comparison)
    uniform, x, hourglass = found.variants
    for half_width, lines in (
        (0.03, ["x needs 0.812 times the tokens of uniform for the same held-out loss."]),
        (0.3, []),
    ):
        equal = {"val_loss": at_equal_loss(tokens_ratio=estimate(0.8125, half_width))}
        told = answer(found.with_changes(points=[uniform, x.with_changes(at_equal_loss=equal), hourglass]))
        assert [line for line in told if "tokens" in line] == lines


def test_page_is_well_formed_and_refers_to_nothing_outside_itself(page: str) -> None:
    markup = markup_of(page)
    assert not markup.findall(".//*[@src]")
    assert {link.attrib["href"][0] for link in markup.iter("a")} == {"#"}
    assert "@import" not in page
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(digests) == 2  # Vega, and our own
    allowed = "".join(f" 'sha256-{digest}'" for digest in digests)
    assert f"default-src 'none'; script-src{allowed}; style-src 'unsafe-inline'" in page


def test_hostile_names_are_shown_and_never_interpreted(tmp_path: Path) -> None:
    folder = change(
        write_comparison(tmp_path, HOSTILE) / "outcome.json",
        lambda data: data.update(title="</title><script>alert(2)</script>", command="a && b <b>"),
    )
    for run in map(RunDir, folder.glob("runs/*")):
        result, environment = run.result(), run.environment()
        (run.path / "config.yaml").unlink()
        run.begin("name: '</code></pre><script>alert(3)</script>'\n", environment)
        run.write_result(result)
    page = page_of(folder)
    assert len(re.findall("<script>", page)) == 2
    assert "\x1b" not in page
    markup = markup_of(page)
    assert not {"img", "i", "b"} & {element.tag for element in markup.iter()}
    assert not [name for element in markup.iter() for name in element.attrib if name.startswith("on")]
    text = "".join(markup.itertext())
    for shown in (*HOSTILE[:2], "</code></pre><script>alert(3)</script>"):
        assert shown in text


def test_numbers_that_are_missing_are_left_open(tmp_path: Path) -> None:
    def forget(data: dict[str, Any]) -> None:
        for variant in data["points"]:
            variant.update(val_bits_per_byte=None, tokens_per_second=None, ratio={"params": math.nan, "flops": None})
            variant["val_loss"].update(low=None, high=None)
            variant["cost"].update(n_heads=[], hidden_widths=[[]] * len(variant["cost"]["widths"]))
        data["points"][1]["difference"].update(low=None, high=None, per_seed=[None])
        data["points"][2]["difference"] = None

    folder = change(write_comparison(tmp_path) / "outcome.json", forget)
    for run in folder.glob("runs/*"):
        (run / "metrics.jsonl").write_text("")
        (run / "result.json").unlink()
    assert "Loss curves" not in page_of(folder)


@pytest.mark.parametrize(("ratio", "words"), [(1.009, "parameters?"), (1.034, "parameters, within 3.4%?")])
def test_the_question_says_how_far_from_equal_the_variants_are(comparison: Path, ratio: float, words: str) -> None:
    """A search may accept shapes that match less closely than the one percent of other comparisons."""
    found = Outcome.read(comparison)
    uniform, x, hourglass = (variant.with_changes(ratio={"params": 1.0}) for variant in found.variants)
    found = found.with_changes(points=[uniform, x.with_changes(ratio={"params": ratio}), hourglass])
    question = compared_question(["x"], "uniform", found)
    assert question.startswith(f"Does x reach a lower held-out loss than uniform at equal {words}")


def test_a_broken_comparison_is_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    wrong = {
        "baseline: got 'nobody'": lambda data: data.update(baseline="nobody"),
        r"'\.\./x'; allowed: a path inside the folder": lambda data: data["points"][1].update(runs=["../x"]),
        "n_heads: got 1 entries for 7 layers": lambda data: data["points"][1]["cost"].update(n_heads=[1]),
        "two have the same name": lambda data: data["points"][1].update(name="uniform"),
    }
    check_broken(write_comparison(tmp_path) / "outcome.json", wrong)


def with_equal_loss(folder: Path, n_fewest: int) -> Path:
    def gap(end: float) -> dict[str, Any]:
        mean = [0.5, 0.01, 0.005, end]
        ends = {"low": [m - 0.002 for m in mean], "high": [m + 0.002 for m in mean]}
        return {"val_loss": {"tokens": [2e6, 8e6, 16e6, 25e6], "mean": mean, **ends}}

    def add(data: dict[str, Any]) -> None:
        data["validations"] = {"n_fewest": n_fewest, "n_needed": 5, "final_lr_share": 0.1}
        _, x, hourglass = data["points"]
        x |= {"gap": gap(-0.0123), "tokens_ratio": gap(0.8125)}
        hourglass["gap"] = gap(0.004)
        if n_fewest >= 5:
            unknown = {"mean": None, "per_seed": [None, None]}
            worse = {"n_reached": 0, "tokens": unknown, "training_flops": unknown, "tokens_ratio": estimate(1.25, 0.1)}
            x["at_equal_loss"], hourglass["at_equal_loss"] = (
                {"val_loss": at_equal_loss(**changes)} for changes in ({}, worse)
            )

    return change(write_comparison(folder) / "outcome.json", add)


def test_page_and_tables_say_what_is_needed_for_equal_loss_and_how_far_apart_they_are(tmp_path: Path) -> None:
    shown = section(page_of(with_equal_loss(tmp_path, n_fewest=12)), "tokens-at-equal-loss")
    rows = rows_of(shown)
    assert rows["x"] == ["2 of 2", "20.5M", "0.812", "0.782 to 0.843", "0.875", "0.835 to 0.915"]
    assert rows["hourglass"][:4] == ["0 of 2", MISSING, "1.250", "1.150 to 1.350"]
    gaps, ratios = labels(shown)
    assert gaps.endswith(f" over tokens. Last mean value of each line: x {MINUS}0.0123; hourglass 0.0040.")
    assert ratios.endswith(" over tokens. Last mean value of each line: x 0.8125.")
    read = Outcome.read(tmp_path)
    uniform, x, hourglass = csv.DictReader(io.StringIO(csv_text(read)))
    assert (x["tokens_at_equal_loss_mean"], x["training_flops_at_equal_loss_mean"]) == ("0.8125", "0.875")
    assert (x["tokens_to_baseline_loss_mean"], hourglass["tokens_to_baseline_loss_mean"]) == ("20500000.0", "")
    assert uniform["tokens_at_equal_loss_mean"] == ""
    requested = latex_text(read.with_changes(columns=["tokens_at_equal_loss", "training_flops_at_equal_loss"]))
    assert r"x & 0.812 & 0.875 \\" in requested


def test_too_few_validations_are_said_and_the_gap_is_shown(tmp_path: Path) -> None:
    outcome = Outcome.read(with_equal_loss(tmp_path, n_fewest=1))
    text, *figures = reversed(equal_loss_section(outcome, styles(["x", "hourglass"])).parts)
    assert "need 5 validations of every run, and one has 1 validation; train.validate_every" in text.lines[0]
    assert [type(part) for part in figures] == [Figure] * len(figures) != []


def test_table_and_answer_name_the_values_that_were_chosen(comparison: Path) -> None:
    about = {"sweep": "runs/rates", "identity": "f", "steps": 0.25, "seeds": [101]}
    rates = {"uniform": (0.01, 3.5, False), "hourglass": (0.08, 3.25, True)}
    variants = [
        {"name": name, "chosen": {"optimizer.lr": rate}, "val_loss": loss, "is_at_limit": is_at_limit}
        for name, (rate, loss, is_at_limit) in rates.items()
    ]
    tuning = Tuning.model_validate({**about, "variants": variants})
    assert tuning_table(tuning).rows == [
        ["uniform", "optimizer.lr 0.01", "3.5000", MISSING],
        ["hourglass", "optimizer.lr 0.08", "3.2500", "yes"],
    ]
    assert tuning_table(tuning).caption.endswith("by runs/rates: 25% of the steps, 1 seed (101)")
    beyond = "hourglass was best at an end of the grid: a better value may be outside it."
    assert beyond in answer(Outcome.read(comparison).with_changes(tuning=tuning))


def difference_figure_of(comparison: Path, differences: dict[str, tuple[float, float, str]]) -> Figure:
    """The figure of variants with these differences, half widths of their intervals, and verdicts."""
    outcome = Outcome.read(comparison)
    baseline, variant, *_ = outcome.variants
    points = [baseline]
    for name, (mean, half_width, verdict) in differences.items():
        difference = Estimate(**estimate(mean, half_width, 3))
        points.append(variant.with_changes(name=name, difference=difference, verdict=verdict))
    return difference_figure(outcome.with_changes(points=points, seeds=[1, 2, 3]))


def test_differences_are_sorted_and_coloured_by_the_verdict(comparison: Path) -> None:
    differences = {"worse": (0.05, 0.01, "worse"), "better": (-0.03, 0.01, "better"), "open": (0, 0.01, "cannot tell")}
    figure = difference_figure_of(comparison, differences)
    rows = {row["name"]: row for row in drawn(figure.spec()) if "numbers" in row}
    colours = {"better": colour("good"), "open": MUTED, "worse": colour("bad")}
    assert [(name, row["colour"]) for name, row in rows.items()] == list(colours.items())
    assert rows["better"]["numbers"] == f"{MINUS}0.030\n[{MINUS}0.040, {MINUS}0.020]"


def test_an_interval_longer_than_the_axis_ends_in_an_arrow(comparison: Path) -> None:
    """The axis fits the means: one wide interval does not shrink the others."""
    differences = {"narrow": (-0.01, 0.004, "better"), "wide": (0.02, 0.5, "cannot tell")}
    figure = difference_figure_of(comparison, differences)
    spec = figure.spec()
    arrows = {row["shape"]: row for row in drawn(spec) if "shape" in row}
    assert {row["name"] for row in arrows.values()} == {"wide"}
    scales = [layer["encoding"]["x"].get("scale", {}) for layer in spec["layer"] if "x" in layer["encoding"]]
    (scale,) = [scale for scale in scales if "domain" in scale]
    assert scale["nice"] is False  # the axis ends at the arrows
    low, high = scale["domain"]
    assert -0.1 < low < -0.014
    assert 0.02 < high < 0.1
    assert low < arrows["triangle-left"]["end"] < low + 0.02 * (high - low)
    assert high - 0.02 * (high - low) < arrows["triangle-right"]["end"] < high


def test_differences_of_two_seeds_have_no_intervals(comparison: Path) -> None:
    spec = difference_figure(Outcome.read(comparison)).spec()
    assert "too few seeds for intervals" in str(spec)
    assert {row["seed"] for row in drawn(spec) if "seed" in row} == {1, 2}
    assert not [layer for layer in spec["layer"] if layer["mark"]["type"] == "rule" and "x2" in layer["encoding"]]


def test_the_axis_has_room_for_the_ticks_of_all_seeds(comparison: Path) -> None:
    outcome = Outcome.read(comparison)
    baseline, variant, *_ = outcome.variants
    difference = Estimate(mean=0.072, low=None, high=None, per_seed=[0.061, 0.083])
    points = [baseline, variant.with_changes(difference=difference)]
    spec = difference_figure(outcome.with_changes(points=points)).spec()
    scales = [layer["encoding"].get("x", {}).get("scale", {}) for layer in spec["layer"]]
    [(low, high)] = [scale["domain"] for scale in scales if "domain" in scale]
    assert low < 0 < 0.083 < high


SHAPES = {  # name -> n_blocks, n_layers, d_model, d_hidden, difference to the baseline
    "a": (2, 6, 96, 40, -0.011),
    "b": (2, 6, 80, 60, -0.017),
    "c": (4, 6, 88, 30, -0.023),
    "d": (4, 3, 120, 48, 0.031),
    "e": (4, 3, 128, 40, -0.002),
}


def cost_of(base: dict[str, Any], name: str) -> dict[str, Any]:
    n_blocks, n_layers, d_model, d_hidden, _ = SHAPES[name]
    sizes = {"widths": [d_model] * n_layers, "hidden_widths": [[d_hidden] * n_blocks] * n_layers, "d_model": d_model}
    return {**base, **sizes, **{key: [4] * n_layers for key in ("n_heads", "n_kv_heads", "head_dim")}}


def test_a_shared_machine_is_named_without_a_remedy_that_may_be_in_use(tmp_path: Path) -> None:
    """Other programs use the machine also beside one job."""
    change(write_comparison(tmp_path) / "outcome.json", lambda data: data["points"][0].update(shares_machine=True))
    badges = experiment_page(tmp_path, Outcome.read(tmp_path)).badges
    assert "other processes used the machine: speeds not comparable" in badges


def test_a_search_has_the_curves_of_the_paper_with_the_baseline(tmp_path: Path) -> None:
    def searched(data: dict[str, Any]) -> None:
        base, other, _ = data["points"]
        data["points"] = [base]
        for name, (*_, difference) in SHAPES.items():
            losses = {"val_loss": estimate(3.05 + difference, 0.02), "difference": estimate(difference, 0.004)}
            data["points"].append({**other, "name": name, **losses, "cost": cost_of(base["cost"], name)})

    change(write_comparison(tmp_path) / "outcome.json", searched)
    (tmp_path / "search.json").write_text("{}")
    figures = {figure.key: figure for figure in experiment_page(tmp_path, Outcome.read(tmp_path)).figures.values()}
    ratios = {name: float(f"{d_hidden / d_model:.6g}") for name, (_, _, d_model, d_hidden, _) in SHAPES.items()}
    aspects = {name: float(f"{d_model / n_layers:.6g}") for name, (_, n_layers, d_model, *_) in SHAPES.items()}
    for key, places, joined, axis, x in (
        ("shape-ratio", ratios, {"K = 2": "ab", "K = 4": "ecd"}, "d_hidden / d_model", "0.341"),
        ("shape-aspect", aspects, {"K = 2": "b", "K = 4": "ce"}, "d_model / n_layers", "14.67"),
    ):
        points = {(series, places[name]): 3.05 + SHAPES[name][-1] for series, names in joined.items() for name in names}
        on_lines = [row for row in drawn(figures[key].spec()) if row.get("line") is not None]
        assert {(row["name"], row["x"]): row["y"] for row in on_lines} == pytest.approx(points, abs=1e-4)
        label = figures[key].label
        assert label.startswith(f"Held-out loss over {axis}, a marker for each of 5 points.")
        assert f"The lowest is 3.0270 at {x}, of c, K = 4. The dashed line is uniform at 3.0500." in label
