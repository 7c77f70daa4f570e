"""Training checkpoints: a folder is whole, as its manifest proves, or it is not a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from maskloom.checkpoints.safetensors_bytes import safetensors_pieces
from maskloom.config import ConfigError, DataError
from maskloom.files import sync, write_hashed
from maskloom.training.loop import TrainState

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was loaded, the state saved beside it, and why newer ones were passed over."""

    step: int
    extra: dict[str, Any]
    refused: list[str]


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint holds: weights, the optimiser's moments by `moment.parameter`, and the rest as JSON text."""

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    rest: str

    @classmethod
    def of(cls, state: TrainState, extra: dict[str, Any]) -> Snapshot:
        """Return the state as it stands; the tensors are its own, so the next step changes them."""
        moments, steps = _optimizer_tensors(state)
        rest = {"step": state.step, "position": state.position, "optimizer_steps": steps, "extra": extra}
        return cls(state.step, _model_tensors(state), moments, json.dumps(rest, indent=1))


def write_checkpoint(
    snapshot: Snapshot, folder: Path, *, keep: int = 2, before_chunk: Callable[[], None] | None = None
) -> Path:
    """Write a snapshot under `folder/step-N`, and drop all checkpoints but the newest `keep`.

    Everything goes to a temporary name, is hashed as it is written and synced to disk, and is renamed once the manifest
    with every file's size and SHA-256 is in place: a killed save leaves the older checkpoints and nothing that passes
    for a new one. Raises OSError that names the step and the path; the temporary folder is gone then.
    """
    final = folder / f"step-{snapshot.step:08d}"
    temporary = folder / f"{final.name}.tmp-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_orphans(folder)
        temporary.mkdir()
        files = {
            name: write_hashed(temporary / name, pieces, before_chunk=before_chunk)
            for name, pieces in _contents(snapshot).items()
        }
        manifest = {"format_version": FORMAT_VERSION, "step": snapshot.step, "files": files}
        write_hashed(temporary / _MANIFEST, [json.dumps(manifest, indent=1).encode()])
        sync(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        sync(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        message = f"{error.strerror}; the checkpoint of step {snapshot.step} was not saved, those before it stand"
        raise OSError(error.errno, message, str(error.filename or temporary)) from error
    for old in _step_folders(folder)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def restore_checkpoint(state: TrainState, folder: Path) -> Restored | None:
    """Load the newest whole checkpoint of `folder` into `state`; None when there is none at all.

    Checkpoints that fail their check are passed over and named in `refused`. Raises DataError when every checkpoint
    fails, and ConfigError when a whole one belongs to another model.
    """
    refused: list[str] = []
    for candidate in _step_folders(folder):
        problem = verify_checkpoint(candidate)
        if problem is None:
            extra = _load_into(state, candidate)
            return Restored(step=state.step, extra=extra, refused=refused)
        refused.append(problem)
    if refused:
        raise DataError("no checkpoint is whole:\n" + "\n".join(refused))
    return None


def verify_checkpoint(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint folder, or None when every file is as its manifest says."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        version, files = manifest["format_version"], manifest["files"]
        if version != FORMAT_VERSION:
            return f"{folder}: format version {version}; this program reads version {FORMAT_VERSION}"
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            if files[name] != _describe(folder / name):
                return f"{folder / name}: size or SHA-256 differs from the manifest"
    except OSError as error:
        return f"{folder}: {error.strerror}: {error.filename}"
    except (ValueError, KeyError, TypeError):
        return f"{folder / _MANIFEST}: not a checkpoint manifest"
    return None


def _step_folders(folder: Path) -> list[Path]:
    """Return checkpoint folders, newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.startswith("step-") and path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def _remove_orphans(folder: Path) -> None:
    """Remove temporary folders whose writing process is gone."""
    for path in folder.glob("step-*.tmp-*"):
        process = path.name.rpartition("-")[2]
        if not process.isdigit() or int(process) == os.getpid() or not Path(f"/proc/{process}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _contents(snapshot: Snapshot) -> dict[str, Iterable[bytes | memoryview]]:
    return {
        "model.safetensors": safetensors_pieces(snapshot.model),
        "optimizer.safetensors": safetensors_pieces(snapshot.optimizer),
        "state.json": [snapshot.rest.encode()],
    }


def _model_tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """Return every distinct parameter by its first name: tied ones appear once."""
    return {name: parameter.detach() for name, parameter in state.model.named_parameters()}


def _optimizer_tensors(state: TrainState) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    tensors: dict[str, torch.Tensor] = {}
    steps: dict[str, float] = {}
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimizer.state.get(parameter, {}).items():
            if key == "step":
                steps[name] = float(value)
            else:
                tensors[f"{key}.{name}"] = value
    return tensors, steps


def _load_into(state: TrainState, folder: Path) -> dict[str, Any]:
    try:
        weights = load_file(folder / "model.safetensors")
        moments = load_file(folder / "optimizer.safetensors")
    except SafetensorError as error:
        raise DataError(f"{folder}: {error}") from None
    content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    parameters = dict(state.model.named_parameters())
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if found != expected:
        differing = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise ConfigError(
            f"{folder}: the checkpoint is of another model; {len(differing)} parameters differ: {differing[:4]}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for name, count in content["optimizer_steps"].items():
        keys = [key for key in ("exp_avg", "exp_avg_sq") if f"{key}.{name}" in moments]
        entry = {key: moments[f"{key}.{name}"].to(parameters[name].device) for key in keys}
        step = torch.tensor(count, dtype=torch.float32, device=parameters[name].device)
        state.optimizer.state[parameters[name]] = {"step": step, **entry}
    state.step = content["step"]
    state.position = content["position"]
    return content["extra"]


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
