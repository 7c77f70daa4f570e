"""Write docs/RECIPES.md from what the program says of its recipes: python tools/recipe_reference.py."""

from pathlib import Path

from maskloom.runs.recipes import reference

PAGE = Path(__file__).parents[1] / "docs" / "RECIPES.md"

if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
