import json
import re
from pathlib import Path
from typing import Literal

import pytest
from fake_comparison import add_to_result, write_run

from widthwise.config_io import UserError
from widthwise.reports.page.formats import MISSING
from widthwise.reports.run.report import write_run_report, write_runs_report
from widthwise.reports.writing import write_report


def titles(page: Path) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", page.read_text())


def test_a_finished_run_shows_curves_widths_costs_and_recipe(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "x", 3, [97, 63, 97], 0.0)
    page = write_run_report(tmp_path / "r")
    assert page == tmp_path / "r/report.html"
    assert titles(page) == [
        "Held-out loss",
        "Training loss",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
        "x",
    ]
    assert "layers: [97, 63, 97]" in page.read_text()


def test_notes_of_a_result_are_shown_with_the_name_of_their_run_beside_others(tmp_path: Path) -> None:
    for name, notes in {"a": ["2 steps <skipped>"], "b": []}.items():
        write_run(tmp_path / name, name, 1, [63], 0.0)
        file = tmp_path / name / "result.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"notes": notes}))
    assert "<li>2 steps &lt;skipped&gt;</li>" in write_run_report(tmp_path / "a").read_text()
    assert "<li>a: 2 steps" in write_runs_report([tmp_path / "a", tmp_path / "b"], tmp_path).read_text()
    assert 'class="notes"' not in write_run_report(tmp_path / "b").read_text()


def test_norms_of_layers_have_a_figure_each_with_a_curve_for_some_layers(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "x", 3, [63] * 24, 0.0)
    norms = {key: [2.5] * 23 + [None] for key in ("grad_norms", "weight_norms", "update_norms", "output_rms")}
    with (tmp_path / "r/metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "event": "norms", **norms}) + "\n" for step in (2, 4))
    (page,) = [write_run_report(tmp_path / "r")]
    assert [title for title in titles(page) if "layers" in title] == [
        "Gradient norm of layers",
        "Weight norm of layers",
        "Update norm of layers",
        "Output of layers, root mean square",
    ]
    assert "layer 1 2.50; layer 3 2.50; layer 6" in page.read_text()
    write_run(tmp_path / "plain", "x", 3, [63], 0.0)
    assert "Norms of layers" not in write_run_report(tmp_path / "plain").read_text()


def test_nested_items_of_the_environment_get_a_row_each(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "x", 3, [63], 0.0)
    (tmp_path / "r/environment.json").write_text('{"data": {"tokenizer": {"id": "abc"}, "n": 2}}')
    text = write_run_report(tmp_path / "r").read_text()
    assert '<th scope="row">data.tokenizer.id</th><td>abc</td>' in text
    assert '<th scope="row">data.n</th><td>2</td>' in text


def test_heads_for_later_tokens_have_a_row_for_each_run_that_has_them(tmp_path: Path) -> None:
    for name, losses in {"none": None, "one": [3.21], "two": [3.3, 4.56]}.items():
        write_run(tmp_path / name, name, 1, [63], 0.0)
        if losses:
            add_to_result(tmp_path / name, val_mtp_losses=losses)
    text = write_runs_report([tmp_path / name for name in ("none", "one", "two")], tmp_path).read_text()
    rows = re.findall(r'<th scope="row">(\w+)</th><td>([\d.]+)</td><td>([^<]+)</td></tr>', text)
    assert rows == [("one", "3.2100", MISSING), ("two", "3.3000", "4.5600")]
    assert "after the next" not in write_run_report(tmp_path / "none").read_text()


def test_sources_of_a_mixture_have_a_column_each(tmp_path: Path) -> None:
    for name, losses in {"none": None, "two": {"b": 3.21, "a": 4.5}, "one": {"b": 3.3}}.items():
        write_run(tmp_path / name, name, 1, [63], 0.0)
        if losses:
            add_to_result(tmp_path / name, val_losses=losses)
    text = write_runs_report([tmp_path / name for name in ("none", "two", "one")], tmp_path).read_text()
    rows = re.findall(r'<th scope="row">(\w+)</th><td>([^<]+)</td><td>([\d.]+)</td></tr>', text)
    assert rows == [("two", "4.5000", "3.2100"), ("one", MISSING, "3.3000")]
    assert "by source" not in write_run_report(tmp_path / "none").read_text()


def test_an_unfinished_run_shows_what_is_there(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "x", 3, [97, 63], 0.0, finished=False)
    text = write_run_report(tmp_path / "r").read_text()
    assert "unfinished" in text
    assert 'id="widths"' not in text


def test_a_run_that_has_just_begun_makes_a_page_without_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "x", 3, [97], 0.0, finished=False)
    (tmp_path / "r/metrics.jsonl").unlink()
    assert titles(write_run_report(tmp_path / "r")) == []


def test_several_runs_share_one_page_and_keep_their_names_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for seed, path in enumerate(paths):
        write_run(path, "x" if seed < 2 else "<b>", seed, [64, 63], 0.1 * seed)
    page = write_runs_report(paths, tmp_path / "out")
    text = page.read_text()
    assert page == tmp_path / "out/report.html"
    assert f"x ({paths[0]})" in text
    assert f"x ({paths[1]})" in text
    assert "<b>" not in text


