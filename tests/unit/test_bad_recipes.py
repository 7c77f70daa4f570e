"""Invalid recipes are refused, naming the invalid key, before anything else is checked."""

import pytest

from tools.fuzzing.recipes import BAD_RECIPES, outcome_of


@pytest.mark.parametrize("recipe", BAD_RECIPES, ids=lambda recipe: recipe.what)
def test_wrong_recipes_are_refused_with_their_key(tmp_path, recipe):
    assert outcome_of(recipe, tmp_path) == ""
