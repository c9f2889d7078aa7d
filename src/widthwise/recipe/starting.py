"""The recipes that come with the package, copied to start from."""

import shutil
from pathlib import Path

from widthwise.bundled import recipes_folder
from widthwise.files import new_folder


def copy_recipes(folder: Path | str) -> int:
    """Writes all of them into a new folder, and returns how many. Raises UserError where the folder is not free."""
    with new_folder(Path(folder)) as partial:
        return len([shutil.copyfile(recipe, partial / recipe.name) for recipe in recipes_folder().glob("*.yaml")])
