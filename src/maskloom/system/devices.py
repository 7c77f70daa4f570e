"""The device that computes: a GPU if torch finds one, else the CPU; chosen by name, checked, described."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from maskloom.errors import ConfigError, amount
from maskloom.system.freed_memory import kept_memory
from maskloom.system.launch import DEVICE_NAMES, is_one_of_several, num_processes
from maskloom.system.resources import available_memory, system_text
from maskloom.system.shared_cores import share_cores

_HALF_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Instructions for products in bf16 by the flags of /proc/cpuinfo: Intel's since 2023, AMD's since 2022 (Zen 4).
_BF16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512"}


def chosen_device(name: Any = "auto") -> torch.device:
    """Return the device of a name; "auto" is MASKLOOM_DEVICE if set, else CUDA, Apple's GPU (mps) or the CPU.

    If torchrun started several processes on a machine, each uses the GPU given by its LOCAL_RANK. On the CPU, threads
    share cores with other programs from then on (`shared_cores`); CUDA computes in fp32 without TF32, in LSTMs too.
    "auto" passes over a GPU that torch was not built for, such as a very old one. Raises ConfigError for an unknown
    name, a device that torch does not find or was not built for, one GPU requested for several processes, fewer GPUs
    than processes, and if nothing tells which of several GPUs belongs to this process.
    """
    if name == "auto":
        name = os.environ.get("MASKLOOM_DEVICE") or name
    match = re.fullmatch(DEVICE_NAMES, name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(f"unknown device {name!r:.80}; known: auto, cpu, cuda, cuda:0 and so on, mps")
    num_gpus = 0 if name in ("cpu", "mps") else torch.cuda.device_count()
    if name == "auto" and not (num_gpus and _has_kernels(0)):
        name = "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cpu":
        share_cores()
        return torch.device("cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError(f"device 'mps': torch {torch.__version__} finds no Apple GPU here")
        if is_one_of_several():
            raise ConfigError("device 'mps': several processes cannot share it; use device 'cpu'")
        return torch.device("mps")
    if not num_gpus:
        raise ConfigError(f"device {name!r}: torch {torch.__version__} finds no CUDA device here")
    number = int(match[1] or 0)
    if is_one_of_several():
        if match[1] is not None:
            raise ConfigError(f"device {name!r}: each process uses its own GPU; give 'cuda'")
        local = os.environ.get("LOCAL_RANK")
        if local is None and min(num_processes(), num_gpus) > 1:
            raise ConfigError(f"LOCAL_RANK is not set, which chooses one of {num_gpus} GPUs; torchrun sets it")
        number = int(local or 0) if num_gpus > 1 else 0  # a scheduler may show each process only its own
        if number >= num_gpus:
            raise ConfigError(f"LOCAL_RANK = {number}: there are {num_gpus} GPUs here; start one process for each")
    if number >= num_gpus:
        raise ConfigError(f"device {name!r}: torch {torch.__version__} finds {num_gpus} CUDA devices here")
    if not _has_kernels(number):
        told = f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(number)}"
        raise ConfigError(f"device {name!r}: {told}; use device 'cpu'")
    torch.backends.cudnn.allow_tf32 = False  # for cuBLAS it is off by default
    return torch.device("cuda", number)


def _has_kernels(number: int) -> bool:
    """Tell whether torch was built for a GPU's compute capability, or has code that it can compile for it."""
    built = [(kind, int(of)) for kind, of in re.findall(r"(sm|compute)_(\d+)", " ".join(torch.cuda.get_arch_list()))]
    if not built:  # not CUDA
        return True
    major, minor = torch.cuda.get_device_capability(number)
    return any(of // 10 == major if kind == "sm" else of <= 10 * major + minor for kind, of in built)


def has_bf16(device: torch.device) -> bool:
    """Tell whether a device computes in bf16: CUDA from compute capability 8.0, which also has fused attention."""
    return device.type != "cuda" or bool(torch.version.hip) or torch.cuda.get_device_properties(device).major >= 8


def bf16_instructions(cpuinfo: str = "/proc/cpuinfo") -> str | None:
    """Return the processor's instructions for products in bf16, AMX or AVX-512, or None if the system names none."""
    flags = system_text(cpuinfo).split()
    return next((name for flag, name in _BF16_FLAGS.items() if flag in flags), None)


def half_type(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of matrix products in a precision, None for fp32; "auto" is bf16 if a GPU has it, else fp32.

    Raises ConfigError for bf16 on a GPU without it. The fastest precision on a CPU has to be measured there.
    """
    if precision in ("auto", "fastest"):
        precision = "bf16" if device.type == "cuda" and has_bf16(device) else "fp32"
    if precision == "bf16" and not has_bf16(device):
        raise ConfigError(f"training.precision = 'bf16': {device} does not support bf16; use 'fp16' or 'fp32'")
    return _HALF_TYPES.get(precision)


@contextmanager
def inference_in(precision: str, device: torch.device) -> Iterator[None]:
    """Return a context for inference: in the given precision on CUDA, in bf16 elsewhere if it is named, else fp32.

    Memory that one batch frees is kept for the next.
    """
    dtype = half_type(precision, device) if device.type == "cuda" or precision == "bf16" else None
    with kept_memory(), nullcontext() if dtype is None else torch.autocast(device.type, dtype):
        yield


def found_devices() -> list[torch.device]:
    """Return the CPU and every GPU that torch finds."""
    gpus = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [torch.device("cpu"), *gpus, *([torch.device("mps")] if torch.backends.mps.is_available() else [])]


def describe_device(device: torch.device) -> str:
    """Return a description of a device: its name and memory and, for a CPU, its threads."""
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return f"{device}, {found.name}, {found.total_memory / 2**30:.0f} GiB"
    memory = available_memory()
    room = "" if memory is None else f", {memory / 2**30:.1f} GiB of memory free"
    return f"mps{room}" if device.type == "mps" else f"cpu, {amount(torch.get_num_threads(), 'thread')}{room}"
