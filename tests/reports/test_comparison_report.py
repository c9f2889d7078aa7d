"""The page of a comparison: whole, accessible, alone, and safe whatever its names are."""

import base64
import hashlib
import html.parser
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import at_equal_loss, estimate, write_comparison
from page_section import change, reported

from widthwise.config_io import UserError
from widthwise.records.outcome import Outcome
from widthwise.reports.answers import answer
from widthwise.run_dir import RunDir

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


@pytest.fixture(scope="module")
def page(comparison_files: dict[str, Path]) -> str:
    return comparison_files["html"].read_text(encoding="utf-8")


def test_same_input_gives_same_bytes(comparison: Path, comparison_files: dict[str, Path], tmp_path: Path) -> None:
    again = reported(comparison, tmp_path)
    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in comparison_files.items()
    }


def test_page_answers_and_shows_every_variant_in_figures_with_a_text_alternative(comparison: Path, page: str) -> None:
    outline = Outline(page)
    text = " ".join(" ".join(outline.text).split())
    data = json.loads((comparison / "outcome.json").read_text())
    for variant in data["points"]:
        assert f"{variant['val_loss']['mean']:.4f}" in text
        assert all(run in text for run in variant["runs"])
    for words in (data["command"], "better", "cannot tell", "baseline", "95% interval"):
        assert words in text
    plots = [attributes for attributes in outline.all("div") if attributes.get("class") == "chart"]
    # Differences and first curve on the first screen, width profiles, curves, costs.
    assert len(plots) == len(outline.all("figure")) == 2 + 3 + 3 + 2
    assert all(plot["role"] == "img" and len(plot["aria-label"] or "") > 40 for plot in plots)


def test_the_first_screen_answers_with_one_number_a_sentence(page: str) -> None:
    """x is better, of hourglass the seeds cannot tell."""
    (answer,) = re.findall(r'<div class="answer".*?</div>', page, re.DOTALL)
    lines = re.findall("<p>(.*?)</p>", answer)
    assert lines == ["x ends below uniform, by 0.0123 nats.", "2 seeds cannot tell hourglass from it."]
    assert page.index('class="answer"') < page.index('id="figure-differences"') < page.index('<section id="results"')


def test_tokens_at_equal_loss_are_in_the_answer_where_they_are_surely_fewer(tmp_path: Path) -> None:
    found = Outcome.read(write_comparison(tmp_path))
    uniform, x, hourglass = found.variants
    for half_width, lines in (
        (0.03, ["x needs 0.812 times the tokens of uniform for the same held-out loss."]),
        (0.3, []),
    ):
        equal = at_equal_loss(tokens_ratio=estimate(0.8125, half_width))
        told = answer(
            found.with_changes(points=[uniform, x.with_changes(at_equal_loss={"val_loss": equal}), hourglass])
        )
        assert [line for line in told if "tokens" in line] == lines


def test_page_is_well_formed_accessible_and_refers_to_nothing_outside_itself(page: str) -> None:
    outline = Outline(page)
    assert outline.open == []
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all((link["href"] or "").removeprefix("#") in ids for link in outline.all("a"))
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h\d", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert len(outline.all("caption")) == len(outline.all("table"))
    assert all(attributes.get("scope") in ("row", "col") for attributes in outline.all("th"))
    assert all(len(outline.all(landmark)) == 1 for landmark in ("header", "nav", "main", "footer"))
    assert not [attributes for _, attributes in outline.tags if "src" in attributes or "@import" in str(attributes)]
    assert not [link for link in outline.all("a") if not (link["href"] or "").startswith("#")]
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
    page = reported(folder)["html"].read_text(encoding="utf-8")
    outline = Outline(page)
    assert outline.open == []
    tags = [tag for tag, _ in outline.tags]
    assert not {"img", "i", "b"} & set(tags)
    types = [script.get("type") for script in outline.all("script")]
    assert types.count(None) == 2
    assert set(types) == {None, "application/json"}
    assert not [key for _, attributes in outline.tags for key in attributes if key.startswith("on")]
    assert "\x1b" not in page
    text = "".join(outline.text)
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
    assert "Loss curves" not in reported(folder)["html"].read_text()


def test_runs_that_were_made_elsewhere_leave_the_tables_of_the_record(comparison: Path, tmp_path: Path) -> None:
    shutil.copy(comparison / "outcome.json", tmp_path)
    text = reported(tmp_path)["html"].read_text()
    assert "3.0377" in text
    assert 'id="figure-differences"' in text
    assert "Loss curves" not in text


def test_the_question_says_how_far_from_equal_the_variants_are(tmp_path: Path) -> None:
    """A search may be asked for shapes that match less closely than the one percent of other comparisons."""

    def matched(data: dict[str, Any], ratio: float) -> None:
        for variant in data["points"]:
            variant["cost"]["params"]["total"], variant["ratio"]["params"] = 1_000_000, 1.0
        data["points"][1]["ratio"]["params"] = ratio

    path = write_comparison(tmp_path) / "outcome.json"
    for ratio, words in ((1.009, "parameters?"), (1.034, "parameters, within 3.4%?")):
        folder = change(path, lambda data, ratio=ratio: matched(data, ratio))
        page = reported(folder)["html"].read_text()
        assert f"reach a lower held-out loss than uniform at equal {words}" in page


def test_a_broken_comparison_is_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    good = (folder / "outcome.json").read_text()
    for message, edit in {
        r"outcome\.json: seeds: is required but missing": lambda data, x: data.pop("seeds"),
        "baseline: got 'nobody'": lambda data, x: data.update(baseline="nobody"),
        r"'\.\./x'; allowed: a path inside the folder": lambda data, x: x.update(runs=["../x"]),
        "n_heads: got 1 entries for 7 layers": lambda data, x: x["cost"].update(n_heads=[1]),
        "verdict": lambda data, x: x.update(verdict="great"),
        r"val_loss\.mean: got 'low'": lambda data, x: x["val_loss"].update(mean="low"),
        "two have the same name": lambda data, x: x.update(name="uniform"),
    }.items():
        (folder / "outcome.json").write_text(good)
        change(folder / "outcome.json", lambda data, edit=edit: edit(data, data["points"][1]))
        with pytest.raises(UserError, match=message) as error:
            reported(folder)
        assert "\n" not in str(error.value)
    assert not (folder / "report.html").exists()
