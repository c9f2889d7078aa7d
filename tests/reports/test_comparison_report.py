"""The page of a comparison: whole, accessible, alone, and safe whatever its names are."""

import base64
import hashlib
import html.parser
import math
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import at_equal_loss, estimate, write_comparison
from page_section import change, check_broken, reported

from widthwise.records.outcome import Outcome
from widthwise.reports.experiment_sections import compared_question
from widthwise.reports.formats import MINUS
from widthwise.reports.writing import answer
from widthwise.run_dir import RunDir

HOSTILE = (
    "<script>alert(1)</script>",
    r"x_{\input{/etc/passwd}} $\frac$",
    "\"'><img src=x onerror=alert(1)>\x1b[31m\n_y",
)


class Outline(html.parser.HTMLParser):
    """Tags and text of a page; void and self-closing tags left out of the nesting."""

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


@pytest.fixture(scope="module")
def files(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return reported(comparison, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(files: dict[str, Path]) -> str:
    return files["html"].read_text(encoding="utf-8")


def test_same_input_gives_same_bytes(comparison: Path, files: dict[str, Path], tmp_path: Path) -> None:
    again = reported(comparison, tmp_path)
    assert [path.read_bytes() for path in again.values()] == [path.read_bytes() for path in files.values()]


def test_the_first_screen_answers_with_one_number_a_sentence(page: str) -> None:
    """x is better, and hourglass not clearly different."""
    (answer,) = re.findall(r'<div class="answer".*?</div>', page, re.DOTALL)
    lines = re.findall("<p>(.*?)</p>", answer)
    assert lines == [
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
    outline = Outline(page)
    assert outline.open == []
    assert not [attributes for _, attributes in outline.tags if "src" in attributes or "@import" in str(attributes)]
    assert not [attributes["href"] for tag, attributes in outline.tags if tag == "a" and attributes["href"][:1] != "#"]
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
    types = [attributes.get("type") for tag, attributes in outline.tags if tag == "script"]
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
