"""A tiny generated corpus for tests and first runs: learnable and deterministic."""

import random
from collections.abc import Iterator

from widthwise.data.documents import Document

N_DOCUMENTS = 500
SENTENCES_PER_DOCUMENT = 10
NOUNS = ("cat", "dog", "owl", "bear", "crow", "goat", "duck", "horse")
VERBS = ("see", "hear", "chase", "follow", "greet", "carry")
ADJECTIVES = ("red", "old", "tall", "quiet", "small", "brave")
ENDINGS = ("at dawn", "in the rain", "near the river", "by night")


def synthetic_documents() -> Iterator[Document]:
    """500 documents, about 200 KB: sentences whose verb agrees with its subject and whose hero stays the same.

    A model gains from bigrams (word order), from agreement across an adjective, and from copying the hero named first.
    """
    for index in range(N_DOCUMENTS):
        yield Document(f"synthetic/{index:04d}", _story(random.Random(index)))


def _story(rng: random.Random) -> str:
    hero = _pick(rng, NOUNS)
    sentences = [f"This is about the {hero}."]
    sentences += [_sentence(rng, hero) for _ in range(SENTENCES_PER_DOCUMENT)]
    return " ".join(sentences) + "\n"


def _sentence(rng: random.Random, hero: str) -> str:
    plural = rng.random() < 0.3
    adjective = f"{_pick(rng, ADJECTIVES)} " if rng.random() < 0.5 else ""
    noun = _pick(rng, NOUNS) + "s" if plural else hero
    verb = _pick(rng, VERBS)
    agreeing = verb if plural else verb[:-1] + "ies" if verb.endswith("y") else verb + "s"
    return f"The {adjective}{noun} {agreeing} the {_pick(rng, NOUNS)} {_pick(rng, ENDINGS)}."


def _pick(rng: random.Random, words: tuple[str, ...]) -> str:
    # Only Random.random() promises the same numbers in every Python version; choice() does not.
    return words[int(rng.random() * len(words))]
