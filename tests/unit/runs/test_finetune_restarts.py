"""What all seeds of a fine-tuning run share."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.objectives.objective import WithMixPenalty
from maskloom.runs import finetune_restarts
from maskloom.runs.finetune_restarts import FinetunePlan, _DevWatch
from maskloom.tasks.kinds import make_task
from maskloom.training.ranks.ranks import ONE_RANK


def test_the_penalty_of_a_mix_is_the_recipes():
    task, given = make_task("single", ("a", "b")), dict[str, Any].fromkeys(field.name for field in fields(FinetunePlan))
    plain, penalised = (
        FinetunePlan(**{**given, "task": task, "recipe": load_recipe(FinetuneRecipe, None, [f"mix.l2={weight}"])})
        for weight in (0.0, 0.5)
    )
    assert not isinstance(plain.objective, WithMixPenalty)
    assert isinstance(penalised.objective, WithMixPenalty)
    assert penalised.objective.weight == 0.5


def test_patience_counts_an_evaluation_that_a_run_repeats_once(tmp_path, monkeypatch):
    training = SimpleNamespace(patience=2)
    plan: Any = SimpleNamespace(recipe=SimpleNamespace(training=training), task=SimpleNamespace(primary="accuracy"))
    state: Any = SimpleNamespace(model=None, step=0)
    watch, kept = _DevWatch(plan, state, tmp_path, ONE_RANK), []
    monkeypatch.setattr(watch, "_scored", lambda model: {"step": state.step, "scores": {"accuracy": 0.5}})
    monkeypatch.setattr(watch, "_keep", lambda model, entry: kept.append(watch.memory.setdefault("best", entry)))
    for step in (10, 20, 10, 20):  # after a step that is not finite the run goes back to an earlier checkpoint
        state.step = step
        watch.evaluate()
    assert [entry["step"] for entry in watch.memory["evaluations"]] == [10, 20]
    assert not watch.is_enough()
    state.step = 30
    watch.evaluate()
    assert watch.is_enough()
    assert len(kept) == 1


@pytest.mark.parametrize(("killed_at", "best"), [("before", 10), ("after", None)])
def test_a_kill_while_better_weights_are_saved_costs_the_best_only_if_they_are_there(
    tmp_path, monkeypatch, killed_at, best
):
    def save(model: Any, folder: Path, **_: Any) -> None:
        if state.step == 20 and killed_at == "before":
            raise KeyboardInterrupt
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text(str(state.step))
        if state.step == 20:
            raise KeyboardInterrupt

    task = SimpleNamespace(primary="accuracy", published_config={})
    plan: Any = SimpleNamespace(recipe=SimpleNamespace(training=SimpleNamespace(patience=None)), task=task)
    state: Any = SimpleNamespace(model=None, step=10)
    watch = _DevWatch(plan, state, tmp_path, ONE_RANK)
    monkeypatch.setattr(watch, "_scored", lambda model: {"step": state.step, "scores": {"accuracy": state.step}})
    monkeypatch.setattr(finetune_restarts, "save_model", save)
    watch.evaluate()
    state.step = 20
    with pytest.raises(KeyboardInterrupt):
        watch.evaluate()
    resumed = _DevWatch(plan, state, tmp_path, ONE_RANK)
    resumed.recall()
    assert resumed.memory.get("best", {}).get("step") == best
