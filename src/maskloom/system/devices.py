"""The device that computes: a GPU where torch finds one, else the processor; chosen by name, checked, described."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from maskloom.errors import ConfigError
from maskloom.system.launch import DEVICE_NAMES, is_one_of_several, num_processes
from maskloom.system.resources import available_memory
from maskloom.system.shared_cores import share_cores


def chosen_device(name: Any = "auto") -> torch.device:
    """Return the device of a name; "auto" is MASKLOOM_DEVICE if set, else CUDA, Apple's GPU (mps) or the processor.

    Of several processes that torchrun started on a machine, each takes the GPU of its own number (LOCAL_RANK). The
    processor's cores are shared from then on (`shared_cores`). Raises ConfigError for an unknown name, for a device
    that torch does not find, and for one GPU asked of several processes.
    """
    if name == "auto":
        name = os.environ.get("MASKLOOM_DEVICE") or name
    match = re.fullmatch(DEVICE_NAMES, name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(f"device {name!r:.80} is not known; known: auto, cpu, cuda, cuda:0 and so on, mps")
    num_gpus = 0 if name in ("cpu", "mps") else torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not num_gpus and not torch.backends.mps.is_available()):
        share_cores()
        return torch.device("cpu")
    if name == "mps" or not num_gpus:
        if name.startswith("cuda"):
            raise ConfigError(f"device {name!r}: torch {torch.__version__} finds no CUDA device here")
        if not torch.backends.mps.is_available():
            raise ConfigError(f"device 'mps': torch {torch.__version__} finds no GPU of Apple's here")
        if is_one_of_several():
            raise ConfigError("device 'mps': several processes cannot share it; take device 'cpu'")
        return torch.device("mps")
    number = int(match[1] or 0)
    if is_one_of_several():
        if match[1] is not None:
            raise ConfigError(f"device {name!r}: each process takes a GPU of its own; give 'cuda'")
        local = os.environ.get("LOCAL_RANK")
        if local is None and min(num_processes(), num_gpus) > 1:
            raise ConfigError(f"LOCAL_RANK is not set, so which of {num_gpus} GPUs is this process's? torchrun sets it")
        number = int(local or 0) % num_gpus
    if number >= num_gpus:
        raise ConfigError(f"device {name!r}: torch {torch.__version__} finds {num_gpus} CUDA devices here")
    return torch.device("cuda", number)


def found_devices() -> list[torch.device]:
    """Return the processor and every GPU that torch finds."""
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [torch.device("cpu"), *gpus, *([torch.device("mps")] if torch.backends.mps.is_available() else [])]


def describe_device(device: torch.device) -> str:
    """Return a device's name and memory in words, of a processor also its threads."""
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return f"{device}, {found.name}, {found.total_memory / 2**30:.0f} GiB"
    memory = available_memory()
    room = "" if memory is None else f", {memory / 2**30:.1f} GiB of memory free"
    if device.type == "mps":
        return f"mps{room}"
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'' if threads == 1 else 's'}{room}"
