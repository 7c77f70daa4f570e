"""Commands that list and explain recipes."""

from __future__ import annotations

from typing import Annotated

import typer

from maskloom.cli.options import AsJson, print_json, say

recipes_app = typer.Typer(help="List the shipped recipes, and explain every key.")


def _complete_name(incomplete: str) -> list[str]:
    from maskloom.recipe_files import shipped_recipes

    return [name for name in ("pretrain", "finetune", *shipped_recipes()) if name.startswith(incomplete)]


@recipes_app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the shipped recipes, for use with `--recipe NAME`."""
    if context.invoked_subcommand is not None:
        return
    from maskloom.runs.recipe_reference import listed_recipes

    recipes = listed_recipes()
    if as_json:
        print_json(recipes)
        return
    width = max(map(len, recipes))
    for name, about in recipes.items():
        say(f"{name:<{width}}  {about}")
    typer.echo("\nuse one with --recipe NAME; maskloom recipes show NAME explains it, key by key")


@recipes_app.command("show")
def show_recipe(
    name: Annotated[
        str,
        typer.Argument(
            help="A shipped recipe, a TOML file, or pretrain or finetune for the defaults.",
            autocompletion=_complete_name,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Explain a recipe: every key with its value, its default and what it means."""
    from maskloom.runs.recipe_reference import explained, explained_lines

    content = explained(name)
    if as_json:
        print_json(content)
    else:
        say(*"\n".join(explained_lines(content)).split("\n"))
