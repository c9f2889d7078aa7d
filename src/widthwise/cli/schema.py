"""`widthwise schema`: what may stand in a recipe, for editors."""

from widthwise.cli.terminal import say_json


def schema() -> None:
    """Print the JSON schema of recipes, with which editors complete keys, explain them and mark mistakes.

    Example: `widthwise schema > recipe.schema.json`, then `# yaml-language-server: $schema=recipe.schema.json` as the
    first line of a recipe.
    """
    from widthwise.experiments.recipes import recipe_schema

    say_json(recipe_schema())
