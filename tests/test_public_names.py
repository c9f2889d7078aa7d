"""What `import widthwise` offers."""

import re
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path

import widthwise

PACKAGE = Path(widthwise.__file__).parent


def test_completion_knows_the_public_names_before_any_is_used() -> None:
    command = [sys.executable, "-c", "import widthwise; print(*dir(widthwise))"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {*widthwise.__all__, "__version__"}


def test_type_checkers_are_told_of_every_name_as_public() -> None:
    """A stub offers only what it imports under a name of its own, be it the same."""
    declared = re.findall(r"^from (widthwise\.\S+) import (\w+) as \2$", (PACKAGE / "__init__.pyi").read_text(), re.M)
    assert sorted(name for _, name in declared) == widthwise.__all__
    for module, name in declared:
        found = getattr(widthwise, name)
        assert found is getattr(import_module(module), name)
        assert found.__doc__, name
    assert (PACKAGE / "py.typed").is_file()


def test_a_path_may_be_text() -> None:
    for name in filter(str.islower, widthwise.__all__):
        for parameter, hint in typing.get_type_hints(getattr(widthwise, name)).items():
            kinds = _kinds(hint)
            assert parameter == "return" or Path not in kinds or str in kinds, f"{name}({parameter})"


def _kinds(hint: object) -> list[object]:
    """A type and what it is made of, but for what a function that is passed takes."""
    return [hint, *(kind for each in typing.get_args(hint) for kind in _kinds(each))]
