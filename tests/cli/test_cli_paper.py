"""`widthwise paper`, from argument to output."""

import pytest


@pytest.mark.hard
def test_the_list_names_every_item_and_trains_nothing(succeeds, tmp_path):
    page = tmp_path / "papers.md"
    succeeds("paper", "list", "--results", tmp_path, "--page", page)
    assert "### Table 2" in page.read_text()
    assert [each.name for each in tmp_path.iterdir()] == [page.name]


def test_an_item_is_counted_as_json(answer, tmp_path):
    found = answer("paper", "hourglass_table_1", "--results", tmp_path)
    rows = {(line["row"], line["quantity"]): line for line in found["lines"]}
    assert rows["k8", "params_ffn"]["counted"] == 12 * 8 * 3 * 768 * 384
    assert rows["k8", "params_ffn"]["agrees"] is True


def test_a_dry_run_says_the_work_and_writes_nothing(succeeds, tmp_path):
    out, _ = succeeds("paper", "hourglass_table_1", "--scale", "small", "--results", tmp_path, "--dry-run")
    assert "10 runs of 160 steps" in out
    assert not list(tmp_path.iterdir())


def test_an_item_becomes_a_page_without_training(succeeds, tmp_path):
    page = tmp_path / "item.html"
    succeeds("paper", "hourglass_table_3", "--results", tmp_path, "--page", page)
    assert "hourglass_403m_alt has a shape of the printed sizes" in page.read_text()


@pytest.mark.hard
def test_a_tiny_experiment_is_trained_and_shown_beside_what_is_printed(succeeds, answer, tmp_path):
    tiny = ("paper", "hourglass_table_1", "--scale", "tiny", "--results", tmp_path)
    out, _ = succeeds(*tiny)
    assert "measured: tiny" in out
    page = tmp_path / "hourglass_table_1" / "report.html"
    assert page.is_file()
    assert f"wrote {page}" in out
    assert answer(*tiny)["experiment"]["scale"] == "tiny"
    assert (tmp_path / "hourglass_table_1_small_tiny" / "outcome.json").is_file()
