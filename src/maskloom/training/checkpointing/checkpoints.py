"""Training checkpoints: a folder is a checkpoint only if its manifest proves that it is complete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from maskloom.checkpoints.tensor_files import safetensors_pieces
from maskloom.errors import DataError, amount
from maskloom.system.files import DISK_ERRORS, be_alone, remove_tree, rename, taking_the_place, write_hashed
from maskloom.system.foreign_files import MAX_JSON_BYTES, parse_json, read_bytes, why_changed
from maskloom.system.launch import num_processes
from maskloom.training.ranks.ranks import ONE_RANK, Ranks
from maskloom.training.state import TrainState

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
MODEL, OPTIMIZER, REST, CARRY = "model.safetensors", "optimizer.safetensors", "state.json", "carry.safetensors"
Tensors = Mapping[str, torch.Tensor]
SHARDED = "sharded"
"""The manifest's `layout` of a checkpoint that several processes wrote as shards; other checkpoints have none."""
# A save starts only if the disk has room for this many times its size.
_ROOM = 1.2
# a checkpoint, or one that a killed save had set aside
_NAME = re.compile(r"step-[0-9]+(\.old-[0-9]+)?")


def write_manifest(folder: Path, *, step: int, files: dict[str, dict[str, Any]], facts: dict[str, Any]) -> None:
    """Write the manifest of a folder whose `files`, by name with `bytes` and `sha256`, are all written and synced."""
    content = {"format_version": FORMAT_VERSION, "step": step, **facts, "files": files}
    write_hashed(folder / MANIFEST, [_as_bytes({**content, "sha256": _sum_of(content)})])


def check_checkpoint(folder: Path, *, run: str | None = None) -> None:
    """Check a checkpoint's manifest against itself, every file that it names and the files that are required.

    Raises DataError for the first file that is missing, truncated or changed, a newer format, another step or `run`.
    """
    manifest = _read(folder / MANIFEST)
    files = manifest["files"]
    for name in sorted({REST, *files}):
        described = files.get(name)
        if not isinstance(described, dict) or type(described.get("bytes")) is not int or Path(name).name != name:
            raise DataError(f"{folder / MANIFEST}: not a checkpoint manifest: {name!r} is not among its files")
        if problem := why_changed(folder / name, described["bytes"], str(described.get("sha256"))):
            raise DataError(f"{folder / name}: {problem}")
    number = folder.name.removeprefix("step-").partition(".")[0]
    if number.isdigit() and int(number) != manifest.get("step"):
        raise DataError(
            f"{folder}: its manifest is for step {manifest.get('step')!r}: the folder was renamed or swapped"
        )
    missing = {MODEL, OPTIMIZER, ".metadata"} - files.keys()
    if missing != ({MODEL, OPTIMIZER} if manifest.get("layout") == SHARDED else {".metadata"}):
        raise DataError(f"{folder}: not a checkpoint: the manifest does not name {', '.join(sorted(missing))}")
    owner = manifest.get("run")
    if run is not None and owner is not None and owner != run:
        raise DataError(f"{folder}: the checkpoint belongs to another run ({owner}; this one is {run})")


def _read(path: Path) -> dict[str, Any]:
    """Return a manifest whose format and own checksum are valid; raises DataError for any other."""
    content = read_bytes(path, limit=MAX_JSON_BYTES)
    manifest = parse_json(content, str(path))
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise DataError(
            f"{path.parent}: format version {version}; this program reads version {FORMAT_VERSION}: "
            "a newer program wrote it"
        )
    if version != FORMAT_VERSION or not isinstance(manifest.get("files"), dict):
        raise DataError(f"{path}: not a checkpoint manifest")
    own = _sum_of({key: value for key, value in manifest.items() if key != "sha256"})
    # compare exact bytes, so that not even changed whitespace or case passes
    if manifest.get("sha256") != own or content != _as_bytes(manifest):
        raise DataError(f"{path}: damaged: it does not match its own SHA-256")
    return manifest


