"""20 steps of pre-training and of each kind of task reproduce the stored losses of a known good version."""

import json

import pytest

from maskloom.tasks.kinds import KINDS
from tools.golden_losses import STORED, compute, machine_class, names

GOLDEN = json.loads(STORED.read_text(encoding="utf-8"))


def test_every_run_is_stored():
    assert list(GOLDEN["runs"]) == names()
    kinds = {name.removeprefix("finetune/").partition("_")[0] for name in names() if name.startswith("finetune/")}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("name", names())
def test_losses_stay(name, tmp_path):
    stored, now = GOLDEN["runs"][name], compute(name, tmp_path)
    assert len(now["losses"]) == 20
    assert now["losses"] == pytest.approx(stored["losses"], rel=1e-6)
    if machine_class() == GOLDEN["machine"]:
        assert now == stored
