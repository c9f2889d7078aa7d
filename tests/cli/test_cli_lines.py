"""The end of a verb: the answer, the tables and the page, on lines that a terminal of 80 columns need not break."""

from pathlib import Path

import pytest
import yaml

TINY = ("model.d_model=16", "model.n_layers=2", "train.steps=2", "train.validation_tokens=48")
FITTED = ("--x", "a-quantity-with-a-long-name", "--y", "loss", "--group", "model")
COMPARED = {"seeds": [1, 2], "match": "none", "variants": {"base": {}, "a-variant-with-a-long-name": {}}}


@pytest.fixture
def printed(recipe: Path, succeeds, monkeypatch: pytest.MonkeyPatch):
    """Arguments of a verb -> the lines it prints, none of them too long but for paths."""
    monkeypatch.chdir(recipe.parent)
    monkeypatch.setenv("COLUMNS", "80")
    recipe.with_name("pair.yaml").write_text(yaml.safe_dump({"extends": recipe.name, "compare": COMPARED}))
    rows = [f"{x},{a * x**-0.05:.6f},{name}" for name, a in (("base", 3.0), ("new", 2.95)) for x in (1, 3, 9, 27)]
    recipe.with_name("points.csv").write_text("\n".join(["a-quantity-with-a-long-name,loss,model", *rows]))

    def call(*arguments: object) -> list[str]:
        lines = succeeds(*arguments)[0].splitlines()
        longest = max((line for line in lines if not line.startswith("wrote ")), key=len)
        assert len(longest) <= 80, (arguments, longest)
        return lines

    return call


def test_the_answer_comes_first_the_page_last_and_no_line_is_longer_than_80_columns(printed, small: str) -> None:
    for verb in (
        ("compare", "pair.yaml", *TINY, "--out", "compared"),
        ("sweep", "base.yaml", *TINY, "--over", "optimizer.lr=0.002,0.003", "--seed", 1, "--out", "swept"),
        ("fit", "points.csv", *FITTED, "--out", "fitted"),
    ):
        *lines, last = printed(*verb)
        assert last == f"wrote {verb[-1]}/report.html"
        sentences = "\n".join(lines).split("──")[0].splitlines()
        assert any(line.rstrip().endswith(".") for line in sentences[:-2]), "the answer stands above the table"
    runs = ("small", "compared/runs/base-seed1", "compared/runs/a-variant-with-a-long-name-seed2")
    for verb in (
        ("family", small, "train.steps=4", "--to", "wide.yaml", "--alone", "tokens", "--out", "family"),
        ("eval", *runs),
        ("eval", small, "--every-checkpoint"),
        ("analyze", *runs, "--tokens", 96, "--out", "analysis"),
        ("shrink", small, "--flops", 0.8, "--calibration-batches", 1, "--plan-only"),
        ("inspect", "x_200m"),
        ("inspect", "pair.yaml"),
        ("search", "base.yaml", "--n-layers", "2..4", "--n-blocks", "1,3", "--ratio", "0.4,0.7", "--tolerance", 0.02),
    ):
        printed(*verb)