def _as_bytes(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()


def _sum_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(_as_bytes(content)).hexdigest()


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was loaded, the extra state saved with it, and why newer ones were skipped."""

    step: int
    extra: dict[str, Any]
    refused: list[str]


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint: weights, moments by `moment.parameter`, the rest as JSON, rows' carry by number."""

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    rest: str
    carry: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, state: TrainState, extra: dict[str, Any]) -> Snapshot:
        """Return the current state; its tensors are not copied, so the next step changes them."""
        moments: dict[str, torch.Tensor] = {}
        steps: dict[str, float] = {}
        for name, parameter in state.model.named_parameters():
            for key, value in state.optimizer.state.get(parameter, {}).items():
                if key == "step":
                    steps[name] = value if isinstance(value, int) else float(value)
                else:
                    moments[f"{key}.{name}"] = value
        rest = {"step": state.step, "position": state.position, "optimizer_steps": steps, "extra": extra}
        # every distinct parameter by its first name: tied ones appear once
        weights = {name: parameter.detach() for name, parameter in state.model.named_parameters()}
        carry = {str(number): tensor for number, tensor in enumerate(state.carry or ())}
        return cls(state.step, weights, moments, json.dumps(rest, indent=1), carry)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return weights and moments together: `model.parameter` and `optimizer.moment.parameter`."""
        model = {f"model.{name}": tensor for name, tensor in self.model.items()}
        return model | {f"optimizer.{name}": tensor for name, tensor in self.optimizer.items()}

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensors and the rest take on disk, without headers."""
        return sum(tensor.nbytes for tensor in [*self.tensors().values(), *self.carry.values()]) + len(self.rest)

    def small_files(self) -> dict[str, Iterable[Any]]:
        """Return the content of the files other than weights and moments, by name."""
        carried = {CARRY: safetensors_pieces(self.carry)} if self.carry else {}
        return {REST: [self.rest.encode()], **carried}


def write_checkpoint(
    snapshot: Snapshot, folder: Path, *, keep: int = 2, pinned: Collection[int] = (), run: str | None = None
) -> Path:
    """Write a snapshot to `folder/step-N`, then drop all checkpoints up to it but the newest `keep` and `pinned`.

    Files are hashed as they are written and synced under a temporary name, which is renamed once the manifest is in
    place: a killed save leaves the older checkpoints, and nothing that passes for a new one. `run` names the run that
    the checkpoint belongs to. The parent of `folder` must exist. Raises OSError, with a number in `files.DISK_ERRORS`
    and a message naming the step, the path and the cause, also when the disk has too little room.
    """
    with new_step_folder(snapshot, folder, keep=keep, pinned=pinned) as temporary:
        contents = {
            MODEL: safetensors_pieces(snapshot.model),
            OPTIMIZER: safetensors_pieces(snapshot.optimizer),
            **snapshot.small_files(),
        }
        files = {name: write_hashed(temporary / name, pieces) for name, pieces in contents.items()}
        facts = {"world_size": num_processes(), "run": run, "torch": torch.__version__}
        write_manifest(temporary, step=snapshot.step, files=files, facts=facts)
    return folder / f"step-{snapshot.step:08d}"


@contextmanager
def new_step_folder(snapshot: Snapshot, folder: Path, *, keep: int, pinned: Collection[int] = ()) -> Iterator[Path]:
    """Yield a folder that becomes a checkpoint, then drop older ones; raises OSError as `write_checkpoint` does."""
    step, final = snapshot.step, folder / f"step-{snapshot.step:08d}"
    temporary, former = (folder / f"{final.name}.{what}-{os.getpid()}" for what in ("tmp", "old"))
    try:
        folder.mkdir(exist_ok=True)
        _tidy(folder)
        total, _used, free = shutil.disk_usage(folder)
        if total and free < (needed := _ROOM * snapshot.num_bytes):
            cause = f"{os.strerror(errno.ENOSPC)}: {free / 2**20:,.1f} MiB free"
            raise OSError(
                errno.ENOSPC, f"{cause}, {needed / 2**20:,.1f} MiB ({_ROOM} times the checkpoint) needed", str(folder)
            )
        with taking_the_place(temporary, final, former):  # a checkpoint set aside as `former` still counts
            yield temporary
    except OSError as error:  # whatever the cause, no file can be stored here now
        rest = "earlier ones are intact" if folder.exists() else "its folder no longer exists"
        number = error.errno if error.errno in DISK_ERRORS else errno.EIO
        message = f"{error.strerror}; the checkpoint of step {step} was not saved; {rest}"
        raise OSError(number, message, str(error.filename or temporary)) from error
    drop_old_checkpoints(folder, step, keep, pinned)


