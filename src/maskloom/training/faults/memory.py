"""Memory in training: whether a batch fits, what to do if it runs out, and micro-batches that fit."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskloom.errors import ConfigError, RunFailedError
from maskloom.models.assembled import EncoderWithHeads, prepare_blocks
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.objective import Objective, model_device
from maskloom.system.files import write_json
from maskloom.system.foreign_files import read_json_object
from maskloom.system.freed_memory import release_free_memory
from maskloom.system.resources import available_memory
from maskloom.training.precision import in_precision
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

# Wordings of torch's allocators, of the C++ library, of CUDA's (CUBLAS_STATUS_ALLOC_FAILED) and of oneDNN, if it has no
# room for its code and buffers; in lower case.
_RAN_OUT = (
    *("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "bad_alloc"),
    *("status_alloc_failed", "could not create a primitive"),
)
Losses = dict[str, list[Tensor]]
_NOTE = "micro_batch_size.json"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on the CPU or on an accelerator."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _RAN_OUT)


class MemoryExhaustedError(RunFailedError, RuntimeError):
    """Memory ran out, for a single sequence or on one of several ranks; the weights were not updated.

    `micro_batch_size` is a size to restart several ranks with, as they cannot halve it in the middle of a step.
    """

    def __init__(self, message: str, *, micro_batch_size: int | None = None) -> None:
        super().__init__(message)
        self.micro_batch_size = micro_batch_size


def in_micro_batches_that_fit(
    accumulate: Callable[[int | None], Losses], batch: Any, state: TrainState, settings: TrainingSection, ranks: Ranks
) -> Losses:
    """Return `accumulate(size)`, which adds the gradients of a batch in micro-batches of a size (None: all at once).

    If memory runs out, the size is halved for good and the batch repeated; the failed attempt has no effect. Raises
    MemoryExhaustedError if not even one sequence fits, or if other ranks wait in collectives that this one cannot join.
    """
    wanted = settings.micro_batch_size
    while True:
        state.optimizer.zero_grad(set_to_none=True)
        size = state.micro_batch_size or (wanted if isinstance(wanted, int) else None)
        try:
            return accumulate(size)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            why = str(error) or type(error).__name__
        # outside the handler, as the exception kept the activations of the attempt alive
        state.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        release_free_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        state.micro_batch_size = _halved(size, batch, why, state.step + 1, ranks)


def _halved(size: int | None, batch: Any, why: str, step: int, ranks: Ranks) -> int:
    """Return half the micro-batch size; raises MemoryExhaustedError at size 1, and always with several ranks."""
    whole, here = len(batch.split(1)), f"rank {ranks.rank} of {ranks.world_size}"
    size = min(size or whole, whole)
    if size == 1:
        why = f"{why} ({here})" if ranks.world_size > 1 else why
        raise MemoryExhaustedError(
            f"step {step}: memory ran out on a micro-batch of one sequence (the longest of the batch has "
            f"{int(max(batch.lengths))} tokens): {why}. The weights were not changed. Use shorter sequences "
            "(data.max_length), a smaller model or more memory."
        )
    half = (size + 1) // 2
    if ranks.world_size > 1:
        raise MemoryExhaustedError(
            f"step {step}: memory ran out on {here} ({why}) and the weights were not changed; when restarted by "
            "torchrun's --max-restarts or with --resume, all ranks continue from the last checkpoint in micro-batches "
            f"of {half}",
            micro_batch_size=half,
        )
    return half


def note_micro_batch_size(folder: Path, size: int | None) -> None:
    """Note in a run's folder the micro-batch size to continue with after a restart; None writes nothing."""
    if size is not None:
        write_json(folder / _NOTE, {"micro_batch_size": size})


def noted_micro_batch_size(folder: Path, ranks: Ranks) -> int:
    """Return the size noted in a run's folder, the same on all ranks, or 0."""
    path = folder / _NOTE
    noted = read_json_object(path)["micro_batch_size"] if ranks.is_first and path.exists() else 0
    return int(ranks.sum_({"size": float(noted)})["size"])


# Number of units whose activations are measured.
_NUM_TRIED = 4
# Fraction of free memory for saved activations; the backward pass needs temporary ones as well.
_SHARE_FOR_ACTIVATIONS = 0.5
# Bytes per token for reading a batch and, per unit of width and layer, at most for its activations; number of units
# whose tokens are counted.
_BYTES_READ, _MOST_KEPT, _NUM_COUNTED = 100, 200, 64


