"""The sequence-to-sequence task that a recipe describes."""

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.generation.search import Generation
from maskloom.tasks.kinds import KINDS


def test_loss_and_search_are_those_of_the_section():
    section = {"beam": 3, "length_penalty": 1.5, "min_tokens": 2, "no_repeat_ngram": 4, "max_target_length": 9}
    changes = [f"seq2seq.{name}={value}" for name, value in {**section, "label_smoothing": 0.2}.items()]
    recipe, kind = load_recipe(FinetuneRecipe, None, ['task="seq2seq"', *changes]), KINDS["seq2seq"]
    objective = kind.make((), None, recipe.task_settings(kind.settings)).objective
    assert objective.label_smoothing == 0.2
    search = {"beam": 3, "length_penalty": 1.5, "min_tokens": 2, "no_repeat_ngram": 4}
    assert objective.generation == Generation(max_tokens=9, **search)