def test_write_report_chooses_by_what_the_folders_hold(comparison: Path, tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for run in runs:
        write_run(run, run.name, 1, [64], 0.0)
    names = [path.name for path in write_report([comparison], tmp_path / "comparison")]
    assert names == ["report.html", "table.csv", "table.tex"]
    assert write_report(runs[:1]) == [runs[0] / "report.html"]
    assert write_report(runs, tmp_path / "both") == [tmp_path / "both/report.html"]


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_each_figure_of_a_page_can_be_a_file(tmp_path: Path, kind: Literal["svg", "pdf"]) -> None:
    write_run(tmp_path / "a", "a", 1, [64, 48], 0.0, n_records=20)
    page, *figures = write_report([tmp_path / "a"], tmp_path / "out", figures=kind)
    assert page == tmp_path / "out/report.html"
    assert len(figures) == len(titles(page))
    assert tmp_path / f"out/figures/validation-loss.{kind}" in figures
    start = {"svg": b"<?xml", "pdf": b"%PDF"}[kind]
    assert all(path.read_bytes().startswith(start) for path in figures)


def test_the_command_that_began_a_run_stands_on_its_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 1, [64], 0.0, n_records=20)
    (tmp_path / "a/environment.json").write_text('{"command": "widthwise train <a>.yaml"}')
    assert "<code>widthwise train &lt;a&gt;.yaml</code></pre>" in write_run_report(tmp_path / "a").read_text()


def test_write_report_refuses_what_it_cannot_describe(comparison: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 1, [64], 0.0)
    with pytest.raises(UserError, match="is not a run directory"):
        write_report([tmp_path / "nothing"])
    with pytest.raises(UserError, match="give that one alone"):
        write_report([comparison, tmp_path / "a"])
    with pytest.raises(UserError, match="--out"):
        write_report([tmp_path / "a", tmp_path / "a"])
    with pytest.raises(UserError, match="named twice"):
        write_report([tmp_path / "a", tmp_path / "a"], tmp_path)
    (tmp_path / "a/result.json").write_text("{")
    with pytest.raises(UserError, match=r"result\.json: is not valid JSON"):
        write_report([tmp_path / "a"])


def test_each_further_head_has_a_figure_of_the_runs_that_have_it(tmp_path: Path) -> None:
    write_run(tmp_path / "plain", "plain", 1, [63], 0.0, n_records=12)
    write_run(tmp_path / "two", "two", 1, [63], 0.0, n_records=12)
    file = tmp_path / "two/metrics.jsonl"
    records = [json.loads(line) | {"mtp_losses": [3.5, 4.25]} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = write_runs_report([tmp_path / "plain", tmp_path / "two"], tmp_path)
    heads = [title for title in titles(page) if "after the next" in title]
    assert heads == ["Held-out loss, 1 after the next", "Held-out loss, 2 after the next"]
    assert "held-out loss, 2 after the next over step. Last mean value of each line: two 4.25." in page.read_text()


def test_texts_and_tasks_that_runs_were_validated_on_have_curves_and_tables(tmp_path: Path) -> None:
    score = {"value": 0.25, "stderr": 0.125}
    for name, loss in {"a": 3.0, "b": 2.5}.items():
        write_run(tmp_path / name, name, 1, [63], 0.0)
        file = tmp_path / name / "result.json"
        texts = {"wiki_1": {"loss": loss, "perplexity": 20.0, "bits_per_byte": 1.5, "window_losses": [loss]}}
        tasks = {"piqa": {"n_items": 4, "chance": 0.5, "metrics": {"acc": score}}}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"val_texts": texts, "val_tasks": tasks}))
        with (tmp_path / name / "metrics.jsonl").open("a") as file:
            for step in (1001, 1002):
                record = {"step": step, "event": "validation", "loss": 4.0, "val_texts": {"wiki_1": {"loss": loss}}}
                file.write(json.dumps(record | {"val_tasks": {"piqa": {"acc": 0.25, "bits_per_byte": None}}}) + "\n")
    text = write_runs_report([tmp_path / "a", tmp_path / "b"], tmp_path).read_text()
    assert "loss on wiki_1 over step. Last mean value of each line: a 3; b 2.50." in text
    assert "accuracy on piqa over step. Last mean value of each line: a 0.25; b 0.25." in text
    assert "Bits per byte of the answers" not in text
    assert '<th scope="row">b</th><td class="left">wiki_1</td><td>2.5000</td><td>20.00</td><td>1.5000</td>' in text
    assert '<th scope="row">a</th><td class="left">piqa</td><td>4</td><td>0.500</td><td>0.2500 (0.1250)</td>' in text
    write_run(tmp_path / "plain", "x", 3, [63], 0.0)
    assert "further texts" not in write_run_report(tmp_path / "plain").read_text()
