"""Steps whose loss or gradient is not finite: their error, their dumps, and what a run does next."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from maskloom.checkpoints.tensor_files import safetensors_pieces
from maskloom.data.corpus.words import RaggedIds
from maskloom.errors import RunFailedError
from maskloom.system.files import replacing_folder, write_hashed, write_json
from maskloom.training.ranks.ranks import own_shard
from maskloom.training.settings import TrainingSection
from maskloom.training.state import StepReport

if TYPE_CHECKING:
    from maskloom.training.session import Saves, TrainingSession

FORMAT_VERSION = 1
REPORT, BATCH, WEIGHTS, CARRY = "report.json", "batch.safetensors", "model.safetensors", "carry.safetensors"
# Weights are the large part of a dump, so older dumps lose theirs.
_DUMPS_WITH_WEIGHTS = 3


class NumericalError(RunFailedError, ValueError):
    """A loss or a gradient is not finite; the weights were not updated."""


class NonFiniteStepError(NumericalError):
    """A step whose loss or gradient norm is not finite, with its batch and its report.

    The state is as it was before the step, with the gradients of the batch in place. The batch starts at the state's
    `position`, the next one at `position_after`.
    """

    def __init__(
        self, batch: Any, report: StepReport, settings: TrainingSection, *, position_after: dict[str, int]
    ) -> None:
        own = settings.head_learning_rate
        now = f"{settings.learning_rate}{'' if own is None else f', for heads {own}'}"
        super().__init__(
            f"step {report.step}: loss {report.loss} with gradient norm {report.gradient_norm}; the weights were not "
            f"changed. Losses by name: {report.losses}. A smaller training.learning_rate (now {now}) may help."
        )
        self.batch, self.report, self.position_after = batch, report, position_after


def answer_bad_step(bad: NonFiniteStepError, session: TrainingSession, saves: Saves) -> None:
    """Log and dump a step, then skip its batch, rewind or raise NumericalError, as `training.on_nonfinite` says.

    More than `training.max_skips` batches skipped in a row, or rewinds in total, stop the run.
    """
    state, report, action = session.state, bad.report, session.settings.on_nonfinite
    # skips are counted by step: those in a row share one, as a skip does not advance it
    counted = report.step if action == "skip" else action
    session.num_answers[counted] += 1
    if session.num_answers[counted] > session.settings.max_skips:
        action = "stop"
    try:
        place = write_dump(session.log.path.parent / "dumps" / session.name, bad, session)
    except OSError as error:
        place = f"not written, {error}"
    session.write(
        "nonfinite",
        step=report.step,
        action=action,
        loss=report.loss,
        losses=report.losses,
        gradient_norm=report.gradient_norm,
        position=state.position,
        dump=str(place),
    )
    problem = f"{bad} Batch and weights: {place}."
    if action == "stop":
        raise NumericalError(problem) from None
    session.tell(f"warning: {problem}")
    if action == "rewind":
        _rewind(session, saves)
    elif session.budget is not None:
        session.budget.fractions.pop()  # of the step that was not taken
    state.position = bad.position_after
    session.tell(f"warning: continuing after step {state.step} with the batches after the bad one")


def _rewind(session: TrainingSession, saves: Saves) -> None:
    """Restore weights, moments and loss scale from the newest valid checkpoint, but not the caller's memory."""
    if saves is not None:
        saves.wait()
    session.ranks.barrier()
    restored = session.restored()
    if restored is None:
        raise NumericalError(f"{session.checkpoints} contains no checkpoint to go back to")
    if session.ranks.is_first:
        session.log.forget_after(session.name, restored.step)


def write_dump(folder: Path, bad: NonFiniteStepError, session: TrainingSession) -> Path:
    """Write a step that was not taken under `folder/step-N-PLACE` and return that folder; the state is not changed.

    `batch.safetensors` and `report.json` hold the batch, its place in the data and the names of parameters whose
    gradients are not finite; `carry.safetensors` holds what its rows carried, if anything. `model.safetensors` holds
    the weights, in the newest three dumps, unless they are sharded. PLACE is the batch's place in the data; a batch met
    again at the same step is not written twice. Raises OSError when the disk fails.
    """
    state, ranks = session.state, session.ranks
    rank = f"-rank-{ranks.rank}" if ranks.world_size > 1 else ""
    final = folder / "-".join(map(str, (f"step-{bad.report.step:08d}{rank}", *state.position.values())))
    # of all ranks, so each has to take part
    counts, first_row = ranks.counts_and_first_row(session.objective, bad.batch)
    if final.exists():
        return final
    weights = {name: parameter.detach() for name, parameter in state.model.named_parameters()}
    gradients = {name: weight.grad for name, weight in state.model.named_parameters() if weight.grad is not None}
    report: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "seed": session.seed,
        "position": state.position,
        "position_after": bad.position_after,
        "micro_batch_size": state.micro_batch_size or session.settings.micro_batch_size,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "objective": repr(session.objective),
        "first_row": first_row,
        "target_counts": counts,
        **_plain(dataclasses.asdict(bad.report)),
        "weights_not_finite": _not_finite(weights),
        "gradients_not_finite": _not_finite(gradients),
    }
    arrays, report["batch"] = _batch_as_data(bad.batch)
    with replacing_folder(final) as temporary:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        write_hashed(temporary / BATCH, safetensors_pieces(tensors))
        if not ranks.is_sharded and ranks.is_first:
            write_hashed(temporary / WEIGHTS, safetensors_pieces(weights))
        if state.carry:
            carried = {str(number): tensor for number, tensor in enumerate(state.carry)}
            write_hashed(temporary / CARRY, safetensors_pieces(carried))
        write_json(temporary / REPORT, report)
    for path in sorted(folder.glob(f"*/{WEIGHTS}"), key=lambda path: path.stat().st_mtime)[:-_DUMPS_WITH_WEIGHTS]:
        path.unlink(missing_ok=True)
    return final


def _not_finite(tensors: dict[str, Tensor]) -> list[str]:
    """Return the names of the tensors of which this rank holds numbers that are not finite."""
    return [name for name, tensor in tensors.items() if not torch.isfinite(own_shard(tensor)).all()]


def _batch_as_data(batch: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return a batch's arrays by field (`FIELD.PART` for lists of ids), and its class with the other plain values."""
    arrays: dict[str, np.ndarray] = {}
    plain: dict[str, Any] = {}
    for name, value in vars(batch).items():
        if isinstance(value, RaggedIds):
            arrays |= {f"{name}.flat": value.flat, f"{name}.edges": value.edges}
        else:
            (arrays if isinstance(value, np.ndarray) else plain)[name] = value
    return arrays, {"class": type(batch).__name__, "values": plain}


def _plain(value: Any) -> Any:
    """Return numbers, also by name, in a form that JSON can hold: those that are not finite as text."""
    if isinstance(value, dict):
        return {name: _plain(number) for name, number in value.items()}
    return value if math.isfinite(value) else str(value)
