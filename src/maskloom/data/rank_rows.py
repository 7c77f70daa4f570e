"""Which sequences of a batch each of several processes makes."""

from __future__ import annotations

from typing import Literal

from maskloom.errors import ConfigError


def rows_of_rank(
    batch_size: int, micro_batch_size: int | Literal["auto"] | None, *, rank: int, world_size: int
) -> slice:
    """Return the sequences of a batch that a rank makes: whole micro-batches, in order, as many as any other rank.

    Without a micro-batch size, or with "auto", a rank's part may be cut anywhere. Together the ranks have the sequences
    of the batch in the order in which one process would have them. Raises ConfigError, with the numbers of processes
    that work, when the parts cannot be equally many.
    """
    if world_size == 1:
        return slice(0, batch_size)
    size = micro_batch_size if isinstance(micro_batch_size, int) else 1
    if batch_size % size:
        raise ConfigError(
            f"several processes need micro-batches of one size: training.batch_size {batch_size} is no multiple of "
            f"training.micro_batch_size {size}"
        )
    num_parts = batch_size // size
    if num_parts % world_size:
        what = f"training.batch_size {batch_size}"
        if size > 1:
            what += f" is {num_parts} micro-batches of training.micro_batch_size {micro_batch_size}, which"
        sizes = ", ".join(str(number) for number in range(1, num_parts + 1) if num_parts % number == 0)
        raise ConfigError(f"{what} cannot be shared by {world_size} processes; numbers of processes that work: {sizes}")
    own = num_parts // world_size * size
    return slice(rank * own, (rank + 1) * own)
