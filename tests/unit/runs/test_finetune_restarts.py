"""What all seeds of a fine-tuning run share."""

from dataclasses import fields
from typing import Any

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.objectives.objective import WithMixPenalty
from maskloom.runs.finetune_restarts import FinetunePlan
from maskloom.tasks.kinds import make_task


def test_the_penalty_of_a_mix_is_the_recipes():
    task, given = make_task("single", ("a", "b")), dict[str, Any].fromkeys(field.name for field in fields(FinetunePlan))
    plain, penalised = (
        FinetunePlan(**{**given, "task": task, "recipe": load_recipe(FinetuneRecipe, None, [f"mix.l2={weight}"])})
        for weight in (0.0, 0.5)
    )
    assert not isinstance(plain.objective, WithMixPenalty)
    assert isinstance(penalised.objective, WithMixPenalty)
    assert penalised.objective.weight == 0.5
