"""What pyproject.toml cannot say: configs/ is copied into the package when it is built."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRecipes(build_py):
    """An editable install needs no copy: there, the recipes are read where they are (widthwise/yaml_io.py)."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "widthwise" / "configs"
            for file in (*Path("configs").rglob("*.yaml"), *Path("configs").rglob("*.csv")):
                copy = target / file.relative_to("configs")
                self.mkpath(str(copy.parent))
                self.copy_file(str(file), str(copy))


setup(cmdclass={"build_py": BuildWithRecipes})
