"""Continuing a run with another number of steps, and proving that resuming gives the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from maskloom.checkpoints.tensor_files import safetensors_pieces
from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.errors import ConfigError, DataError, RunFailedError
from maskloom.recipe_files import load_recipe
from maskloom.runs.run_folder import METRICS, RECIPE, check_same_recipe, run_id
from maskloom.system.foreign_files import read_json_value
from maskloom.training.checkpointing.checkpoints import (
    CARRY,
    MODEL,
    OPTIMIZER,
    REST,
    Snapshot,
    check_checkpoint,
    step_folders,
    step_of,
)
from maskloom.training.events import NoLog
from maskloom.training.session import TrainingSession
from maskloom.training.settings import Extension, TrainingSection
from maskloom.training.state import StepReport

BEST_STEP = "best.json"
"""Step, checksum and scores of the best weights of a fine-tuning seed; stored next to its checkpoints."""

RecipeT = TypeVar("RecipeT", PretrainRecipe, FinetuneRecipe)


def changes_of(recipe: PretrainRecipe | FinetuneRecipe) -> list[str]:
    """Return patterns of keys that an extension may change, among phases only in the last; [] with a time budget."""
    if recipe.training.minutes is not None:
        return []
    last = len(recipe.phases) - 1 if isinstance(recipe, PretrainRecipe) else -1
    return ["training.steps", "training.epochs", "training.extensions*", f"phases.{last}.steps"]


def extended_recipe(
    recipe: RecipeT, out: Path, plan: Callable[[RecipeT], TrainingSection], checkpoints: Mapping[str, Path]
) -> RecipeT:
    """Return the recipe with which the run in `out` continues: with its extensions so far, and a new one if needed.

    `plan` resolves a recipe's steps; `checkpoints` are the folders of the last phase, or of all seeds, by stage. A
    recipe whose number of steps differs from the run's extends or shortens the run from the last step that any of
    these has made. Raises ConfigError if the run is beyond the new number of steps, or the recipes differ in other
    keys.
    """
    if not (out / RECIPE).exists():
        return recipe
    check_same_recipe(out, recipe, changes_of(recipe))
    before, steps = plan(load_recipe(type(recipe), out / RECIPE)), plan(recipe).steps
    extensions = before.extensions
    if steps != before.steps:
        asked = _asked(recipe, steps)
        done = max(_last_step(out, stage, folder) for stage, folder in checkpoints.items())
        if (out / METRICS).exists() and not (done and any(map(step_folders, checkpoints.values()))):
            raise ConfigError(f"{asked}: the checkpoints of {out} no longer exist; start a new run with another --out")
        other = "`maskloom export` turns any checkpoint into a model"
        if done and steps <= done:
            raise ConfigError(f"{asked}: {out} has already done {done} steps; {other}")
        if done and steps <= (warmup := before.resolved_warmup_steps()):
            raise ConfigError(f"{asked}: the run warms up for {warmup} steps, so its rate would not fall; {other}")
        # the plan under which that step was made; no step was made under later plans
        planned = next((later.steps for later in extensions if later.at >= done), before.steps)
        extensions = [earlier for earlier in extensions if earlier.at < done]
        extensions += [Extension(at=done, steps=planned)] if done and planned != steps else []  # or one is taken back
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"extensions": extensions})})


def extension_lines(training: TrainingSection) -> list[str]:
    """Return how the last extension of a run affects its learning rate; [] for a run without extensions."""
    if not training.extensions:
        return []
    last = training.extensions[-1]
    warmup = min(training.resolved_warmup_steps(), training.steps - last.at)
    how = f"moves linearly over {warmup:,} steps" if warmup else "moves immediately"
    what = "extended" if training.steps > last.steps else "shortened"
    return [
        f"{what}: planned for {last.steps:,} steps, {training.steps:,} from step {last.at:,} on; the learning rate "
        f"{how} to that of a run of {training.steps:,} steps"
    ]


def _asked(recipe: PretrainRecipe | FinetuneRecipe, steps: int) -> str:
    """Return the number of steps that a recipe asks for, in terms of the flag that sets it."""
    if isinstance(recipe, FinetuneRecipe) and recipe.training.steps is None:
        return f"--epochs {recipe.training.epochs:g} ({steps} steps)"
    if isinstance(recipe, PretrainRecipe) and recipe.phases:
        return f"{steps} steps of the last phase"
    return f"--steps {steps}"


def _last_step(out: Path, stage: str, folder: Path) -> int:
    """Return the last step that a stage is known to have made, from complete checkpoints and its best weights."""
    kept = folder.with_name(BEST_STEP)
    best = read_json_value(kept, "step", int) if kept.exists() else 0
    whole = (path for path in step_folders(folder) if _is_whole(path, run_id(out, stage)))
    return max(best, next(map(step_of, whole), 0))


_SHOWN = 4


class ReplayDiffersError(RunFailedError):
    """Repeated training did not give the stored bits; the message names the first tensors that differ."""


class _Reached(Exception):  # noqa: N818 - it is how the replay ends
    """The replay has reached the step to compare."""


def verify_resuming(session: TrainingSession) -> None:
    """Train from the second newest complete checkpoint to the newest one, and compare all bits with those stored there.

    With only one checkpoint the replay begins at step 0, so the session must be fresh; afterwards its state is that of
    the newest step. Nothing in the run's folder changes. The findings are reported. Raises ReplayDiffersError if
    weights, moments or the position in the data differ, ConfigError for several processes, checkpoints of several, and
    a time budget.
    """
    if session.ranks.world_size > 1:
        raise ConfigError("--verify repeats training steps in one process; start it without torchrun")
    if session.budget is not None:
        raise ConfigError("--verify: a replay cannot repeat a learning rate that followed the clock (training.minutes)")
    whole = [folder for folder in step_folders(session.checkpoints) if _is_whole(folder, session.run_id)]
    if not whole:
        session.say(f"{session.checkpoints}: no checkpoint yet, so there is nothing to verify")
        return
    newest, start = whole[0], whole[1] if len(whole) > 1 else None
    if not (newest / MODEL).exists():
        raise ConfigError(f"{newest}: several processes wrote it in shards, which --verify does not compare")
    target = step_of(newest)
    session.say(f"verifying: repeating steps {1 + (step_of(start) if start else 0)} to {target}")
    _replay(session, start, target)
    _compare(Snapshot.of(session.state, {}), newest, session)


def sum_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, types and shapes, in a canonical order."""
    digest = hashlib.sha256()
    for piece in safetensors_pieces(tensors):
        digest.update(piece)
    return digest.hexdigest()


