"""Several searches as one: the mean profile, its interval, how alike they are, and the recipe that has it."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import yaml
from boxes import refusal
from fake_discovery import write_search, write_searches
from page_section import rows_of, section
from scipy import stats
from tiny_runs import TINY

from widthwise.experiments.consensus import consensus
from widthwise.experiments.matching import matched_quantity
from widthwise.recipe.recipe import load_recipe
from widthwise.records.discovery import Consensus, Discovery
from widthwise.reports.consensus import read_searches, sentences
from widthwise.reports.formats import fixed
from widthwise.reports.writing import write_report

N_SEARCHES, N_LAYERS = 5, 4


def drawn_curves(n_layers: int = N_LAYERS) -> list[dict[str, list[float]]]:
    random = np.random.default_rng(7)
    names = ("widths", "attention", "hidden")
    return [{name: random.uniform(0.3, 2, n_layers).tolist() for name in names} for _ in range(N_SEARCHES)]


def found(folder: Path, *curves: dict[str, list[float]], titles: str = "aaaaaaaa") -> Consensus:
    folders = [write_search(folder / str(i), curve, titles[i]) for i, curve in enumerate(curves)]
    return consensus({str(each): Discovery.read(each) for each in folders}, titles[: len(folders)])


def profiles_of(curves: list[dict[str, list[float]]]) -> dict[str, np.ndarray]:
    """By formula: sizes of layers over their mean, (n_searches, n_layers); attention and hidden are per width."""
    widths = np.array([curve["widths"] for curve in curves])
    sizes = {"width": widths}
    sizes |= {name: widths * [curve[name] for curve in curves] for name in ("attention", "hidden")}
    return {name: own / own.mean(axis=1, keepdims=True) for name, own in sizes.items()}


def test_means_and_intervals_are_students_t_over_searches_of_sizes_over_their_mean(tmp_path: Path) -> None:
    curves = drawn_curves()
    record = found(tmp_path, *curves)
    for size, own in profiles_of(curves).items():
        ends = stats.t.interval(0.95, N_SEARCHES - 1, own.mean(axis=0), stats.sem(own, axis=0))
        layers = record.profiles[size]
        assert [each.mean for each in layers] == pytest.approx(own.mean(axis=0))
        assert [each.low for each in layers] == pytest.approx(ends[0])
        assert [each.high for each in layers] == pytest.approx(ends[1])
        assert np.allclose([each.per_seed for each in layers], own.T)


def test_correlations_are_means_over_pairs_of_one_text_and_of_two(tmp_path: Path) -> None:
    curves, texts = drawn_curves(), "aabab"
    record = found(tmp_path, *curves, titles=texts)
    for size, own in profiles_of(curves).items():
        pairs: dict[str, list[float]] = {"same text": [], "different texts": []}
        for one, other in itertools.combinations(range(N_SEARCHES), 2):
            kind = "same text" if texts[one] == texts[other] else "different texts"
            pairs[kind].append(stats.pearsonr(own[one], own[other]).statistic)
        assert record.correlations[size] == pytest.approx({kind: np.mean(each) for kind, each in pairs.items()})


def test_a_text_is_known_by_its_checksum_whatever_it_is_called(tmp_path: Path) -> None:
    folders = []
    for i, (name, fingerprint) in enumerate((("books", "1"), ("novels", "1"), ("books", "2"))):
        corpus = {"name": name, "fingerprint": fingerprint}
        data = {"corpus": corpus, "files": {}, "tokenizer": {"spec": "bytes", "id": "i"}}
        folders.append(write_search(tmp_path / str(i), drawn_curves()[i], environment={"data": data}))
    one, other, another = read_searches(folders)
    assert one.text == other.text != another.text
    assert [each.text_name for each in (one, other)] == ["books, bytes", "novels, bytes"]


def test_an_even_profile_correlates_with_none(tmp_path: Path) -> None:
    even = {"widths": [0.7] * 3, "attention": [1.3] * 3, "hidden": [0.9] * 3}
    uneven = {"widths": [0.5, 1.0, 0.7], "attention": [1.0] * 3, "hidden": [2.0, 1.0, 1.0]}
    record = found(tmp_path, even, uneven, even)
    assert set(map(len, record.correlations.values())) == {0}
    assert all(each.mean == each.low == each.high == 1 for each in found(tmp_path, even, even, even).profiles["width"])


def test_the_mean_of_searches_that_found_the_same_is_what_they_found(tmp_path: Path) -> None:
    curve = drawn_curves()[0]
    mean = found(tmp_path, curve, curve, curve).curve
    assert np.divide(mean.widths, curve["widths"]) == pytest.approx([1 / np.mean(curve["widths"])] * N_LAYERS)
    assert mean.attention == pytest.approx(curve["attention"])
    assert mean.hidden == pytest.approx(curve["hidden"])


def test_profiles_of_fewer_layers_are_stretched_on_straight_lines(tmp_path: Path) -> None:
    short = {"widths": [1.0, 0.4, 0.7], "attention": [0.5, 2.0, 1.0], "hidden": [2.0, 1.0, 0.5]}
    record = found(tmp_path, short, *drawn_curves(5))
    for size, points in (("width", short["widths"]), ("hidden", np.multiply(short["widths"], short["hidden"]))):
        sizes = np.interp([0, 0.25, 0.5, 0.75, 1], [0, 0.5, 1], points)
        assert [each.per_seed[0] for each in record.profiles[size]] == pytest.approx(sizes / sizes.mean())


def test_words_say_where_the_whole_interval_lies_above_or_below_the_mean(tmp_path: Path) -> None:
    """The first layer is always twice as wide, the last two change places, and heads are alike everywhere."""
    curves = [
        {"widths": [2.0, 1.0, *last], "attention": [0.5, 1.0, *(1 / each for each in last)], "hidden": [1.0] * 4}
        for last in ((0.9, 1.4), (1.4, 0.9), (0.9, 1.4), (1.4, 0.9))
    ]
    width, attention, _ = sentences(found(tmp_path, *curves))
    assert width.startswith("Width in the stream: above the mean in layer 1; below the mean in layer 2; ")
    assert "noise in layers 3 and 4. Two searches correlate by " in width
    assert attention == "Width of attention: noise in layers 1, 2, 3 and 4."


def recipe_data(**shape: object) -> dict[str, object]:
    attention, ffn = {"head_dim": 4}, {"kind": "swiglu", "ratio": 3}
    model = {"vocab_size": 257, "d_model": 48, "n_layers": 4, "attention": attention, "ffn": ffn, **shape}
    return {**TINY, "model": model, "train": {"steps": 2, "batch_size": 2}}


def test_the_mean_is_written_as_a_recipe_that_meets_the_budget_at_any_depth_and_width(tmp_path: Path) -> None:
    folders, out = [write_search(tmp_path / str(i), curve) for i, curve in enumerate(drawn_curves())], tmp_path / "out"
    uniform, found = tmp_path / "uniform.yaml", recipe_data(shape={"kind": "curve", "widths": [9.0, 1.0]})
    uniform.write_text(yaml.safe_dump(recipe_data()))
    (folders[1] / "discovered.yaml").write_text(yaml.safe_dump(found))
    assert out / "discovered.yaml" in write_report(folders, out)
    widths = tuple(round(each, 4) for each in Consensus.read(out).curve.widths)
    for changes in ([], ["model.n_layers=7", "model.d_model=80"]):
        mean, budget = (load_recipe(path, changes) for path in (out / "discovered.yaml", uniform))
        assert mean.model.shape.widths == widths
        assert matched_quantity(mean, "params") == pytest.approx(matched_quantity(budget, "params"), rel=0.01)


def test_the_page_shows_every_layer_and_every_search(tmp_path: Path) -> None:
    page, _ = write_report(write_searches(tmp_path), tmp_path / "out")
    record = Consensus.read(tmp_path / "out")
    rows = rows_of(section(page, "the-mean-profile"))
    assert list(rows) == ["1", "2", "3"]
    for layer, cells in enumerate(rows.values()):
        for cell, own in zip(cells, record.profiles.values(), strict=True):
            assert cell.startswith(fixed(own[layer].mean, 3))
    assert [cells[0] for cells in rows_of(section(page, "the-searches")).values()] == ["python"] * 2 + ["books"] * 2


def test_the_page_is_regenerated_from_its_folder(tmp_path: Path) -> None:
    folders, out = write_searches(tmp_path), tmp_path / "out"
    before = {path.name: path.read_bytes() for path in write_report(folders, out)}
    record = Consensus.read(out)
    assert record.searches == [f"../{folder.name}" for folder in folders]
    assert record.command == f"widthwise report {' '.join(record.searches)} --out ."
    for again in (write_report(out), write_report(out, tmp_path / "elsewhere")):
        assert {path.name: path.read_bytes() for path in again} == before


def test_searches_go_with_searches_in_one_quantity_and_each_counts_once(tmp_path: Path) -> None:
    one, other, *_ = write_searches(tmp_path)
    in_flops = write_search(tmp_path / "flops", drawn_curves()[0], match="flops")
    for paths, message in (
        ([one, other], "report: got 2 searches; their mean takes at least 3"),
        ([one, other, in_flops], f"{in_flops}: was matched in flops, {one} in params; a mean takes one quantity"),
        ([one, other, one.parent / "." / one.name], f"{one}: is named twice; a mean has every search once"),
    ):
        assert message in refusal(write_report, paths, tmp_path / "out")
