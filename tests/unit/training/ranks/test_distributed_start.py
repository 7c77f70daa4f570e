"""Ranks that wait for others report which ones."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from maskloom.errors import ConfigError
from maskloom.training.ranks import distributed
from maskloom.training.ranks.distributed import distributed_ranks
from maskloom.training.ranks.ranks import RankLostError


def _name(store: HashStore, rank: int, world_size: int, seconds: float = 10.0) -> str:
    return distributed._name_of_this_start(store, rank, world_size, seconds)


@pytest.mark.parametrize(("rank", "missing"), [(0, "1, 2"), (2, "0, 1")])
def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch, rank: int, missing: str) -> None:
    monkeypatch.setattr(distributed, "_SECONDS_BETWEEN_LOOKS", 0.01)
    expected = rf"rank {missing} has not joined within 0 s \(10 \* training.rank_timeout\)"
    with pytest.raises(RankLostError, match=expected):
        _name(HashStore(), rank, 3, 0.1)


def test_each_start_on_the_same_store_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun keeps its store over restarts, and a node that joins late counts none of them."""
    monkeypatch.setattr(distributed, "_SECONDS_BETWEEN_LOOKS", 0.01)
    store, names = HashStore(), set()
    with ThreadPoolExecutor(2) as pool:
        for order in ((0, 1), (1, 0), (1, 0)):
            first = pool.submit(_name, store, order[0], 2)
            with pytest.raises(TimeoutError):
                first.result(0.05)
            second = pool.submit(_name, store, order[1], 2)
            assert first.result() == second.result()
            names.add(first.result())
    assert len(names) == 3


def test_a_first_rank_that_does_not_come_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_SECONDS_BETWEEN_LOOKS", 0.01)
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_name, [store] * 2, range(2), [2] * 2))
    with pytest.raises(RankLostError, match=r"rank 0 has not joined"):
        _name(store, 1, 2, 0.1)


@pytest.mark.parametrize(("name", "text"), [("RANK", "one"), ("WORLD_SIZE", "-2"), ("MASTER_PORT", "70000")])
def test_variables_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29400", "MASTER_ADDR": "127.0.0.1"}
    for key, value in {**right, name: text}.items():
        monkeypatch.setenv(key, value)
    start = distributed_ranks("ddp", limit=3.0, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=f"{name}='{text}' is not a number"), start:
        pass
