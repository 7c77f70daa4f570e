"""The hardware of this machine, what maskloom would use of it and why, and a short check of each device."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maskloom.data.batch import PretrainingBatch
from maskloom.layers.processor.onednn import library_of_products
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.rows import SizeName
from maskloom.runs.display import SILENT, Progress, aligned
from maskloom.runs.run_folder import environment
from maskloom.system.devices import (
    bf16_instructions,
    chosen_device,
    describe_device,
    found_devices,
    half_type,
    has_bf16,
)
from maskloom.system.resources import available_memory, usable_cores
from maskloom.training.faults.memory import is_out_of_memory
from maskloom.training.loop import train_steps
from maskloom.training.precision import in_precision
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

_LENGTH, _NUM_PREDICTIONS = 128, 20
_STEPS_COMPARED = 3
# The size and the sequences per batch: small work to compare losses and time processors, large work to time GPUs.
_SMALL: tuple[SizeName, int] = ("tiny", 16)
_LARGE: tuple[SizeName, int] = ("base", 64)
_OF_BF16 = 'this processor multiplies it (%s); training.precision = "fastest" tries it, embed --bf16 uses it'
# How far the first losses may differ from the processor's in fp32: rounding errors, amplified by the steps.
_BOUNDS = {"fp32": 1e-3, "bf16": 3e-2, "fp16": 3e-2}


def doctor(*, seconds: float = 10.0, progress: Progress = SILENT) -> dict[str, Any]:
    """Return versions, hardware, memory, disk and a check of each device by training BERTs, in all `seconds`.

    A device is sound if its first losses equal those of the processor in fp32, up to rounding.
    """
    devices = found_devices()
    trials = [(device, precision) for device in devices for precision in _precisions(device)]
    expected = _losses(torch.device("cpu"), "fp32")
    checks = [_checked(*trial, expected, seconds / len(trials)) for trial in progress.each("checking devices", trials)]
    device = chosen_device()
    return {
        **environment(),
        "cores_for_this_process": usable_cores(),
        "memory_free": available_memory(),
        "disk_free": shutil.disk_usage(Path.cwd()).free,
        "products": library_of_products(),
        "bf16_instructions": bf16_instructions(),
        "devices": [describe_device(found) for found in devices],
        "checks": checks,
        "device": str(device),
        "precision": "bf16" if half_type("auto", device) else "fp32",
        "is_sound": all(check["is_sound"] for check in checks),
    }


def doctor_lines(result: dict[str, Any]) -> list[str]:
    """Return the result as readable lines."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    hardware, memory = result["hardware"], result["memory_free"]
    rows = [
        ("versions", versions),
        ("processor", f"{hardware['processor']}, {result['cores_for_this_process']} of {hardware['cores']} cores"),
        ("products", result["products"]),
        *([("bf16", _OF_BF16 % name)] if (name := result["bf16_instructions"]) else []),
        ("memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB free"),
        ("disk", f"{result['disk_free'] / 2**30:.1f} GiB free in this folder"),
        *(("device", described) for described in result["devices"]),
    ]
    for check in result["checks"]:
        verdict = "ok" if check["is_sound"] else f"WRONG: {check['problem']}"
        rate = check["tokens_per_second"]
        speed = "too little memory to time" if rate is None else f"{rate:,.0f} tokens per second with"
        speed = f"{speed} BERT {check['size']}; " if check["is_sound"] or rate else ""
        rows.append((f"{check['device']} {check['precision']}", f"{speed}{verdict}"))
    why = "set by MASKLOOM_DEVICE" if os.environ.get("MASKLOOM_DEVICE") else "the first GPU that torch finds, else cpu"
    rows.append(("would use", f"{result['device']} in {result['precision']} ({why}; --device chooses another)"))
    return aligned(rows)


def _precisions(device: torch.device) -> list[str]:
    """Return the precisions in which to check a device; fp16 is not used for training on a processor."""
    unfit = {"fp16"} if device.type == "cpu" else set() if has_bf16(device) else {"bf16"}
    return [precision for precision in _BOUNDS if precision not in unfit]


def _checked(device: torch.device, precision: str, expected: list[float], seconds: float) -> dict[str, Any]:
    """Compare the first losses of a tiny BERT with the expected ones, and time a BERT whose size suits the device."""
    work = _SMALL if device.type == "cpu" else _LARGE
    speed = largest = problem = None
    try:
        losses = _losses(device, precision)
        speed = _speed(device, precision, work, seconds)
        largest = max(abs(a - b) for a, b in zip(expected, losses, strict=True))
        if not largest <= _BOUNDS[precision]:
            problem = f"losses differ by {largest:.3g} from the processor's in fp32"
    except (RuntimeError, ValueError) as error:
        problem = str(error).partition("\n")[0]
    check = {"device": str(device), "precision": precision, "size": work[0]}
    check |= {"tokens_per_second": speed, "largest_difference": largest}
    return {**check, "is_sound": problem is None, "problem": problem}


def _losses(device: torch.device, precision: str) -> list[float]:
    return [report.loss for report in _reports(device, precision, _SMALL, _STEPS_COMPARED, dropout=0.0)]


def _speed(device: torch.device, precision: str, work: tuple[SizeName, int], seconds: float) -> float | None:
    """Return tokens per second, excluding the first step, or None if the device has no memory for the work."""
    try:
        reports = _reports(device, precision, work, 10**9, dropout=0.1)
        next(reports)
        started, num_tokens, passed = time.perf_counter(), 0, 0.0
        while passed < seconds:
            num_tokens += next(reports).num_tokens
            passed = time.perf_counter() - started
    except RuntimeError as error:
        if is_out_of_memory(error):
            return None
        raise
    return num_tokens / passed


def _reports(
    device: torch.device, precision: str, work: tuple[SizeName, int], steps: int, *, dropout: float
) -> Iterator[Any]:
    size, num_sequences = work
    config = BertConfig.of_size(
        size, vocab_size=8000, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )
    settings = TrainingSection(steps=steps, learning_rate=1e-3, precision=precision)  # pyright: ignore
    state = TrainState.fresh(build_model(config, seed=0).to(device), settings)
    objective = in_precision(MaskedLanguageModeling(), precision, device)
    numbers = count()
    ranks = Ranks(device)  # so that a GPU computes ahead as in a run
    return train_steps(
        state, objective, lambda at: (_batch(next(numbers), num_sequences), at), settings=settings, seed=0, ranks=ranks
    )


def _batch(number: int, num_sequences: int) -> PretrainingBatch:
    random = np.random.default_rng(number)
    lengths = random.integers(_LENGTH // 2, _LENGTH + 1, num_sequences)
    starts = np.cumsum(lengths) - lengths
    return PretrainingBatch(
        token_ids=random.integers(5, 8000, lengths.sum()),
        segment_ids=np.zeros(lengths.sum(), dtype=np.int64),
        lengths=lengths,
        mlm_positions=np.concatenate([start + np.arange(1, 1 + _NUM_PREDICTIONS) for start in starts]),
        mlm_labels=random.integers(5, 8000, num_sequences * _NUM_PREDICTIONS),
        nsp_labels=random.integers(0, 2, num_sequences),
    )
