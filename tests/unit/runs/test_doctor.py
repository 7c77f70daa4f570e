"""The report on a machine and the device it would use; a device that computes wrong numbers is found."""

import json
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from maskloom.cli import app
from maskloom.runs import doctor as module
from maskloom.runs.doctor import doctor, doctor_lines
from maskloom.system.devices import bf16_instructions


@pytest.fixture(autouse=True, scope="module")
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SMALL", ("tiny", 2))
        patch.setattr(module, "_LENGTH", 16)
        patch.setattr(module, "_NUM_PREDICTIONS", 2)  # bf16 is emulated, and slow, on some processors
        yield


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKLOOM_DEVICE", "cpu")
        return doctor(seconds=0.05)


@pytest.fixture
def found(monkeypatch, whole):
    monkeypatch.setenv("MASKLOOM_DEVICE", "cpu")
    return whole


def test_every_device_is_checked_in_both_precisions_and_sound(found):
    checked = [(check["device"], check["precision"]) for check in found["checks"]]
    assert [name for name in checked if name[0] == "cpu"] == [("cpu", "fp32"), ("cpu", "bf16")]
    assert len(checked) == 2 * len(found["devices"])
    assert found["is_sound"]
    assert found["checks"][0]["largest_difference"] == 0.0  # the processor compared with itself
    assert found["checks"][1]["largest_difference"] > 0.0
    assert all(check["tokens_per_second"] > 0 for check in found["checks"])
    said = "\n".join(doctor_lines(found))
    assert "tokens per second with BERT tiny; ok" in said
    assert "would use  cpu in fp32 (set by MASKLOOM_DEVICE" in said
    assert f"torch {found['versions']['torch']}" in said


@pytest.mark.parametrize(("major", "expected"), [(7, ["fp32", "fp16"]), (8, ["fp32", "bf16", "fp16"])])
def test_a_gpu_is_checked_in_the_precisions_that_it_has(monkeypatch, major, expected):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    assert module._precisions(torch.device("cuda", 0)) == expected
    assert module._precisions(torch.device("cpu")) == ["fp32", "bf16"]


def test_a_gpu_is_timed_with_more_work_than_a_processor(monkeypatch):
    timed = []
    monkeypatch.setattr(module, "_losses", lambda device, precision: [7.0])
    monkeypatch.setattr(module, "_speed", lambda device, precision, work, seconds: timed.append(work) or 1.0)
    checks = [module._checked(torch.device(name), "fp32", [7.0], 1.0) for name in ("cpu", "cuda")]
    assert [check["size"] for check in checks] == ["tiny", "base"]
    assert timed == [module._SMALL, module._LARGE]


def test_a_gpu_computes_ahead_while_it_is_timed(monkeypatch):
    """As in a run, because the loop is told the device; without it, each step would wait for its loss."""
    device, told = torch.device("cpu", 0), []
    monkeypatch.setattr(module, "train_steps", lambda *_, ranks, **__: told.append(ranks.device) or iter(()))
    module._reports(device, "fp32", ("tiny", 2), 1, dropout=0.0)
    assert told == [device]


def test_a_sound_device_without_memory_to_be_timed_is_sound(found, monkeypatch):
    def reports(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB")

    monkeypatch.setattr(module, "_losses", lambda device, precision: [7.0])
    monkeypatch.setattr(module, "_reports", reports)
    check = module._checked(torch.device("cuda"), "bf16", [7.0], 1.0)
    assert (check["is_sound"], check["tokens_per_second"]) == (True, None)
    assert any("too little memory to time BERT base; ok" in line for line in doctor_lines({**found, "checks": [check]}))


def test_fp16_is_checked_with_a_loss_scale():
    """The check runs on a processor here as it does on a GPU."""
    checked = module._checked(torch.device("cpu"), "fp16", module._losses(torch.device("cpu"), "fp32"), 0.1)
    assert checked["is_sound"], checked


def test_wrong_numbers_and_a_device_that_fails_are_said_and_end_with_1(monkeypatch):
    sound = module._losses
    calls = []

    def losses(device, precision):
        calls.append(precision)
        if precision == "bf16":
            raise RuntimeError("no such product\nbelow")
        shift = 0.5 if len(calls) > 1 else 0.0  # the first call computes the reference
        return [loss + shift for loss in sound(device, precision)]

    monkeypatch.setattr(module, "_losses", losses)
    monkeypatch.setattr(module, "found_devices", lambda: [module.chosen_device("cpu")])
    ended = CliRunner().invoke(app, ["doctor", "--seconds", "0.1", "--json"])
    result = json.loads(ended.stdout)
    assert ended.exit_code == 1
    assert [check["problem"] for check in result["checks"]] == [
        "losses differ by 0.5 from the processor's in fp32",
        "no such product",
    ]
    assert "WRONG: no such product" in "\n".join(doctor_lines(result))


def test_bf16_is_recommended_on_processors_with_units_for_it(found, tmp_path):
    flags = {"intel": "fpu avx512_bf16 amx_bf16", "amd": "fpu avx512_bf16", "older": "fpu avx512f"}
    for name, words in flags.items():
        (tmp_path / name).write_text(f"flags\t\t: {words}\n")
    named = [bf16_instructions(str(tmp_path / name)) for name in (*flags, "absent")]
    assert named == ["AMX", "AVX-512", None, None]
    for name in ("AMX", None):
        lines = doctor_lines({**found, "bf16_instructions": name})
        assert any("(AMX)" in line and "embed --bf16" in line for line in lines) == bool(name)
