"""Checkpoints that several processes write together, each its shard, with torch.distributed.checkpoint (DCP).

DCP itself does not verify its files, rewrites them in place and reads a pickle. Here every save has its own folder and
manifest, and the pickle is read only after its hash matches, by an unpickler that allows a few harmless types.
"""

from __future__ import annotations

import errno
import os
import pickle
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from maskloom.errors import DataError
from maskloom.system.files import disk_call, file_sha256, write_hashed
from maskloom.training.checkpointing.background_saves import BackgroundSaves
from maskloom.training.checkpointing.checkpoints import (
    SHARDED,
    Snapshot,
    check_shapes,
    new_step_folder,
    shared_like,
    write_manifest,
)
from maskloom.training.ranks.distributed import DistributedRanks
from maskloom.training.ranks.ranks import Ranks

_METADATA = "torch.distributed.checkpoint.metadata"
# The types in the description of a DCP folder. Constructing them from data has no side effects.
_HARMLESS = {
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    *(("torch", name) for name in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool")),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
    *((_METADATA, name) for name in ("ChunkStorageMetadata", "TensorProperties", "TensorStorageMetadata")),
}


def write_sharded(
    snapshot: Snapshot,
    folder: Path,
    ranks: DistributedRanks,
    *,
    keep: int,
    pinned: Collection[int] = (),
    run: str | None = None,
) -> Path:
    """Write the shards of all ranks as one checkpoint; every rank calls it, and gets OSError if one cannot write."""
    number = int(ranks.sum_({"process": float(os.getpid() if ranks.is_first else 0)})["process"])
    temporary = folder / f"step-{snapshot.step:08d}.tmp-{number}"
    with ExitStack() as stack:
        with _failing_together(ranks, snapshot.step):
            if ranks.is_first:
                stack.enter_context(new_step_folder(snapshot, folder, keep=keep, pinned=pinned))
        writer = FileSystemWriter(temporary, sync_files=True, overwrite=False)
        try:
            with disk_call():
                save(snapshot.tensors(), storage_writer=writer, process_group=ranks.control)
        except CheckpointException as failed:
            rank, (cause, _trace) = min(failed.failures.items())
            number, step = getattr(cause, "errno", None) or errno.EIO, snapshot.step
            message = f"rank {rank} could not write: {cause}; the checkpoint of step {step} was not saved"
            raise OSError(number, message) from None
        with _failing_together(ranks, snapshot.step):
            if ranks.is_first:
                written = sorted(temporary.iterdir())
                files = {path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in written}
                for name, pieces in snapshot.small_files().items():
                    files[name] = write_hashed(temporary / name, pieces)
                facts = {"layout": SHARDED, "world_size": ranks.world_size, "run": run, "torch": torch.__version__}
                write_manifest(temporary, step=snapshot.step, files=files, facts=facts)
                stack.close()
    return folder / f"step-{snapshot.step:08d}"


class ShardedSaves(BackgroundSaves):
    """Saves of a sharded state, by a thread of each rank; all ranks start them together.

    A failed write is reported by the next `start`, `save` or `wait`, which all ranks reach at the same step.
    """

    def __init__(self, folder: Path, ranks: Ranks, **settings: Any) -> None:
        super().__init__(folder, **settings)
        assert isinstance(ranks, DistributedRanks)  # no other ranks shard the weights
        self._ranks = ranks.for_saving()
        self._mesh: DeviceMesh | None = None

    def check(self) -> None:
        """Do nothing: writes end at different steps on different ranks, but all must learn of a failure at one step."""

    def _put(self, snapshot: Snapshot, **settings: Any) -> Path:
        return write_sharded(snapshot, self._folder, self._ranks, **settings)

    def _copy(self, key: str, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return super()._copy(key, tensor)
        if self._mesh is None:  # on the same groups, as copies send nothing
            mesh = tensor.device_mesh
            names = mesh.mesh_dim_names
            self._mesh = DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh.mesh, mesh_dim_names=names)
        shape = {"shape": tensor.shape, "stride": tensor.stride()}
        shard = super()._copy(key, tensor.to_local())
        return DTensor.from_local(shard, self._mesh, tensor.placements, run_check=False, **shape)

    def _has_room(self, snapshot: Snapshot) -> bool:
        return not self._ranks.any_(not super()._has_room(snapshot))


def read_sharded(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Load the weights of a model, or this rank's shard of them, and return the moments by `moment.parameter`.

    The folder has been checked; raises DataError if its tensors are those of another model.
    """
    reader, parameters = _Reader(folder), dict(model.named_parameters())
    found = reader.planned()
    kept = {full.removeprefix("optimizer."): found[full] for full in found if full.startswith("optimizer.")}
    weights = {full.removeprefix("model."): found[full] for full in found if not full.startswith("optimizer.")}
    check_shapes(folder, weights, parameters, kept)
    moments = {
        full: shared_like(torch.zeros_like(planned, device="cpu"), parameters[full.partition(".")[2]])
        for full, planned in kept.items()
    }
    targets = {f"model.{name}": parameter.detach() for name, parameter in parameters.items()}
    _load(reader, targets | {f"optimizer.{full}": tensor for full, tensor in moments.items()})
    return moments


def read_sharded_weights(folder: Path) -> dict[str, Tensor]:
    """Return the full weights in a folder by parameter, read as `read_sharded` does."""
    reader = _Reader(folder)
    planned = {full: tensor for full, tensor in reader.planned().items() if full.startswith("model.")}
    targets = {full: torch.empty_like(tensor, device="cpu") for full, tensor in planned.items()}
    _load(reader, targets)
    return {full.removeprefix("model."): tensor for full, tensor in targets.items()}


@torch.no_grad()
def _load(reader: _Reader, targets: dict[str, Tensor]) -> None:
    with warnings.catch_warnings():
        # each rank reads what it needs separately, and DCP warns of that
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(targets, storage_reader=reader, no_dist=True)


class _Reader(FileSystemReader):
    """Reads a folder's description with an unpickler that can call nothing else, and no file outside the folder."""

    def planned(self) -> dict[str, Tensor]:
        """Return a meta-device tensor for each tensor in the folder, sorted by name."""
        entries: dict[str, Any] = self.read_metadata().state_dict_metadata
        kinds = ((full, entry.size, entry.properties.dtype) for full, entry in sorted(entries.items()))
        return {full: torch.empty(size, dtype=dtype, device="meta") for full, size, dtype in kinds}

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        place = Path(self.path) / ".metadata"
        try:
            with place.open("rb") as file:
                metadata = _HarmlessUnpickler(file).load()
            if not isinstance(metadata, Metadata):
                raise pickle.UnpicklingError(f"a {type(metadata).__name__}")
            for name, entry in metadata.state_dict_metadata.items():
                if not isinstance(entry, TensorStorageMetadata):  # other objects are further pickles
                    raise pickle.UnpicklingError(f"{name!r} is not a tensor")
            for stored in metadata.storage_data.values():
                if Path(stored.relative_path).name != stored.relative_path or stored.transform_descriptors:
                    raise pickle.UnpicklingError(f"{stored.relative_path!r} is not a plain file in the folder")
        except OSError as error:
            raise DataError(f"{place}: {error.strerror}") from None
        except Exception as error:  # a damaged pickle may raise anything
            raise DataError(f"{place}: does not describe a maskloom checkpoint: {error}") from None
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _HarmlessUnpickler(pickle.Unpickler):  # may run code: only listed names are allowed
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return super().find_class(module, name)


@contextmanager
def _failing_together(ranks: Ranks, step: int) -> Iterator[None]:
    """Within, a rank's disk error is raised there, and an OSError with the same number on the other ranks."""
    problem = None
    try:
        yield
    except OSError as error:
        problem = error
    number = (problem.errno or errno.EIO) if problem is not None else 0
    shared = ranks.sum_({"number": float(number), "ranks": float(problem is not None)})
    if problem is not None:
        raise problem
    if shared["ranks"]:
        number = round(shared["number"] / shared["ranks"])
        raise OSError(number, f"another rank could not write; the checkpoint of step {step} was not saved")
