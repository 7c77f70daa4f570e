"""Devices by name: which one is chosen where, and what is refused."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.system.devices import chosen_device, describe_device, half_type, has_bf16, inference_in


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASKLOOM_DEVICE", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def _machine(monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_takes_the_gpu_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch)
    assert chosen_device() == torch.device("cpu")
    _machine(monkeypatch, mps=True)
    assert chosen_device() == torch.device("mps")
    _machine(monkeypatch, gpus=2, mps=True)
    assert chosen_device() == torch.device("cuda", 0)
    assert chosen_device("cuda:1") == torch.device("cuda", 1)
    assert chosen_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "is_fit"), [((6, 1), False), ((7, 5), True), ((8, 9), True), ((9, 0), True), ((13, 0), True)]
)
def test_a_gpu_that_torch_was_not_built_for_is_passed_over_or_refused(monkeypatch, capability, is_fit) -> None:
    """Its first operation would fail; code for an older generation is compiled for newer ones."""
    _machine(monkeypatch, gpus=1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90a", "compute_120"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Some GPU")
    if is_fit:
        assert chosen_device() == chosen_device("cuda") == torch.device("cuda", 0)
        return
    assert chosen_device() == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"device 'cuda': torch .* has no kernels for Some GPU; use device 'cpu'"):
        chosen_device("cuda")


def test_a_chosen_gpu_computes_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """LSTMs run on cuDNN, where TF32 is on by default."""
    _machine(monkeypatch, gpus=1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    chosen_device("cpu")
    assert torch.backends.cudnn.allow_tf32
    chosen_device("cuda")
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(("major", "auto"), [(7, None), (8, torch.bfloat16)])
def test_auto_is_what_that_very_gpu_has(monkeypatch: pytest.MonkeyPatch, major: int, auto: torch.dtype | None) -> None:
    asked, gpu = [], torch.device("cuda", 1)
    properties = SimpleNamespace(major=major)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: asked.append(device) or properties)
    assert half_type("auto", gpu) is half_type("fastest", gpu) is auto
    assert half_type("fp16", gpu) is torch.float16
    assert has_bf16(gpu) is (auto is not None)
    assert set(asked) == {gpu}
    cast_to, cpu = [], torch.device("cpu")
    monkeypatch.setattr(torch, "autocast", lambda *given: cast_to.append(given) or nullcontext())
    places = [("fp16", gpu), ("auto", gpu), *((each, cpu) for each in ("auto", "fp16", "fastest", "bf16"))]
    for precision, place in places:
        with inference_in(precision, place):
            pass
    of_auto = [] if auto is None else [("cuda", auto)]
    assert cast_to == [("cuda", torch.float16), *of_auto, ("cpu", torch.bfloat16)]


def test_the_environment_says_what_auto_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, gpus=2)
    monkeypatch.setenv("MASKLOOM_DEVICE", "cpu")
    assert chosen_device() == torch.device("cpu")
    assert chosen_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("MASKLOOM_DEVICE", "tpu")
    with pytest.raises(ConfigError, match="unknown device 'tpu'; known: auto, cpu, cuda"):
        chosen_device()


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, gpus=2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    taken = []
    for rank in range(2):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        taken.append(chosen_device("cuda").index)
    assert taken == [0, 1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match="LOCAL_RANK = 2: there are 2 GPUs here; start one process for each"):
        chosen_device("cuda")
    with pytest.raises(ConfigError, match="each process uses its own GPU; give 'cuda'"):
        chosen_device("cuda:1")
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(ConfigError, match="LOCAL_RANK is not set, which chooses one of 2 GPUs"):
        chosen_device("auto")
    _machine(monkeypatch, gpus=1)  # as if a scheduler exposed only its own GPU to each process
    assert chosen_device("auto").index == 0
    _machine(monkeypatch, mps=True)
    with pytest.raises(ConfigError, match="several processes cannot share it"):
        chosen_device("mps")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "finds no CUDA device here"),
        ("cuda:7", "finds no CUDA device here"),
        ("mps", "finds no Apple GPU here"),
        ("gpu", "unknown device 'gpu'"),
        (7, "unknown device 7"),
        (None, "unknown device None"),
    ],
)
def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, name: object, message: str) -> None:
    _machine(monkeypatch)
    with pytest.raises(ConfigError, match=message):
        chosen_device(name)


def test_a_number_beyond_the_last_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine(monkeypatch, gpus=2)
    with pytest.raises(ConfigError, match=r"device 'cuda:2': torch .* finds 2 CUDA devices here"):
        chosen_device("cuda:2")


def test_a_device_is_described() -> None:
    threads = torch.get_num_threads()
    assert describe_device(torch.device("cpu")).startswith(f"cpu, {threads} thread")


def test_a_recipe_names_a_device() -> None:
    assert load_recipe(FinetuneRecipe, None, ["training.device=cuda:3"]).training.device == "cuda:3"
    with pytest.raises(ConfigError, match="device"):
        load_recipe(FinetuneRecipe, None, ["training.device=gpu"])
