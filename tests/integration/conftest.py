"""What tests of killed, stopped and broken runs share."""

import pytest


@pytest.fixture(scope="module")
def server():
    """Start runs as forks of one process that has imported everything."""
    from tools.soak.processes import ForkServer  # here, so that other tests do without

    with ForkServer() as running:
        yield running


@pytest.fixture(scope="module")
def budget(tmp_path_factory):
    """Give trials a folder and the draws of seed 0, without a limit of time."""
    from tools.soak.rows import Budget

    return Budget(0, tmp_path_factory.mktemp("trials"))
