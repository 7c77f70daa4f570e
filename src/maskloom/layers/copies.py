"""Copies of arrays between the host and the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Batches that may be queued on a GPU before the oldest result is read.
_AHEAD = 16


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; CUDA copies go through pinned memory and run asynchronously."""
    if device.type != "cuda":
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)
    return _pinned(array.shape, array.dtype, lambda out: np.copyto(out, array)).to(device, non_blocking=True)


def all_to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Return one-dimensional arrays of the same type as tensors on a device, using a single copy on CUDA."""
    if device.type != "cuda":
        return [to_device(array, device) for array in arrays]
    sizes = [len(array) for array in arrays]
    pinned = _pinned((sum(sizes),), arrays[0].dtype, lambda out: np.concatenate(arrays, out=out))
    return list(pinned.to(device, non_blocking=True).split(sizes))


def _pinned(shape: tuple[int, ...], dtype: np.dtype, fill: Callable[[np.ndarray], object]) -> Tensor:
    """Return a tensor in pinned memory that numpy fills: torch would wake all its threads to fill it."""
    like = torch.from_numpy(np.empty(0, dtype))
    pinned = torch.empty(shape, dtype=like.dtype, pin_memory=True)
    fill(pinned.numpy())
    return pinned


def in_double(tensor: Tensor) -> Tensor:
    """Return a tensor in fp64: on its device or, as Apple GPUs have no fp64, on the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


class HostCopy:
    """A pending copy of a tensor to the host; reading it waits only for the copy, not for later work on the device."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.to("cpu", non_blocking=tensor.is_cuda)
        self._event = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def tensor(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


def to_host(launched: Iterable[tuple[Any, Tensor]]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield (label, array) for each (label, tensor), in order; a GPU gets further work before its results are read."""
    waiting: deque[tuple[Any, HostCopy]] = deque()
    for label, tensor in launched:
        waiting.append((label, HostCopy(tensor)))
        if len(waiting) > (_AHEAD if tensor.is_cuda else 0):
            label, copy = waiting.popleft()
            yield label, copy.tensor().numpy()
    for label, copy in waiting:
        yield label, copy.tensor().numpy()
