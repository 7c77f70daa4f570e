"""Copies of arrays to the device that computes, and back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Batches that a GPU may have before it while their results wait to be read.
_AHEAD = 16


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; copies to CUDA start from pinned memory and nobody waits for them."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_host(launched: Iterable[tuple[Any, Tensor]]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield tensors as arrays, in order, with what came with each; a GPU gets further work before it is waited for."""
    waiting: deque[tuple[Any, Tensor, torch.cuda.Event]] = deque()
    for label, tensor in launched:
        if tensor.device.type != "cuda":
            yield label, tensor.cpu().numpy()
            continue
        copy, event = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
        event.record()
        waiting.append((label, copy, event))
        if len(waiting) > _AHEAD:
            yield _read(*waiting.popleft())
    while waiting:
        yield _read(*waiting.popleft())


def _read(label: Any, copy: Tensor, event: torch.cuda.Event) -> tuple[Any, np.ndarray]:
    event.synchronize()
    return label, copy.numpy()
