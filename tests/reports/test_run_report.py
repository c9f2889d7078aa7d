"""Pages of runs: curves, tables, files, and what cannot be described."""

import re
from pathlib import Path
from typing import Any

from boxes import refusal
from fake_comparison import add_records, add_to_result, token_widths, write_run
from page_section import captions, page_of, rows_of, section

from widthwise.reports.formats import MISSING
from widthwise.reports.writing import write_report


def test_a_finished_run_shows_curves_widths_costs_and_recipe_and_nothing_that_it_lacks(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "x", 3, [97, 63, 97], 0.0)
    text = page_of(tmp_path / "r")
    curves = ["Held-out loss", "Training loss", "Learning rate", "Gradient norm", "Tokens per second"]
    assert captions(text) == [*curves, "x, d_model 97"]
    assert "layers: [97, 63, 97]" in text
    assert not re.findall("Norms of layers|further texts|unfinished", text)


def test_what_only_some_runs_record_has_figures_and_rows(tmp_path: Path) -> None:
    """Norms of layers, heads for later tokens, further texts and tasks, and widths of tokens."""
    n_layers = 24
    for name, losses in {"none": None, "one": [3.21], "two": [3.3, 4.56]}.items():
        write_run(run := tmp_path / name, name, 1, [63] * n_layers, 0.0)
        if losses:
            add_to_result(run, val_mtp_losses=losses)
    text = {"loss": 2.5, "perplexity": 20.0, "bits_per_byte": 1.5, "window_losses": [2.5]}
    task = {"n_items": 4, "chance": 0.5, "metrics": {"acc": {"value": 0.25, "stderr": 0.125}}}
    add_to_result(run, val_texts={"wiki_1": text}, val_tasks={"piqa": task}, token_widths=token_widths(3))
    norms = dict.fromkeys(("grad_norms", "weight_norms", "update_norms", "output_rms"), [2.5] * (n_layers - 1) + [None])
    validated = {
        "loss": 4.0,
        "mtp_losses": [3.5, None],
        "val_texts": {"wiki_1": {"loss": 2.5}},
        "val_tasks": {"piqa": {"acc": 0.25}},
    }
    for step in (1001, 1002):
        add_records(run, {"step": step, "event": "norms", **norms}, {"step": step, "event": "validation", **validated})
    text = page_of([tmp_path / name for name in ("none", "one", "two")], tmp_path)
    assert len([title for title in captions(text) if "two: " in title]) == 4
    assert "layer 1 2.50; layer 3 2.50; layer 6" in text
    results = [row[-2:] for row in rows_of(text, "Results").values()]
    assert results == [[MISSING, MISSING], ["3.2100", MISSING], ["3.3000", "4.5600"]]
    assert "held-out loss, 1 after the next over step. Last mean value of each line: two 3.50." in text
    assert "held-out loss, 2 after" not in text
    assert "loss on wiki_1 over step. Last mean value of each line: two 2.50." in text
    assert "accuracy on piqa over step. Last mean value of each line: two 0.25." in text
    rows = rows_of(text, "Texts and tasks at the end of training")
    assert "4 items, chance 50.0%" in map(str.strip, rows)
    assert rows["wiki_1"] == ["loss", MISSING, MISSING, "2.5000"]
    assert rows["piqa"] == ["acc", MISSING, MISSING, '25.00%<small class="whole">± 12.50%</small>']
    shown = section(text, "dynamic-width")
    assert "layer 1 0.25, layer 2 0.50, layer 3 0.75" in shown
    assert rows_of(shown)["feed-forward FLOPs per token, asked"] == ["1.80M (0.600)"]
    assert rows_of(shown)["frequency decile 10"] == ["0.6800"]


def test_several_runs_share_one_page_and_keep_their_names_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for seed, path in enumerate(paths):
        write_run(path, "x" if seed < 2 else "<b>", seed, [64, 63], 0.1 * seed)
    text = page_of(paths, tmp_path / "out")
    assert all(f"x ({path})" in text for path in paths[:2])
    assert "<b>" not in text


def test_each_figure_of_a_page_can_be_a_file(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 1, [64, 48], 0.0, n_records=20)
    page, *figures = write_report([tmp_path / "a"], tmp_path / "out", figures="pdf")
    assert page == tmp_path / "out/report.html"
    assert len(figures) == len(captions(page.read_text()))
    names = [path.stem for path in figures]
    assert names[0] == "main"
    assert {"curves-learning-rate", "width-of-every-layer-a-d_model-64"} <= {*names}
    assert all(path.read_bytes().startswith(b"%PDF") for path in figures)


def test_write_report_refuses_what_it_cannot_describe(tmp_path: Path) -> None:
    write_run(run := tmp_path / "a", "a", 1, [64], 0.0)
    assert "is not a run directory" in refusal(write_report, tmp_path / "nothing")
    assert "--out" in refusal(write_report, [run, run])
    assert "passed twice" in refusal(write_report, [run, run], tmp_path)
    (run / "result.json").write_text("{")
    assert "result.json: is not valid JSON" in refusal(write_report, run)


def virtual_width(n_layers: int) -> dict[str, Any]:
    """Every site reads the embedding with weight 3 and each sublayer before it with weight 1."""
    sites = [
        {
            "name": f"layers.{index // 2}.{('attention', 'ffn')[index % 2]}",
            "reach": [3.0] + [1.0] * index,
            "reach_sd": [0.5] * (index + 1),
            "mean_distance": (2 * (index + 1) / 2 + sum(range(index + 2)) / 2) / (index + 3),
            "plain_distance": (index + 2) / 4,
            **{key: [[1.0]] for key in ("read", "carry", "write")},
            "sd": {"read": [0.0, 0.125, 0.0], "carry": [0.25, 0.0, 0.0], "write": [0.0, 0.0, 0.0]},
            "window_share": 0.875,
            "gate_distance": 0.0625,
            "identity_distance": 0.3125,
            "carry_entropy": None,
            "spectrum": {"radius": 0.5, "norm": 0.75, "product_radius": 0.5**index, "product_norm": 0.625},
        }
        for index in range(2 * n_layers)
    ]
    return {"n_tokens": 4096, "n_slots": 3, "slot_width": 24, "dynamic": True, "sites": sites}


def test_a_run_shows_weights_distances_and_carries(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "over-wide", 1, [64, 64, 64], 0.0)
    add_to_result(tmp_path / "r", virtual_width=virtual_width(3))
    text = section(page_of(tmp_path / "r"), "virtual-width")
    assert len(captions(text)) == 4
    # The last of six rows has six weights, 3 + 5 * 1 in all.
    assert f"embedding with {3 / (8 / 6):.2f} and the sublayer before it with {1 / (8 / 6):.2f}" in text
    assert rows_of(text)["layers.2.ffn"] == [
        *("2.062", "1.750", "0.875", "0.062", "0.312", MISSING),
        *("0.500", "0.750", "0.031", "0.625", "0.250"),
    ]
    quantities = rows_of(text, "Use of the stream")
    n_weights = sum(range(1, 7))
    deviation = 0.5 * n_weights / (n_weights + 2 * 6)
    assert quantities["standard deviation of a weight between tokens / its mean"] == [f"{deviation:.3f}"]
    assert quantities["spectral radius of the product of all carries"] == ["0.031"]
