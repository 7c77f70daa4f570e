from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maskloom.layers.copies import HostCopy, all_to_device, in_double, to_device, to_host

CPU = torch.device("cpu")


def test_arrays_keep_values_order_and_type():
    arrays = [np.arange(3), np.array([], dtype=np.int64), np.array([7, 8])]
    found = all_to_device(arrays, CPU)
    assert [part.tolist() for part in found] == [[0, 1, 2], [], [7, 8]]
    assert to_device(np.ones((2, 3), np.float32)[:, ::2], CPU).shape == (2, 2)


def test_apple_gpus_leave_fp64_to_the_processor():
    values = torch.tensor([0.1, 3.0])
    on_apple = SimpleNamespace(device=torch.device("mps"), cpu=lambda: values)
    for found in (in_double(values), in_double(on_apple)):
        assert torch.equal(found, values.to(torch.float64))
    assert in_double(torch.arange(3)).tolist() == [0.0, 1.0, 2.0]


def test_results_come_back_in_order_with_what_came_with_them():
    launched = ((number, torch.full((2,), number)) for number in range(40))
    found = list(to_host(launched))
    assert [label for label, _ in found] == list(range(40))
    assert all((values == label).all() for label, values in found)
    assert list(to_host(iter(()))) == []


def test_on_a_processor_nothing_is_launched_before_the_last_result_is_taken():
    taken = []
    results = to_host((number, torch.tensor([taken.append(number) or number])) for number in range(3))
    assert next(results)[0] == 0
    assert taken == [0]


def test_a_copy_is_waited_for_on_the_device_of_its_tensor(monkeypatch):
    """With several GPUs, the current device may be a different one."""
    asked = []

    def stream(device):
        event = SimpleNamespace(synchronize=lambda: asked.append("waited"))
        return SimpleNamespace(record_event=lambda: asked.append(f"stream of {device}") or event)

    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    on_second = SimpleNamespace(
        is_cuda=True, device=torch.device("cuda", 1), to=lambda place, *, non_blocking: torch.arange(3)
    )
    assert HostCopy(on_second).tensor().tolist() == [0, 1, 2]
    assert asked == ["stream of cuda:1", "waited"]


@pytest.mark.gpu
def test_copies_to_and_from_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    gpu, arrays = torch.device("cuda", 0), [np.arange(5), np.arange(70_000), np.array([3])]
    moved = all_to_device(arrays, gpu)
    assert all(np.array_equal(part.cpu().numpy(), array) for part, array in zip(moved, arrays, strict=True))
    assert np.array_equal(HostCopy(moved[1] * 2).tensor().numpy(), arrays[1] * 2)
    found = dict(to_host((number, moved[0] + number) for number in range(40)))
    assert all(np.array_equal(found[number], arrays[0] + number) for number in range(40))
