import json
import time
from pathlib import Path

import harness


def test_variants_run_in_turn_after_the_warm_up_and_the_device_is_waited_for():
    calls: list[str] = []
    times = harness.interleave({name: lambda name=name: calls.append(name) for name in "abc"}, n_rounds=3, n_warmup=2)
    assert calls == list("abc" * 5)
    assert {name: (len(own.wall), len(own.cpu)) for name, own in times.items()} == dict.fromkeys("abc", (3, 3))
    del calls[:]
    run, wait = (lambda said=said: calls.append(said) for said in ("run", "wait"))
    harness.interleave({"a": run}, n_rounds=2, n_warmup=0, synchronize=wait)
    assert calls == ["wait", "run", "wait"] * 2


def test_ratios_are_of_the_same_round():
    # The machine slows down tenfold from round to round; the ratio stays 2.
    times = {
        "base": harness.Times([1.0, 10.0, 100.0], [1.0] * 3),
        "other": harness.Times([2.0, 20.0, 200.0], [3.0] * 3),
    }
    summary = harness.summarise(times, "base")["other"]
    assert summary["wall_ratio"] == {"median": 2.0, "q20": 2.0, "q80": 2.0}
    assert summary["cpu_ratio"]["median"] == 3.0
    assert summary["wall_seconds"]["median"] == 20.0


def test_a_failing_part_is_recorded_and_the_others_kept(tmp_path):
    def broken(_: float):
        raise ValueError("what\nwent wrong")

    out = tmp_path / "results" / "report.json"
    parts = [
        harness.Part("first", lambda seconds: {"seconds": seconds}, 7.0),
        harness.Part("broken", broken, 7.0),
        harness.Part("slow", lambda _: time.sleep(5) or {}, 0.05),
        harness.Part("last", lambda _: {"value": 3}, 7.0),
    ]
    assert harness.run_parts(parts, out, "cpu", total_seconds=60) is False
    report = json.loads(out.read_text())
    assert report["parts"]["first"]["seconds"] == 7.0
    assert report["parts"]["broken"]["failed"] == "ValueError: what went wrong"
    assert "not finished" in report["parts"]["slow"]["failed"]
    assert report["parts"]["last"]["value"] == 3


def test_the_environment_names_the_versions_and_no_folder(monkeypatch):
    root = Path(harness.__file__).parents[1]
    monkeypatch.setattr("sys.argv", [str(root / "benchmarks" / "training.py"), "--quick", "--out=/home/me/x.json"])
    environment = harness.environment()
    assert environment["command"] == "python benchmarks/training.py --quick --out=x.json"
    assert all(environment[key] for key in ("python", "torch", "platform", "commit", "n_threads"))
    assert str(root) not in json.dumps(environment)
