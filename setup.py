"""Build steps that pyproject.toml cannot express: the copy of configs/ in the package, and the package page's text."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """An editable install needs no copy: there, the recipes are read where they are (widthwise/yaml_io.py)."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "widthwise" / "configs"
            for file in Path("configs").rglob("*.yaml"):
                copy = target / file.relative_to("configs")
                self.mkpath(str(copy.parent))
                self.copy_file(str(file), str(copy))


# A link to a file of the repository leads nowhere from the package page: there, only its text remains.
description = re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", Path("README.md").read_text(encoding="utf-8"))
setup(
    cmdclass={"build_py": BuildWithRecipes},
    long_description=description,
    long_description_content_type="text/markdown",
)
