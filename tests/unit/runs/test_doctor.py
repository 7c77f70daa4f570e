"""What a machine is and would use; a device whose numbers are wrong is found."""

import json

import pytest
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.runs import doctor as module
from maskloom.runs.doctor import doctor, doctor_lines


@pytest.fixture
def found(monkeypatch):
    monkeypatch.setenv("MASKLOOM_DEVICE", "cpu")
    return doctor(seconds=0.2)


def test_every_device_is_checked_in_both_precisions_and_sound(found):
    checked = [(check["device"], check["precision"]) for check in found["checks"]]
    assert [name for name in checked if name[0] == "cpu"] == [("cpu", "fp32"), ("cpu", "bf16")]
    assert len(checked) == 2 * len(found["devices"])
    assert found["is_sound"]
    assert found["checks"][0]["largest_difference"] == 0.0  # the processor beside itself
    assert found["checks"][1]["largest_difference"] > 0.0
    assert all(check["tokens_per_second"] > 0 for check in found["checks"])
    said = "\n".join(doctor_lines(found))
    assert "would use  cpu in fp32 (MASKLOOM_DEVICE says so" in said
    assert f"torch {found['versions']['torch']}" in said


def test_wrong_numbers_and_a_device_that_fails_are_said_and_end_with_1(monkeypatch):
    sound = module._losses
    calls = []

    def losses(device, precision, steps):
        calls.append(precision)
        if precision == "bf16":
            raise RuntimeError("no such product\nbelow")
        shift = 0.5 if len(calls) > 1 else 0.0  # the first call makes what the others are compared with
        return [loss + shift for loss in sound(device, precision, steps)]

    monkeypatch.setattr(module, "_losses", losses)
    monkeypatch.setattr(module, "found_devices", lambda: [module.chosen_device("cpu")])
    ended = CliRunner().invoke(app, ["doctor", "--seconds", "0.2", "--json"])
    result = json.loads(ended.stdout)
    assert ended.exit_code == 1
    assert [check["problem"] for check in result["checks"]] == [
        "losses differ by 0.5 from the processor's in fp32",
        "no such product",
    ]
    assert "WRONG: no such product" in "\n".join(doctor_lines(result))
