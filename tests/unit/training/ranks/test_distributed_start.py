"""Ranks that wait for others report which ones."""

import signal

import pytest
import torch

from maskloom.errors import ConfigError
from maskloom.training.faults.interruption import Interrupted
from maskloom.training.ranks.distributed import _await_all, distributed_ranks
from maskloom.training.ranks.ranks import RankLostError


class _Store:
    """Knows only the first rank; the second check raises `Interrupted` if `signals` is set."""

    def __init__(self, *, signals: bool = False) -> None:
        self.signals, self.looks = signals, 0

    def check(self, keys: list[str]) -> bool:
        self.looks += 1
        if self.signals and self.looks == 2:
            raise Interrupted(signal.SIGTERM)
        return keys == ["sign/0"]


def test_ranks_that_do_not_come_are_named() -> None:
    with pytest.raises(RankLostError, match=r"rank 1, 2 has not joined within 1 s \(10 \* training.rank_timeout\)"):
        _await_all(_Store(), 3, 1.0)


def test_ranks_that_have_not_come_are_named_when_this_one_is_asked_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Interrupted):
        _await_all(_Store(signals=True), 3, 60.0)
    assert capsys.readouterr().err == "rank 1, 2 has not joined so far\n"


@pytest.mark.parametrize(("name", "text"), [("RANK", "one"), ("WORLD_SIZE", "-2"), ("MASTER_PORT", "70000")])
def test_variables_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29400", "MASTER_ADDR": "127.0.0.1"}
    for key, value in {**right, name: text}.items():
        monkeypatch.setenv(key, value)
    start = distributed_ranks("ddp", limit=3.0, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=f"{name}='{text}' is not a number"), start:
        pass
