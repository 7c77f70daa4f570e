from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from maskloom.errors import ConfigError
from maskloom.training.ranks.distributed import DistributedRanks
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection


def rows_of_rank(batch_size: int, micro: int | None, *, rank: int, world_size: int) -> slice:
    settings = TrainingSection(batch_size=batch_size, micro_batch_size=micro)
    return Ranks(rank=rank, world_size=world_size).rows(settings)


@pytest.mark.parametrize(("batch_size", "micro", "sizes"), [(24, None, (1, 2, 3, 4, 24)), (24, 4, (1, 2, 3, 6))])
def test_the_parts_of_all_ranks_are_the_batch_in_order(batch_size: int, micro: int | None, sizes: tuple) -> None:
    batch = np.arange(batch_size)
    for world_size in sizes:
        parts = [batch[rows_of_rank(batch_size, micro, rank=r, world_size=world_size)] for r in range(world_size)]
        assert np.concatenate(parts).tolist() == batch.tolist()
        assert {len(part) for part in parts} == {batch_size // world_size}
        assert batch_size // world_size % (micro or 1) == 0


def test_one_process_takes_everything_also_in_micro_batches_that_do_not_fit() -> None:
    assert rows_of_rank(22, 4, rank=0, world_size=1) == slice(0, 22)


def test_a_number_of_ranks_that_does_not_divide_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"batch_size 12 cannot be divided among 5 .* work: 1, 2, 3, 4, 6, 12$"):
        rows_of_rank(12, None, rank=0, world_size=5)
    with pytest.raises(ConfigError, match=r"6 micro-batches of training.micro_batch_size 4, which .* work: 1, 2, 3, 6"):
        rows_of_rank(24, 4, rank=0, world_size=4)
    with pytest.raises(ConfigError, match=r"batch_size 22 is not a multiple of training.micro_batch_size 4"):
        rows_of_rank(22, 4, rank=0, world_size=2)


@pytest.mark.parametrize(
    ("local", "message"),
    [(None, "LOCAL_WORLD_SIZE is not set"), ("3", "4 processes are not a multiple of the 3"), ("0", "of the 0")],
)
def test_machines_share_weights_only_if_their_processes_are_known(monkeypatch, local: str | None, message: str) -> None:
    """srun does not set the number, and without it one copy was shared by all machines."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    watch: Any = SimpleNamespace(rank=0, world_size=4)
    control: Any = None
    with pytest.raises(ConfigError, match=message):
        DistributedRanks("hsdp", watch, control, torch.device("cpu"))._mesh()
