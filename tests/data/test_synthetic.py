from widthwise.data.corpus import named_corpus
from widthwise.data.division import ByFraction
from widthwise.data.documents import scan


def test_synthetic_corpus_is_small_and_the_same_every_time():
    first, second = (scan(ByFraction(0.1).entries(named_corpus("synthetic"))) for _ in range(2))
    assert first == second
    assert 150_000 < first.n_bytes < 300_000


def test_subject_and_verb_agree_and_the_hero_stays():
    for document in named_corpus("synthetic"):
        sentences = document.text.strip().split(". ")
        hero = sentences[0].split()[-1].rstrip(".")
        for sentence in sentences[1:]:
            *_, subject, verb = sentence.split(" the ")[0].split()
            assert subject.endswith("s") != verb.endswith("s")
            assert subject == hero or subject.endswith("s")
