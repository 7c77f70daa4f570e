"""Replay a step from the dump that a run wrote when the loss or gradient was not finite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file as load_tensors

from maskloom.data import batch as batches
from maskloom.data import spelling
from maskloom.data.corpus.words import RaggedIds
from maskloom.errors import DataError
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import with_carry
from maskloom.objectives.objective import Objective
from maskloom.system.foreign_files import check_regular, read_json_object
from maskloom.training.faults.nonfinite import BATCH, CARRY, REPORT, WEIGHTS
from maskloom.training.loop import StepDraws, accumulate_gradients
from maskloom.training.ranks.ranks import Ranks


@dataclass(frozen=True)
class Replay:
    """The results of replaying a dumped step."""

    losses: dict[str, float]
    gradient_norm: float


def replay_dump(folder: Path, model: EncoderWithHeads, objective: Objective) -> Replay:
    """Replay a dumped step, with its weights, batch and dropout draws, and return the results.

    `model` must have the dumped architecture; it receives the dumped weights, and keeps its gradients for inspection.
    Results are bit-identical on the same machine with the same torch and thread count. Raises DataError for a folder
    that is not a dump, or that contains no weights.
    """
    try:
        report = read_json_object(folder / REPORT)
        first = folder.with_name(folder.name.replace(f"-rank-{report['rank']}", "-rank-0"))
        for path in (folder / BATCH, first / WEIGHTS):
            check_regular(path)
        batch = batch_of_data(report["batch"], load_arrays(folder / BATCH))
        weights = load_tensors(first / WEIGHTS)
        carry = load_tensors(folder / CARRY) if (folder / CARRY).exists() else {}
        carried = tuple(carry[str(number)] for number in range(len(carry))) or None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: cannot be replayed: {error}") from None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    model.zero_grad(set_to_none=True)
    model.train()
    losses = accumulate_gradients(
        model,
        objective,
        with_carry(batch, objective, model, carried),
        report["micro_batch_size"],
        draws=StepDraws(report["seed"], report["step"] - 1),
        ranks=_RankOfDump(report["rank"], report["target_counts"], report["first_row"]),
    )
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return Replay(losses, float(torch.nn.utils.get_total_norm(gradients, foreach=True)))


class _RankOfDump(Ranks):
    """A single process that computes one rank's part of a batch as the rank did among the others."""

    def __init__(self, rank: int, counts: dict[str, float], first_row: int) -> None:
        super().__init__(rank=rank, world_size=rank + 1)
        self._sums = counts | ({"sequences of rank 0": first_row} if rank else {})

    def sum_(self, values: dict[str, float]) -> dict[str, float]:
        """Return the counts of the whole batch."""
        return values | self._sums


def batch_of_data(described: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """Return the batch of a dump; raises ValueError when its class is not a batch class."""
    kind = getattr(batches, described["class"], None) or getattr(spelling, described["class"], None)
    if not (isinstance(kind, type) and issubclass(kind, batches.PackedBatch)):
        raise ValueError(f"{described['class']!r} is no kind of batch")
    values = {name: array for name, array in arrays.items() if "." not in name}
    for name in {name.partition(".")[0] for name in arrays.keys() - values.keys()}:
        values[name] = RaggedIds(arrays[f"{name}.flat"], arrays[f"{name}.edges"])
    return kind(**values, **described["values"])
