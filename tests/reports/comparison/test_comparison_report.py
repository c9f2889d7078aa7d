import base64
import csv
import hashlib
import html.parser
import io
import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import write_comparison

from widthwise.config_io import UserError
from widthwise.records.comparison import Comparison
from widthwise.reports.comparison.export import csv_text, latex_text
from widthwise.reports.comparison.main_table import cells
from widthwise.reports.comparison.report import write_comparison_report
from widthwise.reports.page import plots
from widthwise.reports.page.svg import styles

HOSTILE = (
    "<script>alert(1)</script>",
    r"x_{\input{/etc/passwd}} $\frac$",
    "\"'><img src=x onerror=alert(1)>\x1b[31m\n_y",
)


class Outline(html.parser.HTMLParser):
    """Tags, ids, headings and text of a page; void and self-closing tags left out of the nesting."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(folder: Path) -> str:
    return write_comparison_report(folder)["html"].read_text(encoding="utf-8")


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads((folder / "comparison.json").read_text())
    edit(data)
    (folder / "comparison.json").write_text(json.dumps(data))
    return folder


def test_same_input_gives_same_bytes(comparison: Path, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_comparison_report(comparison, tmp_path / "1").values()]
    second = [path.read_bytes() for path in write_comparison_report(comparison, tmp_path / "2").values()]
    assert first == second


def test_page_answers_and_shows_every_variant(comparison: Path) -> None:
    page = page_of(comparison)
    text = " ".join(" ".join(Outline(page).text).split())
    data = json.loads((comparison / "comparison.json").read_text())
    assert data["sentence"] in text
    assert data["command"] in text
    for variant in data["variants"]:
        assert f"{variant['val_loss']['mean']:.4f}" in text
        assert all(run in text for run in variant["runs"])
    for word in ("better", "cannot tell", "baseline", "95% interval"):
        assert word in text


@pytest.mark.parametrize(("factor", "words"), [(1.009, "parameters?"), (1.034, "parameters, within 3.4%?")])
def test_the_question_says_how_far_from_equal_the_variants_are(factor: float, words: str, tmp_path: Path) -> None:
    """A search may be asked for shapes that match less closely than the one percent of other comparisons."""
    write_comparison(tmp_path)
    data = json.loads((tmp_path / "comparison.json").read_text())
    for variant in data["variants"]:
        variant["cost"]["params"]["total"], variant["ratio"]["params"] = 1_000_000, 1.0
    data["variants"][1]["ratio"]["params"] = factor
    (tmp_path / "comparison.json").write_text(json.dumps(data))
    page = write_comparison_report(tmp_path)["html"].read_text(encoding="utf-8")
    assert f"reach a lower held-out loss than uniform at equal {words}" in page


def test_every_figure_is_an_image_with_a_text_alternative(comparison: Path) -> None:
    outline = Outline(page_of(comparison))
    plots = [attributes for attributes in outline.all("svg") if attributes.get("class") == "plot"]
    assert len(plots) == 3 + 1 + 4 + 2  # width profiles, differences, curves, costs
    assert len(outline.all("figure")) == len(plots)
    assert all(plot["role"] == "img" and len(plot["aria-label"] or "") > 40 for plot in plots)


def test_page_is_well_formed_and_accessible(comparison: Path) -> None:
    outline = Outline(page_of(comparison))
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] or "" for attributes in outline.all("a")]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(outline.all("caption")) == len(outline.all("table"))
    assert all(attributes.get("scope") in ("row", "col") for attributes in outline.all("th"))
    assert all(len(outline.all(landmark)) == 1 for landmark in ("header", "nav", "main", "footer"))


def test_page_refers_to_nothing_outside_itself(comparison: Path) -> None:
    page = page_of(comparison)
    outline = Outline(page)
    assert not re.search(r"https?://|@import|<script\s|url\((?!#)", page)
    assert not [attributes for _, attributes in outline.tags if "src" in attributes]
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'" in page


def test_hostile_names_are_shown_and_never_interpreted(tmp_path: Path) -> None:
    folder = change(
        write_comparison(tmp_path, HOSTILE),
        lambda data: data.update(title="</title><script>alert(2)</script>", command="a && b <b>", sentence="<i>&amp;"),
    )
    for run in folder.glob("runs/*"):
        (run / "config.yaml").write_text("name: '</code></pre><script>alert(3)</script>'\n")
    page = page_of(folder)
    outline = Outline(page)
    assert outline.open == []
    tags = [tag for tag, _ in outline.tags]
    assert not {"img", "i", "b"} & set(tags)
    assert tags.count("script") == 1
    assert not [key for _, attributes in outline.tags for key in attributes if key.startswith("on")]
    assert "\x1b" not in page
    text = "".join(outline.text)
    assert "<script>alert(1)</script>" in text
    assert r"x_{\input{/etc/passwd}} $\frac$" in text
    assert "</code></pre><script>alert(3)</script>" in text
    assert "<i>&amp;" in text


def test_numbers_that_are_missing_are_left_open(tmp_path: Path) -> None:
    def forget(data: dict[str, Any]) -> None:
        for variant in data["variants"]:
            variant.update(val_bits_per_byte=None, tokens_per_second=None, ratio={"params": math.nan, "flops": None})
            variant["val_loss"].update(low=None, high=None)
            variant["cost"].update(n_heads=[], hidden_widths=[[]] * len(variant["cost"]["widths"]))
        data["variants"][1]["difference"].update(low=None, high=None, per_seed=[None])
        data["variants"][2]["difference"] = None

    folder = change(write_comparison(tmp_path), forget)
    for run in folder.glob("runs/*"):
        (run / "metrics.jsonl").write_text("")
        (run / "result.json").unlink()
    outline = Outline(page_of(folder))
    assert "Loss curves" not in outline.text


def test_a_baseline_alone_makes_a_report(tmp_path: Path) -> None:
    folder = change(write_comparison(tmp_path), lambda data: data.update(variants=data["variants"][:1], seeds=[1]))
    assert "Differences to" not in page_of(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.pop("sentence"), r"comparison\.json: sentence: is required but missing"),
        (lambda data: data.update(baseline="nobody"), "baseline: got 'nobody'"),
        (lambda data: data["variants"][1].update(runs=["runs/absent"]), "runs/absent: is not a run directory"),
        (lambda data: data["variants"][1].update(runs=["../x"]), r"'\.\./x'; allowed: a path inside the folder"),
        (lambda data: data["variants"][1]["cost"].update(n_heads=[1]), "n_heads: got 1 entries for 7 layers"),
        (lambda data: data["variants"][1].update(verdict="great"), "verdict"),
        (lambda data: data["variants"][1]["val_loss"].update(mean="low"), r"val_loss\.mean: got 'low'"),
        (lambda data: data["variants"][1].update(name="uniform"), "two have the same name"),
    ],
)
def test_a_broken_comparison_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    folder = change(write_comparison(tmp_path), edit)
    with pytest.raises(UserError, match=message) as error:
        write_comparison_report(folder)
    assert "\n" not in str(error.value)
    assert not (folder / "report.html").exists()


def test_a_metrics_record_without_a_step_is_refused(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    (folder / "runs/variant0-seed1/metrics.jsonl").write_text('{"event": "train"}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 1: has no whole-number 'step'"):
        write_comparison_report(folder)


def test_the_speed_of_a_shared_machine_is_marked_and_not_compared(comparison: Path) -> None:
    data = json.loads((comparison / "comparison.json").read_text())
    data["variants"][1]["shares_machine"] = True
    record = Comparison.model_validate(data)
    _, shared, alone = (cells(variant, record)[-1] for variant in record.variants)
    assert (shared.value, shared.ratio) == ("41.8k*", None)
    assert (alone.value, alone.ratio) == ("42.6k", 1.04)
    data["variants"][0]["shares_machine"] = True
    record = Comparison.model_validate(data)
    assert cells(record.variants[2], record)[-1].ratio is None
    assert {row["tokens_per_second_ratio"] for row in csv.DictReader(io.StringIO(csv_text(record)))} == {""}
    assert r"{*}: other processes used the machine" in latex_text(record)
    label = plots.ratio_figure("ratios", record.variants, styles([v.name for v in record.variants]), "uniform") or ""
    assert "KV bytes" in label
    assert "tokens per second" not in label
    assert "bits per byte" not in label


def test_parts_without_parameters_are_left_out(comparison: Path) -> None:
    record = Comparison.model_validate(json.loads((comparison / "comparison.json").read_text()))
    assert all(variant.cost.params["residual"] == 0 for variant in record.variants)
    assert plots.part_names(record.variants) == ["embedding", "attention", "ffn", "norm", "head"]
