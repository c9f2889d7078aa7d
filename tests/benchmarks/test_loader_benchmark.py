import json
from collections.abc import Sequence

import loader
import pytest

from widthwise.data.windows import TokenMixture


def test_it_runs_and_reports_a_multiple_of_what_the_quickstart_consumes(tmp_path):
    assert loader.main(["--quick", "--out", str(tmp_path / "found.json")]) == 0
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert list(parts) == ["1_sources", "2_sources", "12_sources"]
    for part in parts.values():
        ratio = part["variants"]["batches"]["wall_ratio"]["median"]
        assert part["multiple_of_quickstart"] == pytest.approx(part["n_batches"] / ratio)
        assert part["meets_target"] == (part["multiple_of_quickstart"] >= part["target"])


@pytest.mark.parametrize("n_sources", [2, 12])
def test_sources_share_the_tokens_as_they_share_the_windows(tmp_path, n_sources):
    found = loader.sources(tmp_path, n_sources, 100_000)
    assert isinstance(found, TokenMixture)
    sizes: Sequence[int] = [tokens.n_tokens for tokens in found.files.values()]
    assert len(sizes) == n_sources
    assert 100_000 - n_sources < sum(sizes) <= 100_000
    assert list(sizes) == sorted(sizes, reverse=True)
