"""Estimates of how long pre-training takes on this machine, from a few timed steps, and what similar runs achieved."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maskloom.config import PretrainRecipe
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.loader import Account
from maskloom.models.architectures import architecture_of
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.display import SILENT, Progress, aligned, in_words, shown_count, three_digits
from maskloom.runs.pretrain import bytes_of_weights, initial_model
from maskloom.runs.pretraining_plan import PhasePlan, check_corpus, check_model, config_for, phase_plans
from maskloom.system.devices import chosen_device, describe_device
from maskloom.system.freed_memory import kept_memory
from maskloom.system.resources import available_memory
from maskloom.training.faults.memory import kept_bytes
from maskloom.training.loop import train_steps
from maskloom.training.precision import fastest_precision, in_precision
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.state import TrainState

# The most work of a timed step, in FLOPs: a second or two on a processor, less on a GPU.
_TIMED_ON_CPU, _TIMED_ELSEWHERE = 5e11, 5e13
_FEWEST_STEPS = 2
# Approximate bytes for torch, blocks of logits and a checkpoint that is being written.
_PROGRAM = 600 << 20
# The paper's: a million steps of 128,000 tokens over 3.3 billion words (A.2).
_MANY_EPOCHS = 40
_COLUMNS = ("size", "parameters", "tokens/s", "steps", "tokens", "epochs", "FLOPs", "time", "memory", "reference")

CURVES = Path(__file__).parent / "reference_curves.json"
"""Evaluations of runs of benchmarks/reference_curves.py: for each size a list of step, tokens and loss."""


def plan_pretraining(
    *recipes: PretrainRecipe, corpus: str | Path, seconds: float = 4.0, progress: Progress = SILENT
) -> dict[str, Any]:
    """Return the cost on a corpus of a recipe, or of one at several sizes, timing each for `seconds`.

    If the recipe has a budget of minutes, `favoured` is the size whose reference run had the lowest held-out loss after
    the number of tokens that it can process in that time. Raises ConfigError or DataError for wrong input; writes
    nothing.
    """
    opened, recipe = Corpus.open(corpus), recipes[0]
    for one in recipes:
        check_model(one)
    check_corpus(recipe, opened)
    if recipe.training.num_threads:
        torch.set_num_threads(recipe.training.num_threads)
    curves = json.loads(CURVES.read_text(encoding="utf-8"))
    if (recipe.objective, recipe.model.architecture) != (curves["objective"], curves["architecture"]):
        curves = {"sizes": {}}  # their losses are not comparable
    device = chosen_device(recipe.training.device)
    free = free_memory(device)
    train, _ = split_documents(opened, recipe.data.held_out_fraction, seed=recipe.seed)
    rows, too_large = [], []
    for one in progress.each("measuring", recipes):
        if free is not None and 4 * bytes_of_weights(config_for(one, opened.tokenizer), one) > free:
            too_large.append(one.model.size)
        else:
            rows.append(_size_plan(one, opened, train, device, seconds, curves))
    with_loss = [row for row in rows if row["reference_loss"] is not None]
    is_choice = recipe.training.minutes is not None and len(with_loss) > 1
    return {
        "corpus": {"folder": str(opened.folder), "num_tokens": opened.num_tokens, "documents": opened.num_documents},
        "device": describe_device(device),
        "minutes": recipe.training.minutes,
        "sizes": rows,
        "too_large": too_large,
        "memory_free": free,
        "favoured": min(with_loss, key=lambda row: row["reference_loss"])["size"] if is_choice else None,
        "reference": {key: value for key, value in curves.items() if key != "sizes"},
        "milestones": {
            one.model.size: curves["sizes"][one.model.size][-1] for one in recipes if one.model.size in curves["sizes"]
        },
    }


def _size_plan(
    recipe: PretrainRecipe,
    corpus: Corpus,
    train: np.ndarray,
    device: torch.device,
    seconds: float,
    curves: dict[str, Any],
) -> dict[str, Any]:
    """Return the cost of all phases of a recipe together, in optimiser steps, real tokens, useful FLOPs and bytes.

    `reference_loss` is the held-out loss in nats of a run of this size on other text after the same number of tokens,
    or None if there is no such run. `is_beyond` means that the run ended earlier, and the loss is its last one.
    """
    model = initial_model(recipe, corpus, None)[0].to(device)
    sums: dict[str, float] = dict.fromkeys(("steps", "tokens", "epochs", "flops", "seconds"), 0.0)
    memory = 0
    plans = phase_plans(recipe)
    for plan in plans:
        row, data = PRETRAINING[recipe.objective], plan.data_for(model.config)
        batch_size = plan.training.batch_size
        account = row.loader(corpus, train, data, batch_size=batch_size, seed=0).account()
        flops = _flops(model.config, account, has_decoder=row.has_decoder)
        limit = _TIMED_ON_CPU if device.type == "cpu" else _TIMED_ELSEWHERE
        num_timed = max(1, min(batch_size, int(limit / flops)))
        loader = row.loader(corpus, train, data, batch_size=num_timed, seed=0)
        per_step, activations = _timed(recipe, plan, model, loader, num_timed, seconds / len(plans))
        minutes, steps = plan.training.minutes, plan.training.steps
        if minutes is not None:
            steps = max(1, int(minutes * 60 / per_step))
        tokens = steps * batch_size * account.tokens_per_instance
        told = (steps, tokens, steps * batch_size / account.num_instances, steps * batch_size * flops, steps * per_step)
        sums = {name: total + value for (name, total), value in zip(sums.items(), told, strict=True)}
        micro = plan.training.micro_batch_size
        memory = max(memory, int(activations * (micro if isinstance(micro, int) else batch_size)))
    loss, is_beyond = _reference(curves["sizes"].get(recipe.model.size, []), sums["tokens"])
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "size": recipe.model.size,
        "num_parameters": num_parameters,
        "tokens_per_second": sums["tokens"] / sums["seconds"],
        **sums,
        "steps": int(sums["steps"]),
        "memory": _PROGRAM + 16 * num_parameters + memory,
        "reference_loss": loss,
        "is_beyond": is_beyond,
    }


def _timed(
    recipe: PretrainRecipe, plan: PhasePlan, model: EncoderWithHeads, loader: Any, num_rows: int, seconds: float
) -> tuple[float, float]:
    """Return the seconds per step, timed on `num_rows` rows with the update separate, and the bytes kept per row."""
    settings = plan.training.model_copy(update={"steps": 10**9, "minutes": None, "micro_batch_size": None})
    device = next(model.parameters()).device
    row = PRETRAINING[recipe.objective]
    plain = row.objective(row.part, plan.data)
    first = with_carry(loader.next_batch({})[0], plain, model, None)
    precision = settings.precision
    if precision == "fastest":
        precision = fastest_precision(model, plain, first) if device.type == "cpu" else "auto"
    objective = in_precision(plain, precision, device)
    state = TrainState.fresh(model, settings)
    kept = kept_bytes(model, objective, first)
    with kept_memory():
        steps = train_steps(state, objective, loader.next_batch, settings=settings, seed=0, ranks=Ranks(device))
        next(steps)  # warm-up
        started, done = time.perf_counter(), 0
        while done < _FEWEST_STEPS or time.perf_counter() - started < seconds:
            next(steps)
            done += 1
        per_step = (time.perf_counter() - started) / done
        synchronize = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
        synchronize()  # a GPU may be computing the next step's gradients
        started = time.perf_counter()
        state.optimizer.step()
        synchronize()
        update = min(time.perf_counter() - started, per_step)
    return update + (per_step - update) * settings.batch_size / num_rows, kept / num_rows


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that are free where a model trains, or None if the system does not say."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def _flops(config: ModelConfig, account: Account, *, has_decoder: bool) -> float:
    """Return the useful FLOPs of training on a sequence of mean length: 2 per weight and token, backward twice forward.

    Attention takes 4 per pair of tokens and dimension; for the vocabulary only predicted positions count. A decoder
    processes those, with as many projections again for its attention to the sequence; a recurrent one attends once.
    """
    length, hidden = account.tokens_per_instance, config.hidden_size
    num_projections = 3 if getattr(config, "gated", False) else 2
    projections = 4 * hidden**2 + num_projections * hidden * config.intermediate_size
    block = 2 * length * projections + 4 * length**2 * hidden
    if (weights := getattr(config, "weights_of_layer", None)) is not None:  # of a recurrent network
        block = 2 * length * weights
    written = account.predictions_per_instance
    has_dense = not has_decoder and architecture_of(config).vocabulary_head == "mlm"
    width = getattr(config, "embedding_size", None) or hidden
    head = 2 * written * width * (has_dense * hidden + config.vocab_size)
    head += 2 * length * hidden * width * (width != hidden)  # the projection of embeddings
    if has_decoder and weights is not None:
        one_way: Any = config.model_copy(update={"causal": True})
        head += 2 * written * config.num_hidden_layers * one_way.weights_of_layer
        head += 4 * written * (length + hidden) * hidden * (one_way.decoder_attention != "none")
    elif has_decoder:
        decoder = 2 * written * (projections + 2 * hidden**2) + 4 * length * hidden**2  # queries, outputs; keys, values
        decoder += 4 * (written**2 + written * length) * hidden
        head += (getattr(config, "num_decoder_layers", None) or config.num_hidden_layers) * decoder
    return 3 * (config.num_hidden_layers * block + head)


def _reference(curve: list[list[float]], tokens: float) -> tuple[float | None, bool]:
    """Return the loss of a reference run after `tokens`, None before its first point, and whether it ended earlier."""
    if not curve or tokens < curve[0][1]:
        return None, False
    logs, losses = [math.log(point[1]) for point in curve], [point[2] for point in curve]
    return float(np.interp(math.log(tokens), logs, losses)), tokens > curve[-1][1]


def plan_lines(result: dict[str, Any], command: str = "maskloom pretrain --corpus CORPUS") -> list[str]:
    """Return a plan as readable lines; `command` is the command that would run it, without its size and output."""
    corpus, minutes, rows = result["corpus"], result["minutes"], result["sizes"]
    lines = [
        f"corpus: {corpus['num_tokens']:,} tokens in {corpus['documents']:,} documents; device: {result['device']}",
        "",
        *aligned([_COLUMNS, *map(_cells, rows)]),
    ]
    for size in result["too_large"]:
        lines.append(f"{size}: its weights, gradients and moments take more memory than is free")
    lines += [
        f"{row['size']}: needs more memory than is free; a training.micro_batch_size below the batch size needs less"
        for row in rows
        if result["memory_free"] is not None and row["memory"] > result["memory_free"]
    ]
    shown = [(size, point) for size, point in result["milestones"].items() if any(row["size"] == size for row in rows)]
    if shown:
        reference = result["reference"]
        lines += ["", f"reference: held-out masked-LM loss in nats on {reference['text']}, {reference['recipe']}"]
        told = [f"{loss:.2f} at step {at:,.0f}, after {shown_count(tokens)} tokens" for _, (at, tokens, loss) in shown]
        lines += aligned([*zip((size for size, _ in shown), told, strict=True)])
    lines += [
        f"{row['size']}: {row['epochs']:,.0f} epochs, more than the paper's {_MANY_EPOCHS}: more text would help more "
        "than more steps"
        for row in rows
        if row["epochs"] > _MANY_EPOCHS
    ]
    if favoured := result["favoured"]:
        lines += ["", f"best for {in_words(60 * minutes)}: {favoured}; run: {command} --size {favoured} --out RUN"]
    return lines


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    loss = row["reference_loss"]
    return (
        row["size"],
        shown_count(row["num_parameters"]),
        f"{row['tokens_per_second']:,.0f}",
        f"{row['steps']:,}",
        shown_count(row["tokens"]),
        three_digits(row["epochs"]),
        f"{row['flops']:.2g}",
        in_words(row["seconds"]),
        f"{row['memory'] / 2**30:.1f} GiB",
        "" if loss is None else f"{'<' if row['is_beyond'] else ''}{loss:.2f}",
    )
