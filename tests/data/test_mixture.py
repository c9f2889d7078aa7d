import pytest

from widthwise.config_io import UserError
from widthwise.data.documents import Corpus, Document
from widthwise.data.mixture import MixedData
from widthwise.data.prepare import prepare


def corpus(name: str, n_documents: int) -> Corpus:
    return Corpus(name, lambda: (Document(str(index), f"{name} {index}\n" * 20) for index in range(n_documents)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    return {
        name: prepare(corpus(name, n), folder / name, tokenizer="bytes", held_out=0.2)
        for name, n in (("web", 90), ("code", 30))
    }


def test_both_splits_hold_all_sources_in_the_order_of_their_names(sources):
    data = MixedData(sources, {"web": 7, "code": 3})
    for split in ("train", "held_out"):
        mixture = getattr(data, split)
        assert list(mixture.files) == ["code", "web"]
        assert list(mixture.weights.items()) == [("code", 3), ("web", 7)]
        assert mixture.files["web"].prefix == sources["web"].path / split
    assert data.tokenizer.id == sources["web"].tokenizer.id


def test_sources_of_different_tokenizers_are_refused_by_name(sources, tmp_path):
    other = prepare(corpus("other", 40), tmp_path / "other", tokenizer="bpe-270", held_out=0.2)
    with pytest.raises(UserError) as refusal:
        MixedData({**sources, "math": other}, {"web": 1, "code": 1, "math": 1})
    message = str(refusal.value)
    assert "code was tokenised by bytes (" in message
    assert "and math by bpe-270 (" in message
    assert "\n" not in message


def test_the_use_of_a_source_is_its_share_and_its_epochs(sources):
    n_windows = {name: (source.train.n_tokens - 1) // 30 for name, source in sources.items()}
    use = MixedData(sources, {"web": 1, "code": 3}).use(30, 4000)
    assert list(use) == ["code", "web"]
    assert (use["code"].share, use["web"].share) == (0.75, 0.25)
    assert use["code"].n_epochs == 3000 / n_windows["code"]
    assert use["web"].n_epochs == 1000 / n_windows["web"]


def test_damage_in_any_source_is_found(sources, tmp_path):
    damaged = prepare(corpus("damaged", 40), tmp_path / "damaged", tokenizer="bytes", held_out=0.2)
    path = tmp_path / "damaged" / "held_out.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    data = MixedData({**sources, "damaged": damaged}, {"web": 1, "code": 1, "damaged": 1})
    with pytest.raises(UserError, match=r"damaged/held_out\.bin: its checksum differs"):
        data.verify()
