"""What a run reports before it starts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from maskloom.config import FinetuneRecipe, FinetuneTraining, PretrainRecipe, TrainingSection
from maskloom.data.loader import Account
from maskloom.errors import ConfigError, amount
from maskloom.models.assembled import EncoderWithHeads
from maskloom.runs.display import shown_count, three_digits
from maskloom.runs.pretraining_plan import PhasePlan
from maskloom.runs.run_folder import described
from maskloom.system.devices import bf16_instructions
from maskloom.tasks.encoding import EncodedData

_SHOWN_DEFAULTS = ("steps", "epochs", "batch_size", "learning_rate")


def model_line(model: EncoderWithHeads, size: str | None = None) -> str:
    """Return the parameter count and sizes of a model, of a new one after the name of its size."""
    config, name = model.config, f"{size}: " if size else ""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"model: {name}{shown_count(num_parameters)} parameters, {amount(config.num_hidden_layers, 'layer')} of "
        f"{config.hidden_size}, a vocabulary of {config.vocab_size:,}"
    )


def repeated_text_lines(init: Path, corpus: str) -> list[str]:
    """Return a warning if the run that made the model folder `init` read the corpus with this fingerprint, or []."""
    run = init.resolve().parent
    with suppress(ConfigError):  # not the model of a run
        if described(run)["inputs"].get("corpus") == corpus:
            what = "so it has read what this run reads and holds out"
            return [f"warning: {run} was trained on this corpus, {what}; continue it with --resume --steps N instead"]
    return []


def phase_lines(plan: PhasePlan, account: Account) -> list[str]:
    """Return what one phase trains on: its steps, sequences and tokens per step, and the resulting epochs."""
    training, data = plan.training, plan.data
    work = _work(training, account.num_instances, "sequences", account.tokens_per_instance, data.max_length)
    predicted = f"{account.predictions_per_instance:.1f} predictions per sequence"
    lines = [f"{plan.name}: {work}", f"{plan.name}: {_optimisation(training)}; {predicted}"]
    if account.cut_fraction > 0:
        lines.append(
            f"{plan.name}: data.max_predictions_per_seq = {data.resolved_max_predictions()} drops "
            f"{account.cut_fraction:.1%} of the predictions that data.masked_lm_prob = {data.masked_lm_prob} asks for"
        )
    return lines


def precision_lines(training: TrainingSection, device: torch.device) -> list[str]:
    """Return how to make a run in fp32 faster if this processor also multiplies bf16, or nothing."""
    can_try = training.precision == "auto" and device.type == "cpu" and training.parallel == "ddp"
    if not can_try or (instructions := bf16_instructions()) is None:
        return []
    return [f"precision: fp32; this processor also has bf16 ({instructions}), which training.precision=fastest tries"]


def finetuning_lines(recipe: FinetuneRecipe, settings: TrainingSection, data: EncodedData) -> list[str]:
    """Return what a fine-tuning run trains on and for how long; an epoch is one pass over all examples or windows."""
    unit = "examples" if len(data) == data.num_examples else "windows"
    work = _work(settings, len(data), unit, float(data.lengths.mean()), recipe.data.max_length)
    seeds = f", {recipe.restarts} seeds" if recipe.restarts > 1 else ""
    training, plain, lengths = recipe.training, FinetuneTraining(), ("minutes", "steps", "epochs")
    given = [name for name in lengths if getattr(training, name) != getattr(plain, name)]  # only the first one counts
    told = [f"training.{name} = {getattr(training, name)}: ignored, training.{given[0]} is set" for name in given[1:]]
    return [*told, f"task: {recipe.task}; {work}{seeds}", _optimisation(settings), *default_lines(recipe)]


def _work(training: TrainingSection, num_units: int, unit: str, tokens_per_unit: float, max_length: int) -> str:
    tokens = training.batch_size * tokens_per_unit
    if training.minutes is not None:
        steps, whole = f"{training.minutes:g} minutes, in steps", "epochs"
    else:
        steps = amount(training.steps, "step")
        epochs = three_digits(training.steps * training.batch_size / num_units)
        whole = f"{shown_count(training.steps * tokens)} tokens, {epochs} epoch{'' if epochs == '1' else 's'}"
    return (
        f"{steps} of {training.batch_size} {unit} up to {max_length} tokens, about {tokens:,.0f} tokens per step; "
        f"{whole} of {num_units:,} {unit}"
    )


def default_lines(recipe: PretrainRecipe | FinetuneRecipe) -> list[str]:
    """Return one line with the most important keys that were left at their defaults, or nothing."""
    training = recipe.training
    keys = [name for name in _SHOWN_DEFAULTS if hasattr(training, name) and name not in training.model_fields_set]
    if isinstance(recipe, PretrainRecipe):
        own = [phase.model_fields_set for phase in recipe.phases]
        keys = [name for name in keys if not own or not all(name in given for given in own)]
    elif training.steps is not None:
        keys = [name for name in keys if name != "epochs"]
    if training.minutes is not None:
        keys = [name for name in keys if name not in ("steps", "epochs")]
    values = [f"training.{name} = {getattr(training, name)}" for name in keys if getattr(training, name) is not None]
    if "max_length" not in recipe.data.model_fields_set and not getattr(recipe, "phases", None):
        values.append(f"data.max_length = {recipe.data.max_length}")
    if isinstance(recipe, FinetuneRecipe) and "task" not in recipe.model_fields_set:
        values.insert(0, f"task = {recipe.task}")
    return [f"by default: {', '.join(values)}"] if values else []


def _optimisation(training: TrainingSection) -> str:
    warmup = amount(training.resolved_warmup_steps(), "step")
    if training.minutes is not None:
        warmup = f"{training.warmup_ratio:.0%} of the time"
    then = "falling to 0" if training.schedule in ("linear", "google") else training.schedule
    return f"learning rate {training.learning_rate:g} after {warmup} of warm-up, then {then}"