def restore_checkpoint(
    state: TrainState, folder: Path, *, run: str | None = None, ranks: Ranks = ONE_RANK
) -> Restored | None:
    """Load the newest valid checkpoint of `folder` into `state`; return None if there is none at all.

    Checkpoints that fail their check, or belong to another model or `run`, are skipped and listed in `refused`; raises
    DataError naming them if none is left. With several `ranks` the first one chooses for all.
    """
    restored = _restored(state, folder, run, ranks) if ranks.is_first else None
    step = int(ranks.sum_({"step": 0 if restored is None else restored.step + 1})["step"]) - 1
    if restored is None and step >= 0:
        found = folder / f"step-{step:08d}"  # by name, as on a network disk a list of the folder may be old
        if not found.exists():
            raise DataError(
                f"{folder}: rank {ranks.rank} does not see step {step}; all ranks must share one file system"
            )
        restored = Restored(step=step, extra=_load_into(state, found, ranks), refused=[])
    return restored


def _restored(state: TrainState, folder: Path, run: str | None, ranks: Ranks) -> Restored | None:
    refused: list[str] = []
    with suppress(OSError):  # a read-only folder can still be read
        _tidy(folder)
    for candidate in step_folders(folder):
        try:
            check_checkpoint(candidate, run=run)
            extra = _load_into(state, candidate, ranks)
        except DataError as problem:
            refused.append(str(problem))
        else:
            return Restored(step=state.step, extra=extra, refused=refused)
    if refused:
        raise DataError(f"no checkpoint in {folder} can be used: {'; '.join(refused)}")
    return None


