"""Measure what the tests catch: each mutant of mutants.yaml is one wrong line in a copy of the package.

    python tests/mutants.py [--only PART-OF-PATH]

Runs the tests nearest to the line first, up to the first that fails, then those of the rooms that use it; hard tests
are left out until nothing else has failed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parent.parent
USED_BY = {
    "kernels": ["model"],
    "data": ["runs", "training"],
    "model": ["growth", "analysis", "interop"],
    "shape": ["recipe", "model"],
    "growth": ["runs", "training"],
    "recipe": ["shape", "training", "experiments", "distributed"],
    "training": ["runs", "faults", "distributed"],
    "runs": ["cli", "faults"],
    "experiments": ["cli", "reports"],
    "records": ["reports", "experiments", "runs"],
    "evaluation": ["runs", "experiments", "cli"],
    "reports": ["cli"],
    "cli": ["faults"],
}
"""Folders of tests that go through a room, beside its own."""


class Mutant(NamedTuple):
    """A line of a file of the package, as it is and as it is wrong."""

    file: str
    was: str
    now: str

    def apply(self, package: Path) -> None:
        """Raises ValueError where the line is not in the file exactly once."""
        text = (path := package / self.file).read_text()
        if text.count(self.was) != 1:
            raise ValueError(f"{self.file}: has {text.count(self.was)} times: {self.was}")
        path.write_text(text.replace(self.was, self.now))

    def tests(self) -> Iterator[list[str]]:
        """Arguments of pytest, nearest tests first."""
        path, room = self.file.removesuffix(".py"), self.file.partition("/")[0]
        named = (f"test_{Path(path).name}", f"test_{room}_{Path(path).name}")
        names_it = re.compile(rf"widthwise\.{re.escape(path.replace('/', '.'))}\b")
        files = sorted((ROOT / "tests").rglob("test_*.py"))
        near = [str(each) for each in files if each.stem in named or names_it.search(each.read_text())]
        rooms = [f"tests/{each}" for each in (room, *USED_BY.get(room, ())) if (ROOT / "tests" / each).is_dir()]
        if near:
            yield [*(str(Path(path).relative_to(ROOT)) for path in near), "-m", "not hard"]
        yield from ([*rooms, "-m", mark] for mark in ("not hard", "hard"))


def caught_by(mutant: Mutant) -> str | None:
    """Name of a test that fails with the mutant; None if none does."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        mutant.apply(Path(folder) / "src" / "widthwise")
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src"}
        for tests in mutant.tests():
            command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
            ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if found := re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE):
                return found[1]
    return None


def main() -> None:
    """Exit code 1 if a mutant survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose file has this in its path")
    options = parser.parse_args()
    mutants = [Mutant(*each) for each in yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text())]
    mutants = [each for each in mutants if options.only in each.file]
    n_caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, test in zip(mutants, pool.map(caught_by, mutants), strict=True):
            n_caught += test is not None
            print(f"{mutant.file}: {mutant.now}\n    {test or 'SURVIVES'}", flush=True)
    print(f"{n_caught} of {len(mutants)} caught")
    sys.exit(n_caught < len(mutants))


if __name__ == "__main__":
    main()
