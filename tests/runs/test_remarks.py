"""Each remark where it applies and not where it does not."""

from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from widthwise.data.documents import Corpus
from widthwise.data.prepare import prepare
from widthwise.data.synthetic import synthetic_documents
from widthwise.recipe.recipe import load_recipe
from widthwise.runs.remarks import remarks

CONFIGS = Path(__file__).parents[2] / "configs"
QUIET = ("model.vocab_size=257", "model.d_model=128", "model.shape.widths=[128,128,128]", "train.steps=200000")


def said(*overrides: str) -> list[str]:
    return list(remarks(tiny_recipe(*QUIET, *overrides)))


def test_a_usual_recipe_gives_no_reason() -> None:
    assert said() == []
    assert said("model.vocab_size=272") == []  # padded to a multiple of 16


def test_a_vocabulary_much_larger_than_the_tokenizers() -> None:
    recipe = load_recipe(CONFIGS / "uniform_200m.yaml")
    vocabulary, embedding = remarks(recipe)
    n_unused = 2 * 640 * (100263 - 4096)
    assert vocabulary == (
        f"model.vocab_size: 100,263, but the tokenizer bpe-4096 has 4,096 tokens; about {n_unused:,} parameters of "
        "embedding and head stand for no token"
    )
    assert embedding.startswith("model.vocab_size: 55% of the parameters are in embedding and head")


def test_a_vocabulary_smaller_than_the_tokenizers() -> None:
    (found,) = said("model.vocab_size=200")
    assert found == "`train` refuses this: model.vocab_size: got 200; the tokenizer bytes has 257 tokens"


def test_most_parameters_in_the_embedding() -> None:
    small = ("model.d_model=8", "model.shape.widths=[8,8,8]", "train.steps=2000")
    (found,) = remarks(tiny_recipe("model.vocab_size=257", *small))
    cost = tiny_recipe("model.vocab_size=257", *small).final_model.cost()
    assert found.startswith(f"model.vocab_size: {2 * 257 * 8 / cost.params:.0%} of the parameters")


def test_a_warmup_that_never_ends_and_one_that_nearly_does() -> None:
    (found,) = said("schedule.warmup_steps=200000")
    assert found.startswith("`train` refuses this: schedule.warmup_steps: got 200000; must be less than train.steps")
    (found,) = said("schedule.warmup_steps=100001")
    assert found.startswith("schedule.warmup_steps: 100,001 of 200,000 steps")
    assert said("schedule.warmup_steps=100000") == []


@pytest.mark.parametrize(("steps", "words"), [(30_000, "far below the 20"), (5_000_000, "far above the 20")])
def test_tokens_far_from_the_law(steps: int, words: str) -> None:
    (found,) = said(f"train.steps={steps}")
    assert found.startswith("train.steps: ")
    assert words in found


def test_data_that_is_read_again_and_again(tmp_path: Path) -> None:
    data = prepare(Corpus("some", synthetic_documents), tmp_path / "data", tokenizer="bytes", held_out=0.2)
    n_tokens = data.manifest.splits.train.n_tokens
    (found,) = said("data={path: " + str(tmp_path / "data") + "}")
    assert found.startswith(f"data: has {n_tokens:,} tokens, so the run reads each ")
