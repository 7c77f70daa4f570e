"""Restarts of a fine-tuning: what they leave behind."""

import signal

import pytest

from maskloom.runs import finetune_restarts
from maskloom.training.interruption import Interrupted


def test_a_stop_while_checkpoints_are_removed_leaves_none_that_is_half(tmp_path, monkeypatch) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)

    def stopped(folder, **_):
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", stopped)
        with pytest.raises(Interrupted):
            finetune_restarts._remove_checkpoints(tmp_path)
    assert not (tmp_path / "checkpoints").exists()
    finetune_restarts._remove_checkpoints(tmp_path)
    assert not list(tmp_path.iterdir())
