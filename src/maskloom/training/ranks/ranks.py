"""The processes that train one model together, or a single one, and the operations on them that a step needs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from maskloom.errors import ConfigError, RunFailedError
from maskloom.models.assembled import EncoderWithHeads
from maskloom.objectives.carrying import Carry
from maskloom.objectives.objective import Objective
from maskloom.system.devices import chosen_device
from maskloom.system.launch import is_one_of_several
from maskloom.training.ranks.rank_watch import Work
from maskloom.training.settings import TrainingSection


class RankLostError(RunFailedError, RuntimeError):
    """Another rank has died, hangs or has failed; the message says which."""


class Ranks:
    """The place of this process among those that train together; in this class it trains alone, on one device.

    Every rank makes the same calls in the same order. `is_first` marks the rank that logs, evaluates and writes;
    `is_sharded` tells whether each rank holds only its shard of the weights.
    """

    def __init__(self, device: torch.device | None = None, *, rank: int = 0, world_size: int = 1) -> None:
        self.device = device or torch.device("cpu")
        self.rank, self.world_size = rank, world_size
        self.is_first = rank == 0
        self.is_sharded = False

    def rows(self, settings: TrainingSection) -> slice:
        """Return this rank's sequences of every batch: whole micro-batches, in order, equally many on all ranks.

        Without a micro-batch size, or with "auto", the batch may be cut anywhere. Raises ConfigError if the parts
        cannot be equally many, naming the numbers of processes that work.
        """
        batch_size, world_size = settings.batch_size, self.world_size
        if world_size == 1:
            return slice(0, batch_size)
        size = settings.micro_batch_size if isinstance(settings.micro_batch_size, int) else 1
        num_parts, left = divmod(batch_size, size)
        if left:
            raise ConfigError(
                f"several processes need micro-batches of one size: training.batch_size {batch_size} is not a "
                f"multiple of training.micro_batch_size {size}"
            )
        if num_parts % world_size:
            parts = f" is {num_parts} micro-batches of training.micro_batch_size {size}, which" if size > 1 else ""
            works = ", ".join(str(number) for number in range(1, num_parts + 1) if num_parts % number == 0)
            raise ConfigError(
                f"training.batch_size {batch_size}{parts} cannot be divided among {world_size} processes; numbers of "
                f"processes that work: {works}"
            )
        own = num_parts // world_size * size
        return slice(self.rank * own, (self.rank + 1) * own)

    def rows_of_all(self, carry: Carry) -> Carry:
        """Return the carry of the rows of all ranks, in order, on the CPU, given each rank's own."""
        return tuple(tensor.cpu() for tensor in carry)

    def own_rows(self, carry: Carry) -> Carry:
        """Return the carry of this rank's rows, given that of all rows."""
        return tuple(tensor.chunk(self.world_size)[self.rank].to(self.device) for tensor in carry)

    def sum_(self, values: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks of values by name; the names must be the same on all ranks."""
        return values

    def any_(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.sum_({"flag": float(flag)})["flag"] > 0

    def barrier(self) -> None:
        """Return once every rank has made this call."""
        self.any_(False)

    def counts_and_first_row(self, objective: Objective, batch: Any) -> tuple[dict[str, float], int]:
        """Return the target counts of the whole batch, and the number of its sequences on earlier ranks."""
        names = [f"sequences of rank {rank}" for rank in range(self.world_size)]
        own = dict.fromkeys(names, 0.0) | {names[self.rank]: float(len(batch.lengths))}
        counts = self.sum_(objective.target_counts(batch) | own)
        before = [counts.pop(name) for name in names]
        return counts, int(sum(before[: self.rank]))

    def at(self, work: Work) -> AbstractContextManager[None]:
        """Declare what this rank does within, which decides how long the others wait for it."""
        return nullcontext()

    def spread(self, model: EncoderWithHeads) -> None:
        """Prepare a model for training by all ranks, in place, before its optimiser is created."""
        model.to(self.device)

    def whole(self, model: EncoderWithHeads) -> EncoderWithHeads:
        """Return the model with all its weights, for the first rank to evaluate and export; all ranks must call it."""
        return model

    def add_gradients(
        self, model: EncoderWithHeads, objective: Objective, batch: Any, counts: dict[str, float], *, is_last: bool
    ) -> dict[str, Tensor]:
        """Add the gradients of a micro-batch to the parameters, and return its losses divided by `counts`.

        After the last micro-batch of a step, gradients are sums over all ranks. A GPU may still be computing the
        losses.
        """
        total, means = losses_of(model, objective, batch, counts)
        if total is not None:
            total.backward()
        return means


ONE_RANK = Ranks()


def losses_of(
    model: EncoderWithHeads, objective: Objective, batch: Any, counts: dict[str, float]
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return a batch's losses divided by the target counts of the whole batch: their sum, and each, detached, by name.

    Losses that have no targets are absent; without any targets, the sum is None.
    """
    sums = objective.loss_sums(model, batch)
    means = {name: total / max(counts[name], 1e-12) for name, total in sums.items() if counts[name] > 0}
    total = torch.stack(list(means.values())).sum() if means else None
    return total, {name: mean.detach() for name, mean in means.items()}


def own_shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor: all of it, or its shard."""
    return getattr(tensor.detach(), "_local_tensor", tensor.detach())


def joined_ranks(
    parallel: Literal["ddp", "fsdp", "hsdp"], *, limit: float, device: str = "auto"
) -> AbstractContextManager[Ranks]:
    """Within, join the other processes if torchrun or a scheduler started several; otherwise train alone.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment identify them. A rank that is silent for a third of
    `limit` seconds, or keeps the others waiting for the whole limit, ends them all. Raises ConfigError for inconsistent
    variables or a device that does not exist, and RankLostError if another rank stops this one.
    """
    if not is_one_of_several():
        return nullcontext(Ranks(chosen_device(device)))
    from maskloom.training.ranks.distributed import distributed_ranks  # heavy, and useless to a single process

    return distributed_ranks(parallel, limit=limit, device=chosen_device(device))
