"""Dumps of steps whose loss or gradient is not finite, and warnings of losses that jump or freeze."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from maskloom.checkpoints.safetensors_format import safetensors_pieces
from maskloom.objectives.objective import Objective
from maskloom.system.files import replacing_folder, write_hashed, write_json
from maskloom.training.loop import NonFiniteStepError, TrainState, counts_and_first_row
from maskloom.training.ranks.ranks import ONE_RANK, Ranks, own_shard

_WINDOW = 100
_FEWEST = 20
_SIGMAS = 10.0
_FROZEN_STEPS = 50
_FROZEN_SPREAD = 1e-7


class LossWatch:
    """Tracks the loss over a window of 100 steps and reports when it spikes or is frozen.

    A spike lies more than 10 standard deviations above the mean of the window, which must hold 20 losses. A frozen loss
    stays the same, within a relative 1e-7, for 50 steps. Each is reported at most once in 100 steps.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_WINDOW)
        self._said: dict[str, int] = {}

    def look(self, step: int, loss: float) -> dict[str, str]:
        """Record the loss of a step and return any warnings as texts by `spike` and `frozen`."""
        found = {}
        # none of n numbers lies more than sqrt(n - 1) deviations above their mean, so a spike exceeds the whole window
        if self._may_say("spike", step) and len(self._losses) >= _FEWEST and loss > max(self._losses):
            mean, deviation = statistics.fmean(self._losses), statistics.pstdev(self._losses)
            if deviation > 0.0 and loss > mean + _SIGMAS * deviation:
                found["spike"] = (
                    f"step {step}: loss {loss:.4g} is {(loss - mean) / deviation:.0f} standard deviations above the "
                    f"mean of the previous {len(self._losses)} steps, {mean:.4g}"
                )
        self._losses.append(loss)
        if self._may_say("frozen", step) and len(self._losses) >= _FROZEN_STEPS:
            limit = _FROZEN_SPREAD * abs(loss)  # a changing loss ends this at the first comparison
            if all(abs(self._losses[-number] - loss) <= limit for number in range(2, _FROZEN_STEPS + 1)):
                lasted = f"{loss:.6g} for {_FROZEN_STEPS} steps"
                found["frozen"] = f"step {step}: the loss has been {lasted}; the model is not learning"
        self._said.update(dict.fromkeys(found, step))
        return found

    def _may_say(self, what: str, step: int) -> bool:
        return what not in self._said or step - self._said[what] >= _WINDOW


FORMAT_VERSION = 1
REPORT, BATCH, WEIGHTS, CARRY = "report.json", "batch.safetensors", "model.safetensors", "carry.safetensors"
_SHOWN = 20
# Weights are the large part of a dump, so older dumps lose theirs.
_DUMPS_WITH_WEIGHTS = 3


def write_dump(
    folder: Path,
    state: TrainState,
    objective: Objective,
    bad: NonFiniteStepError,
    *,
    seed: int,
    micro_batch_size: int | None,
    ranks: Ranks = ONE_RANK,
) -> Path:
    """Write a step that was not taken under `folder/step-N-PLACE` and return that folder; `state` is not changed.

    `batch.safetensors` and `report.json` hold the batch, its place in the data and the names of parameters whose
    gradients are not finite; `carry.safetensors` holds what its rows carried, if anything. `model.safetensors` holds
    the weights, in the newest three dumps, unless they are sharded. PLACE is the batch's place in the data; a batch met
    again at the same step is not written twice. Raises OSError when the disk fails.
    """
    rank = f"-rank-{ranks.rank}" if ranks.world_size > 1 else ""
    final = folder / "-".join(map(str, (f"step-{bad.report.step:08d}{rank}", *state.position.values())))
    if final.exists():
        return final
    size = state.micro_batch_size or micro_batch_size
    counts, first_row = counts_and_first_row(objective, bad.batch, ranks)
    report: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "step": bad.report.step,
        "seed": seed,
        "position": state.position,
        "position_after": bad.position_after,
        "micro_batch_size": size,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "objective": repr(objective),
        "first_row": first_row,
        "target_counts": counts,
        "loss": _plain(bad.report.loss),
        "losses": {name: _plain(loss) for name, loss in bad.report.losses.items()},
        "gradient_norm": _plain(bad.report.gradient_norm),
        "learning_rate": bad.report.learning_rate,
        **_parameter_report(state.model),
    }
    arrays, report["batch"] = _batch_as_data(bad.batch)
    with replacing_folder(final) as temporary:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        write_hashed(temporary / BATCH, safetensors_pieces(tensors))
        if not ranks.is_sharded and ranks.is_first:
            weights = {name: parameter.detach() for name, parameter in state.model.named_parameters()}
            write_hashed(temporary / WEIGHTS, safetensors_pieces(weights))
        if state.carry:
            carried = {str(number): tensor for number, tensor in enumerate(state.carry)}
            write_hashed(temporary / CARRY, safetensors_pieces(carried))
        write_json(temporary / REPORT, report)
    for path in sorted(folder.glob(f"*/{WEIGHTS}"), key=lambda path: path.stat().st_mtime)[:-_DUMPS_WITH_WEIGHTS]:
        path.unlink(missing_ok=True)
    return final


def _parameter_report(model: nn.Module) -> dict[str, Any]:
    """Name the parameters and gradients that are not finite, and the largest gradients."""
    weights = dict(model.named_parameters())
    gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    largest = sorted(((_largest(gradient), name) for name, gradient in gradients.items()), reverse=True)
    return {
        "weights_not_finite": [name for name, weight in weights.items() if _num_not_finite(weight)],
        "gradients_not_finite": [name for name, gradient in gradients.items() if _num_not_finite(gradient)],
        "largest_gradients": [{"parameter": name, "largest": value} for value, name in largest[:_SHOWN]],
    }


def _num_not_finite(tensor: Tensor) -> int:
    return int((~torch.isfinite(own_shard(tensor))).sum())


def _largest(tensor: Tensor) -> float:
    """Return the largest finite magnitude in a tensor, or 0 if there is none."""
    finite = own_shard(tensor).nan_to_num(0.0, 0.0, 0.0).abs()
    return float(finite.max()) if finite.numel() else 0.0


def _batch_as_data(batch: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return a batch's arrays by field, and the name of its class with the remaining plain values."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in values.items() if name not in arrays}
    return arrays, {"class": type(batch).__name__, "values": plain}


def _plain(value: float) -> float | str:
    """Return a number in a form that JSON can hold, with non-finite ones as their names."""
    return value if math.isfinite(value) else str(value)
