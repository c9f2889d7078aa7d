"""What `import widthwise` offers."""

import subprocess
import sys

import widthwise


def test_every_public_name_is_there() -> None:
    for name in widthwise.__all__:
        found = getattr(widthwise, name)
        assert found.__name__ == name
        assert found.__doc__


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, widthwise.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