def differing_tensors(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are not bitwise equal, with the largest difference if type and shape match."""
    found = []
    for name in sorted(first.keys() | second.keys()):
        a, b = first.get(name), second.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found.append(name)
        elif sum_of_tensors({name: a}) != sum_of_tensors({name: b}):
            largest = float((a.cpu().double() - b.cpu().double()).abs().max())
            found.append(f"{name} (largest difference {largest:.3g})")
    return found


def _is_whole(folder: Path, run: str | None) -> bool:
    try:
        check_checkpoint(folder, run=run)
    except DataError:
        return False  # resuming reports it
    return True


def _replay(session: TrainingSession, start: Path | None, target: int) -> None:
    """Advance the session's state from a checkpoint to a later step, with its files in a temporary folder."""

    def stop_at_target(report: StepReport) -> None:
        if report.step == target:
            raise _Reached

    place = session.checkpoints.with_name(f".{session.checkpoints.name}.verify")
    shutil.rmtree(place, ignore_errors=True)
    again = replace(
        session,
        settings=session.settings.model_copy(update={"save_every": None, "evaluate_every": None}),
        checkpoints=place / "checkpoints",
        log=NoLog(place / "events.jsonl"),
        evaluate=None,
        on_step=stop_at_target,
        is_enough=None,
        memory={},
    )
    try:
        again.checkpoints.mkdir(parents=True)
        if start is not None:
            shutil.copytree(start, again.checkpoints / start.name, copy_function=_linked)
            again.resume()
        with suppress(_Reached):
            again.run()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _linked(source: str, target: str) -> None:
    """Link a file, so that a large checkpoint takes no more room, or copy it where the file system has no links."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)


def _compare(replayed: Snapshot, kept: Path, session: TrainingSession) -> None:
    """Report what is identical; raises ReplayDiffersError if something is not."""
    differing: list[str] = []
    compared = [("weights", MODEL, replayed.model), ("moments", OPTIMIZER, replayed.optimizer)]
    for what, name, tensors in [*compared, ("carried", CARRY, replayed.carry)] if replayed.carry else compared:
        stored = load_file(kept / name)
        before, now = sum_of_tensors(stored), sum_of_tensors(tensors)
        session.say(
            f"verifying: {what:<8} stored {before}, repeated {now}: {'identical' if before == now else 'DIFFERENT'}"
        )
        differing += [] if before == now else differing_tensors(stored, tensors)
    content, again = json.loads((kept / REST).read_text(encoding="utf-8")), json.loads(replayed.rest)
    for key in ("step", "position", "optimizer_steps"):
        if content[key] != again[key]:
            differing.append(f"{key}: {content[key]} stored, {again[key]} repeated")
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise ReplayDiffersError(f"{kept}: repeated steps gave different values: {'; '.join(differing[:_SHOWN])}{more}")
    session.say(f"verifying: bit-identical, including the position in the data: {kept}")
