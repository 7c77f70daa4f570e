"""Ranks that wait for others report which ones."""

import pytest
import torch

from maskloom.errors import ConfigError
from maskloom.training.ranks.distributed import _await_all, distributed_ranks
from maskloom.training.ranks.ranks import RankLostError


class _Store:
    """Knows only the first rank."""

    def check(self, keys: list[str]) -> bool:
        return keys == ["sign/0"]


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(RankLostError, match=r"rank 1, 2 has not joined within 1 s \(10 \* training.rank_timeout\)"):
        _await_all(_Store(), 3, 1.0)


@pytest.mark.parametrize(("name", "text"), [("RANK", "one"), ("WORLD_SIZE", "-2"), ("MASTER_PORT", "70000")])
def test_variables_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29400", "MASTER_ADDR": "127.0.0.1"}
    for key, value in {**right, name: text}.items():
        monkeypatch.setenv(key, value)
    start = distributed_ranks("ddp", limit=3.0, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=f"{name}='{text}' is not a number"), start:
        pass
