"""The recipes that come with the package: in a checkout its folder configs, in a wheel the same inside the package."""

import os
from pathlib import Path

PACKAGE = Path(__file__).parent


def recipes_folder() -> Path:
    """`configs`: of the installed package, or of the checkout that is imported."""
    inside = PACKAGE / "configs"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "configs"


def papers_folder() -> Path:
    """The items of the papers, one file each, and in `recipes` those recipes that only they need."""
    return recipes_folder() / "papers"


def recipe_path(name: Path | str, beside: Path = Path()) -> Path:
    """The file that `name` means in the folder `beside`, or the recipe of that name that comes with the package.

    A file that is there comes first; with neither, the path to the missing file is returned.
    """
    path = beside / name
    if len(Path(name).parts) == 1 and not os.path.lexists(path):
        for folder in (recipes_folder(), papers_folder() / "recipes"):
            bundled = folder / f"{name}.yaml"
            if os.path.isfile(bundled):  # of what no file can be called, this says that it is not there
                return bundled
    return path


def recipe_name(path: Path | str) -> str:
    """Return the name of a run of a recipe: `x_200m` for configs/x_200m.yaml, and for the bundled one of that name."""
    return recipe_path(path).stem