def require_room_for_batch(
    what: str,
    settings: TrainingSection,
    ranks: Ranks,
    config: ModelConfig,
    max_length: int,
    units: Callable[[int], Any],
    start: Callable[[], tuple[EncoderWithHeads, Objective]],
) -> None:
    """Raise ConfigError if a step takes more memory than is available: the system would grant it, then end the process.

    A batch is read as a whole and, without micro-batches, keeps the activations of all units at the same time (on a
    GPU, running out is an error, and `in_micro_batches_that_fit` handles it). Only a batch that may be too large, with
    units of up to `max_length` tokens, is measured: `units` returns a batch of a number of units, `start` the model and
    the objective.
    """
    number, free = len(range(settings.batch_size)[ranks.rows(settings)]), _free_here()
    is_whole = settings.micro_batch_size is None and ranks.device.type == "cpu"
    most = _BYTES_READ + (_MOST_KEPT * config.hidden_size * config.num_hidden_layers if is_whole else 0)
    if free is None or number * max_length * most <= free:
        return
    some = units(num_counted := min(_NUM_COUNTED, number))
    num_tokens, kept = number * some.num_tokens / num_counted, 0.0
    if is_whole:
        model, objective = start()
        prepare_blocks(model, recompute=settings.activation_checkpointing, compile_=False)
        few = with_carry(some.split(_NUM_TRIED)[0], objective, model, None)
        precision = "bf16" if settings.precision == "fastest" else settings.precision
        parts, objective = few.split(1), in_precision(objective, precision, ranks.device)
        kept = _kept_per_unit(model, objective, few, parts) * len(parts) / few.num_tokens
    if (needed := num_tokens * (_BYTES_READ + kept)) > free:
        fits = 'training.micro_batch_size ("auto" chooses one) or ' if num_tokens * _BYTES_READ <= free else ""
        raise ConfigError(
            f"{what}: a batch of {number * some.num_sequences / num_counted:,.0f} sequences, about {num_tokens:,.0f} "
            f"tokens, takes about {needed / 2**30:,.1f} GiB of memory, but {free / 2**30:,.1f} are available; set "
            f"{fits}a smaller batch size"
        )


def _free_here() -> int | None:
    """Return this process's share of the available memory, or None if the system does not say."""
    free = available_memory()
    return None if free is None else free // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)


def fitting_micro_batch_size(model: EncoderWithHeads, objective: Objective, batch: Any, ranks: Ranks) -> int:
    """Return how many sequences as long as a batch's longest fit into free memory: a power of two, or all.

    A forward pass over a few of them measures what each saves for the backward pass. All ranks return the same number.
    """
    parts, device = batch.split(1), model_device(model)
    longest = sorted(parts, key=lambda part: -int(np.sum(part.lengths)))[:_NUM_TRIED]
    per_sequence = _kept_per_unit(model, objective, batch, longest)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _free_here()
    size = len(parts) if free is None else int(_SHARE_FOR_ACTIVATIONS * free / max(1.0, per_sequence))
    sizes = {str(rank): float(rank == ranks.rank and min(size, len(parts))) for rank in range(ranks.world_size)}
    least = int(min(ranks.sum_(sizes).values()))
    return least if least == len(parts) else 1 << max(1, least).bit_length() - 1


def _kept_per_unit(model: EncoderWithHeads, objective: Objective, batch: Any, parts: list[Any]) -> float:
    """Return the mean bytes that each of some parts of a batch, of one unit, saves for the backward pass.

    What any number of units save once, such as weights in half precision, is found by a pass over two of them together.
    """
    kept, pair = partial(kept_bytes, model, objective), batch.split(2)[0]
    apart = pair.split(1)
    once = sum(map(kept, apart)) - kept(pair) if len(apart) > 1 else 0
    return sum(map(kept, parts)) / len(parts) - max(0, once)


def kept_bytes(model: EncoderWithHeads, objective: Objective, batch: Any) -> int:
    """Return the bytes that a forward pass saves for the backward pass, without weights."""
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    device = model_device(model)
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        objective.loss_sums(model.train(), batch)
    return sum(kept.values())
