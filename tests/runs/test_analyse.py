"""What trained models do inside, from run directories and Hugging Face folders."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import Listener, tiny_recipe

from widthwise.analysis.decoder_subject import DecoderSubject
from widthwise.analysis.profile import Profile
from widthwise.config_io import UserError
from widthwise.data.config import open_data
from widthwise.data.held_out import HeldOut
from widthwise.records.analysis import AnalysedModel, Analysis
from widthwise.runs import analysed_models
from widthwise.runs.analyse import analyse, write_analysis
from widthwise.runs.export import export_run
from widthwise.runs.train import train
from widthwise.runs.trained import load_trained

BPE = ("data.tokenizer=bpe-280", "model.vocab_size=280", "train.checkpoint_every=9")
UNIFORM = ("model.shape={kind: explicit, widths: [16, 16, 16]}", *BPE)
N_TOKENS = 90
"""Five windows of 17."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """uniform and x, of one tokenizer; small, of another and of two layers."""
    folder = tmp_path_factory.mktemp("analysed")
    train(tiny_recipe(*UNIFORM), folder / "uniform")
    train(tiny_recipe(*BPE), folder / "x")
    small = ("model.n_layers=2", "model.shape={kind: explicit, widths: [16, 16]}", "train.checkpoint_every=9")
    train(tiny_recipe(*small), folder / "small")
    return folder


@pytest.fixture(scope="module")
def both(runs: Path) -> Analysis:
    return analyse([runs / "uniform", runs / "x"], n_tokens=N_TOKENS)


def numbers(model: AnalysedModel) -> dict[str, Any]:
    return {
        key: value
        for key, value in model.to_data().items()
        if key not in ("name", "source", "kind", "step", "tokens", "run", "exit_flops", "block_exit_flops")
    }


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether plain data agree, numbers up to a tolerance."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b))
    return a == b if a is None or isinstance(a, str) else math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def test_models_read_the_held_out_windows_of_the_first_run(runs: Path, both: Analysis) -> None:
    held_out = HeldOut(open_data(tiny_recipe(*BPE).data), 17, 3, N_TOKENS, "fp32")
    for model in both["models"]:
        trained = load_trained(runs / model["name"]).model
        profile = Profile(DecoderSubject(trained))
        for windows in held_out.batches():
            profile.add(windows)
        expected = {**profile.summary(), "token_widths": None, "virtual_width": None}
        assert model.exit_flops == trained.config.exit_flops(17)
        assert expected["n_tokens"] == 5 * 17
        # Batches are of another size, so sums are in another order.
        assert same(numbers(model), expected, 1e-4)
    assert both["text"].to_data() == {"source": "held-out documents of synthetic", "seq_len": 17, "n_tokens": 5 * 17}
    assert [(model["name"], model["kind"], model["step"]) for model in both["models"]] == [
        ("uniform", "widthwise", 9),
        ("x", "widthwise", 9),
    ]
    assert [model["widths"] for model in both["models"]] == [[16, 16, 16], [24, 8, 24]]


def test_the_answer_names_both_and_what_it_does_not_say(both: Analysis) -> None:
    answer, reservation = both["sentence"].splitlines()
    first, second = both["models"]
    # The middle half of three layers: layers 1 and 2.
    for model in (first, second):
        entropy = sum(point["entropy"] for point in model["stream"] if point["depth"] in (1, 2)) / 2
        share = sum(each["participation_share"] for each in model["activations"] if each["layer"] in (1, 2)) / 2
        marks = "is {:.3f}" if model is second else "than {:.3f}"
        assert marks.format(entropy) in answer
        assert marks.format(share) in answer
    assert "other seeds" in reservation


def test_what_is_written_is_what_is_said(both: Analysis, tmp_path: Path) -> None:
    path = write_analysis(both, tmp_path / "new" / "out")
    assert path == tmp_path / "new/out/analysis.json"
    assert Analysis.read(path.parent).to_data() == json.loads(json.dumps(both.to_data(), allow_nan=False))


def test_no_path_outside_the_working_folder_is_shown(
    both: Analysis, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(runs) not in both.to_json()
    text = tmp_path / "own.txt"
    text.write_text("A text of one's own.\n" * 30)
    monkeypatch.chdir(runs)
    found = analyse(["small"], text, n_tokens=34)
    assert found["models"][0]["source"] == "small"
    assert found["text"]["source"] == "own.txt"


def test_the_size_of_batches_changes_nothing(runs: Path, both: Analysis) -> None:
    told: list[tuple[int, int | None]] = []

    class Counting(Listener):
        def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
            told.append((n_done, n_total))

    single = analyse([runs / "uniform"], n_tokens=N_TOKENS, batch_size=2, observer=Counting())
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert same(numbers(single["models"][0]), numbers(both["models"][0]), 1e-4)


def test_a_model_of_another_tokenizer_reads_as_much_text(runs: Path, tmp_path: Path) -> None:
    text = tmp_path / "own.jsonl"
    text.write_text("".join(json.dumps({"text": f"layer {i} is {7 * i} wide\n" * 9}) + "\n" for i in range(40)))
    found = analyse([runs / "x", runs / "small"], text, n_tokens=170, seq_len=10)
    coarse, fine = found["models"]
    assert coarse["n_tokens"] == found["text"]["n_tokens"] == 170
    assert found["text"]["seq_len"] == 10
    tokenizer = load_trained(runs / "x").tokenizer
    ids = tokenizer.encode(json.loads(text.read_text().splitlines()[0])["text"])
    letters_per_token = len(tokenizer.decode(ids)) / len(ids)
    assert fine["n_tokens"] == pytest.approx(170 * letters_per_token, rel=0.2)
    assert fine["n_tokens"] > coarse["n_tokens"]


def test_an_exported_model_gives_the_numbers_of_its_run(runs: Path, both: Analysis, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra [hf]")
    export_run(runs / "uniform", tmp_path / "hf")
    found = analyse([runs / "uniform", tmp_path / "hf"], n_tokens=N_TOKENS)["models"]
    assert [(model["name"], model["kind"], model["step"]) for model in found] == [
        ("uniform", "widthwise", 9),
        ("hf", "hf", None),
    ]
    assert same(numbers(found[1]), numbers(found[0]), 1e-3)


def test_an_exported_model_of_our_own_format_gives_the_numbers_of_its_run(
    runs: Path, both: Analysis, tmp_path: Path
) -> None:
    assert export_run(runs / "x", tmp_path / "hf")["model_type"] == "widthwise"
    found = analyse([runs / "x", tmp_path / "hf"], n_tokens=N_TOKENS)["models"]
    assert [model["kind"] for model in found] == ["widthwise", "hf"]
    assert same(numbers(found[1]), numbers(found[0]), 1e-6)


def test_a_later_model_that_cannot_be_loaded_is_named_before_any_is_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("a model was run")

    monkeypatch.setattr(Profile, "add", fail)
    shutil.copytree(runs / "small", tmp_path / "empty", ignore=shutil.ignore_patterns("step_*"))
    with pytest.raises(UserError, match=r"empty/checkpoints: no checkpoint to load"):
        analyse([runs / "small", tmp_path / "empty"], n_tokens=34)


def test_a_model_of_no_numbers_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = load_trained(runs / "small")
    torch.nn.init.constant_(trained.model.embedding.weight, math.inf)
    monkeypatch.setattr(analysed_models, "load_trained", lambda path, step: trained)
    with pytest.raises(UserError, match=r"^small: the stream after layer 0 is not made of finite numbers"):
        analyse([runs / "small"], n_tokens=34)


def test_a_hugging_face_folder_needs_a_text_and_a_tokenizer(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra [hf]")
    export_run(runs / "uniform", tmp_path / "hf")
    with pytest.raises(UserError, match=r"hf: a Hugging Face folder brings no held-out text; .* --text"):
        analyse([tmp_path / "hf"])
    path = tmp_path / "hf/tokenizer.json"
    definition = json.loads(path.read_text())
    definition["added_tokens"].append({**definition["added_tokens"][0], "id": 280, "content": "<further>"})
    path.write_text(json.dumps(definition))
    with pytest.raises(UserError, match=r"tokenizer.json: has 281 tokens; the model knows 280"):
        analyse([runs / "uniform", tmp_path / "hf"], n_tokens=34)
    path.unlink()
    with pytest.raises(UserError, match=r"hf: has no tokenizer.json"):
        analyse([runs / "uniform", tmp_path / "hf"], n_tokens=34)


def test_widths_of_tokens_and_of_the_stream_are_those_of_the_result(tmp_path: Path) -> None:
    results = {
        "dynamic": train(tiny_recipe("model.ffn={kind: dynamic, ratio: 3}"), tmp_path / "dynamic"),
        "virtual": train(
            tiny_recipe("model.residual={kind: hyper_connections, slot_width: 8, n_slots: 4}"), tmp_path / "virtual"
        ),
    }
    found = analyse([tmp_path / name for name in results], n_tokens=N_TOKENS, batch_size=2)["models"]
    widths = found[0].token_widths.to_data()
    assert widths.pop("oracle")["mean_fraction"] > 0
    assert same(widths, results["dynamic"].token_widths.to_data(), 1e-4)
    assert same(found[1].virtual_width.to_data(), results["virtual"].virtual_width.to_data(), 1e-4)
    assert found[0]["virtual_width"] is None
    assert found[1]["token_widths"] is None


def test_what_a_model_draws_at_random_is_the_same_every_time(tmp_path: Path) -> None:
    train(tiny_recipe("model.ffn={kind: dynamic, ratio: 3, score: {kind: random}}"), tmp_path / "run")
    before = torch.get_rng_state()
    first = analyse([tmp_path / "run"], n_tokens=34)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert analyse([tmp_path / "run"], n_tokens=34)["models"] == first["models"]


def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path: Path) -> None:
    train(tiny_recipe(), tmp_path / "run")
    (tmp_path / "run/checkpoints/step_00000009/model.safetensors").write_bytes(b"torn")
    listener = Listener()
    assert analyse([tmp_path / "run"], n_tokens=34, observer=listener)["models"][0]["step"] == 8
    assert "step_00000009 is damaged" in listener.messages[0]


def test_a_model_of_learned_positions_reads_no_longer_windows(tmp_path: Path) -> None:
    train(tiny_recipe("model.positions={n_positions: 20}"), tmp_path / "run")
    assert analyse([tmp_path / "run"], n_tokens=40, seq_len=20)["text"]["n_tokens"] == 40
    with pytest.raises(UserError, match="seq_len: got 21; run was made for at most 20 tokens"):
        analyse([tmp_path / "run"], n_tokens=42, seq_len=21)


def test_of_many_models_the_title_names_the_first(runs: Path, tmp_path: Path) -> None:
    paths = [runs / "small", *(shutil.copytree(runs / "small", tmp_path / f"copy{i}") for i in range(3))]
    found = analyse(paths, n_tokens=34)
    assert found["title"] == "small-vs-3-others"
    # Models that are the same say the same, whichever comes first.
    assert all(numbers(model) == numbers(found["models"][0]) for model in found["models"])


def test_runs_of_one_name_are_told_apart_by_what_holds_them(runs: Path, tmp_path: Path) -> None:
    for side in ("a", "b"):
        shutil.copytree(runs / "small", tmp_path / side / "runs" / "it")
    found = analyse([tmp_path / "a/runs/it", tmp_path / "b/runs/it"], n_tokens=34)
    assert [model["name"] for model in found["models"]] == ["a/runs/it", "b/runs/it"]
    (tmp_path / "link").symlink_to(tmp_path / "a/runs/it")
    with pytest.raises(UserError, match="it was named twice"):
        analyse([tmp_path / "a/runs/it", tmp_path / "link"])


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ([], {}, "expected at least one"),
        (["x", "x"], {}, "x was named twice"),
        (["x", "nothing"], {}, r"nothing: is neither a run directory \(config.yaml\) nor a Hugging Face folder"),
        (["x"], {"n_tokens": 16}, "tokens: got 16; must be at least one window, seq_len = 17"),
        (["x"], {"text": "absent.txt"}, "absent.txt: no such file"),
        (["x"], {"text": "short.txt"}, r"short.txt: holds \d+ tokens of x; must be at least seq_len \+ 1 = 18"),
    ],
)
def test_mistakes_are_named(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(UserError, match=message):
        analyse([runs / name for name in names], **options)


def without_a_tensor(path: Path) -> None:
    tensors = load_file(path)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "cut off": ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-9]), "cannot load it"),
    "a header without end": ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 99), "cannot load it"),
    "a tensor less": ("model.safetensors", without_a_tensor, "has no tensor model.layers.0.mlp.up_proj.weight"),
    "no heads": ("config.json", lambda path: edit(path, num_attention_heads=0), "cannot load it"),
    "heads that are text": ("config.json", lambda path: edit(path, num_attention_heads="two"), "cannot load it"),
    "no epsilon": ("config.json", lambda path: edit(path, rms_norm_eps=[]), "cannot load it"),
    "layers without end": ("config.json", lambda path: edit(path, num_hidden_layers=10**9), "num_hidden_layers: got"),
    "a list": ("config.json", lambda path: path.write_text("[]"), "holds list, not a mapping"),
    "depth without end": ("config.json", lambda path: path.write_text("[" * 10**5), "is not valid JSON"),
}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_of_hugging_face_is_named(
    runs: Path, tmp_path: Path, name: str, damage: Callable[[Path], Any], message: str
) -> None:
    pytest.importorskip("transformers", reason="needs the extra [hf]")
    export_run(runs / "uniform", tmp_path / "hf")
    damage(tmp_path / "hf" / name)
    with pytest.raises(UserError, match=message):
        analysed_models.HFSource(tmp_path / "hf").load()