def step_folders(folder: Path) -> list[Path]:
    """Return checkpoint folders, newest first; one that a killed save had set aside may stand for its step."""
    if not folder.is_dir():
        return []
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):  # a folder set aside sorts after the one that took its name
        if _NAME.fullmatch(path.name):
            found.setdefault(path.name.partition(".")[0], path)
    return sorted(found.values(), key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """Return the step of one of the `step_folders`."""
    return int(folder.name.removeprefix("step-").partition(".")[0])


def _tidy(folder: Path) -> None:
    """Remove folders that a killed save left, even if its PID is in use again, and restore those that it set aside."""
    be_alone()
    for path in folder.glob("step-*.tmp-*"):
        _discard(path)
    for path in folder.glob("step-*.old-*"):
        final = path.with_name(path.name.partition(".old-")[0])
        if final.exists():
            _discard(path)
        else:
            rename(path, final)


def _discard(folder: Path) -> None:
    """Remove a folder that is no longer needed; the next save removes what cannot be removed now."""
    with suppress(OSError):
        remove_tree(folder)


def drop_old_checkpoints(folder: Path, step: int, keep: int, pinned: Collection[int]) -> None:
    """Remove all checkpoints up to a step except the newest `keep` and `pinned`; training replaces later ones."""
    for _ in range(2):  # what could not be removed is tried once more: no other save may follow
        for path in folder.glob(f"step-{step:08d}.old-*"):
            _discard(path)
        upto = [path for path in step_folders(folder) if step_of(path) <= step]
        for path in (old for old in upto[keep:] if step_of(old) not in pinned):
            with suppress(OSError):  # renamed, so that a kill leaves no partial checkpoint under its name
                rename(path, path.with_name(f"{path.name.partition('.')[0]}.tmp-{os.getpid()}"))
        for doomed in folder.glob(f"step-*.tmp-{os.getpid()}"):
            _discard(doomed)


def _load_into(state: TrainState, folder: Path, ranks: Ranks) -> dict[str, Any]:
    content, kept = json.loads((folder / REST).read_text(encoding="utf-8")), state.optimizer.state
    kept.clear()
    if (folder / ".metadata").exists():
        from maskloom.training.checkpointing.sharded_checkpoints import read_sharded  # heavy, and rarely needed

        moments = read_sharded(state.model, folder)
    else:
        moments = _read_whole(state.model, folder)
    parameters = dict(state.model.named_parameters())
    for name in content["optimizer_steps"].keys() & parameters.keys():
        step, device = content["optimizer_steps"][name], parameters[name].device
        is_tensor = isinstance(step, float)  # as torch's optimisers store it; others may use an int
        kept[parameters[name]]["step"] = torch.tensor(step, dtype=torch.float32, device=device) if is_tensor else step
    for full, tensor in moments.items():
        key, _, name = full.partition(".")
        kept[parameters[name]][key] = tensor
    carry = load_file(folder / CARRY) if (folder / CARRY).exists() else {}
    state.carry = ranks.own_rows(tuple(carry[str(number)] for number in range(len(carry)))) or None
    state.step = content["step"]
    state.position = content["position"]
    return content["extra"]


def _read_whole(model: nn.Module, folder: Path) -> dict[str, torch.Tensor]:
    """Load the weights of a model, or this rank's shard of them, and return the moments by `moment.parameter`."""
    try:
        weights, moments = load_file(folder / MODEL), load_file(folder / OPTIMIZER)
    except SafetensorError as error:
        raise DataError(f"{folder}: {error}") from None
    parameters = dict(model.named_parameters())
    check_shapes(folder, weights, parameters, moments)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(shared_like(weights[name], parameter))
    return {full: shared_like(tensor, parameters[full.partition(".")[2]]) for full, tensor in moments.items()}


def check_shapes(folder: Path, found: Tensors, expected: Tensors, moments: Tensors | None = None) -> None:
    """Raise DataError that names the tensors in a folder that do not match a model.

    Weights, by parameter, must have exactly the names and shapes of `expected`. `moments`, by `moment.parameter`, are
    optional; each must have a shape that broadcasts to its parameter's.
    """
    shapes, known = ({name: tuple(tensor.shape) for name, tensor in part.items()} for part in (found, expected))
    differing = {name for name in shapes.keys() | known.keys() if shapes.get(name) != known.get(name)}
    for full, tensor in (moments or {}).items():
        name = full.partition(".")[2]
        sizes = zip(tensor.shape[::-1], known.get(name, ())[::-1], strict=False)
        if name not in known or tensor.ndim > len(known[name]) or any(size not in (1, most) for size, most in sizes):
            differing.add(f"optimizer.{full}")
    if differing:
        raise DataError(
            f"{folder}: the checkpoint belongs to another model; it differs in {amount(len(differing), 'tensor')}: "
            f"{sorted(differing)[:4]}"
        )


def shared_like(full: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor: its shard if the parameter is sharded and has as many rows, else all."""
    if not hasattr(parameter, "device_mesh") or full.shape[:1] != parameter.shape[:1]:
        return full.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements  # pyright: ignore[reportAttributeAccessIssue]
    return distribute_tensor(full.to(parameter.device), mesh, placements, src_data_rank=None)


def fill_with_mean(model: nn.Module, folders: Sequence[Path]) -> None:
    """Set a model's weights to the mean over checkpoints, summed in fp64; raises as `checkpoint_weights` does."""
    sums = dict[str, torch.Tensor]()
    for folder in folders:
        for name, weight in checkpoint_weights(folder).items():
            sums[name] = sums[name] + weight if name in sums else weight.double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(sums[name] / len(folders))


def checkpoint_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's full weights by parameter; raises DataError for files that are changed or missing."""
    check_checkpoint(folder)
    try:
        if (folder / ".metadata").exists():
            from maskloom.training.checkpointing.sharded_checkpoints import read_sharded_weights  # heavy

            return read_sharded_weights(folder)
        return load_file(folder / MODEL)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder}: cannot be read; perhaps the run has just removed it: {error}") from None
