"""Activations of a frozen encoder on disk: one flat array read through a memory map (BERT paper 5.4)."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maskloom.data.batch import ranges
from maskloom.errors import DataError
from maskloom.system.files import file_sha256, naming_disk, sync, write_bytes, write_json
from maskloom.system.foreign_files import read_json_object, why_changed

FORMAT_VERSION = 1
MANIFEST, FEATURES, OFFSETS = "manifest.json", "features.bin", "offsets.bin"
_PLAN, _DONE = "plan.json", "done.bin"
_TYPES = {"float32": "<f4", "float16": "<f2"}
Precision = Literal["float32", "float16"]


@dataclass(frozen=True)
class FeaturePlan:
    """The planned contents of a feature folder: `row_counts` rows of (vectors, width) numbers for each unit.

    `model` and `source` are fingerprints of the weights and of the encoded text that produce the numbers; `vectors`
    names the vectors of a row, in order: layers, or a combination of them.
    """

    model: str
    source: str
    vectors: tuple[str, ...]
    width: int
    row_counts: np.ndarray
    precision: Precision = "float32"

    @property
    def offsets(self) -> np.ndarray:
        """The first row of each unit, and the total number of rows at the end, (units + 1,) int64."""
        return np.concatenate([[0], np.cumsum(self.row_counts, dtype=np.int64)]).astype(np.int64)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, with a checksum instead of the row counts."""
        return {
            "format_version": FORMAT_VERSION,
            "model": self.model,
            "source": self.source,
            "vectors": list(self.vectors),
            "width": self.width,
            "precision": self.precision,
            "num_units": len(self.row_counts),
            "num_rows": int(self.row_counts.sum()),
            "offsets_sha256": hashlib.sha256(self.offsets.astype("<i8").tobytes()).hexdigest(),
        }


class FeatureWriter:
    """Writes the rows of units, in any order, to a folder that gets its final name when it is complete.

    Until then the rows are in a folder next to it, with a flag for every unit whose rows are on disk: a writer with the
    same plan resumes there. The disk space is allocated first, so OSError reports a lack of it immediately.
    """

    def __init__(self, folder: str | Path, plan: FeaturePlan) -> None:
        self._folder, self._plan = Path(folder), plan
        self._building = self._folder.with_name(self._folder.name + ".building")
        self._offsets, self._held = plan.offsets, plan.as_dict()
        if not (continues := self._continues()):
            shutil.rmtree(self._building, ignore_errors=True)
            self._building.mkdir(parents=True)
            (self._building / FEATURES).touch()
            (self._building / _DONE).write_bytes(bytes(len(plan.row_counts)))
            write_json(self._building / _PLAN, self._held)
        try:
            _take_room(self._building / FEATURES, _num_bytes(self._held))
        except OSError:
            if not continues:
                shutil.rmtree(self._building)
            raise
        self._done = np.fromfile(self._building / _DONE, dtype=np.uint8)
        self._array = _map(self._building / FEATURES, self._held, mode="r+")
        self._unmarked: list[int] = []

    def missing_units(self) -> np.ndarray:
        """Return the units that are still to be written, in order."""
        return np.flatnonzero(self._done == 0)

    def write(self, units: np.ndarray, rows: np.ndarray) -> None:
        """Write the rows (rows, vectors, width) of units; raises ValueError for other shapes or non-finite numbers."""
        expected = (int(self._plan.row_counts[units].sum()), len(self._plan.vectors), self._plan.width)
        if rows.shape != expected:
            raise ValueError(f"rows have shape {rows.shape}, but the units need {expected}")
        with np.errstate(over="ignore"):
            values = rows.astype(_TYPES[self._plan.precision])
        if not np.isfinite(values).all():
            raise ValueError(f"activations are not finite in precision {self._plan.precision}")
        self._array[ranges(self._offsets[:-1][units], self._plan.row_counts[units])] = values
        self._unmarked += units.tolist()

    def mark(self) -> None:
        """Flush everything written so far to disk, and record those units as done."""
        if isinstance(self._array, np.memmap):
            self._array.flush()
        self._done[self._unmarked] = 1
        self._unmarked = []
        write_bytes(self._building / _DONE, self._done.tobytes())

    def finish(self) -> None:
        """Write the manifest and give the folder its final name; raises ValueError if units are missing."""
        self.mark()
        if len(missing := self.missing_units()):
            raise ValueError(f"{len(missing)} units are not written, the first: {missing[0]}")
        del self._array
        write_bytes(self._building / OFFSETS, self._offsets.astype("<i8").tobytes())
        sums = {name: file_sha256(self._building / name) for name in (FEATURES, OFFSETS)}
        write_json(self._building / MANIFEST, {**self._held, "sha256": sums})
        if self._folder.exists():  # while a killed writer can still be resumed: this may take long
            shutil.rmtree(self._folder)
        for name in (_PLAN, _DONE):
            (self._building / name).unlink()
        self._building.rename(self._folder)
        sync(self._folder.parent)

    def _continues(self) -> bool:
        """Return whether an earlier writer with the same plan left files of the right sizes."""
        try:
            stored = read_json_object(self._building / _PLAN)
            sizes = [(self._building / name).stat().st_size for name in (FEATURES, _DONE)]
        except (OSError, ValueError):
            return False
        return stored == self._held and sizes == [_num_bytes(self._held), len(self._plan.row_counts)]


@dataclass(frozen=True)
class FeatureFile:
    """An open, finished feature folder: `array` is (rows, vectors, width), memory-mapped."""

    manifest: dict[str, Any]
    array: np.ndarray
    offsets: np.ndarray

    @classmethod
    def open(cls, folder: str | Path, plan: FeaturePlan | None = None, *, verify: bool = True) -> FeatureFile:
        """Open a folder; with a plan, only if its contents match the plan.

        Raises DataError, naming the file, if a file is missing or does not match the manifest in size or (with
        `verify`) in checksum, and if the numbers come from another model, text or layers than the plan's.
        """
        folder = Path(folder)
        manifest = _read_manifest(folder / MANIFEST)
        if plan is not None:
            _check_same(folder, manifest, plan.as_dict())
        for name, size in {FEATURES: _num_bytes(manifest), OFFSETS: 8 * (manifest["num_units"] + 1)}.items():
            if problem := why_changed(folder / name, size, manifest["sha256"][name] if verify else None):
                raise DataError(f"{folder / name}: {problem}; write the features again")
        offsets = np.fromfile(folder / OFFSETS, dtype="<i8")
        if offsets[0] != 0 or offsets[-1] != manifest["num_rows"] or (np.diff(offsets) < 0).any():
            raise DataError(f"{folder / OFFSETS}: its numbers do not ascend from 0 to {manifest['num_rows']}")
        return cls(manifest, _map(folder / FEATURES, manifest, mode="r"), offsets)

    @property
    def vectors(self) -> list[str]:
        """The names of the vectors in a row."""
        return self.manifest["vectors"]

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return self.manifest["width"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def rows(self, units: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the concatenated rows of some units, (rows, vectors, width) float32."""
        first, end = self.offsets[:-1][units], self.offsets[1:][units]
        return np.asarray(self.array[ranges(first, end - first)], dtype=np.float32)


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = read_json_object(path)
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(f"{path}: format_version {version!r}; this program reads {FORMAT_VERSION}")
    sizes, vectors, sums = ("num_rows", "num_units", "width"), manifest.get("vectors"), manifest.get("sha256")
    is_right = {
        **{name: type(size := manifest.get(name)) is int and 0 <= size < 2**40 for name in sizes},
        "vectors": isinstance(vectors, list) and all(isinstance(name, str) for name in vectors),
        "precision": manifest.get("precision") in tuple(_TYPES),
        "sha256": isinstance(sums, dict) and set(sums) == {FEATURES, OFFSETS},
    }
    if wrong := [f"{name} {manifest.get(name)!r:.80}" for name, is_good in is_right.items() if not is_good]:
        raise DataError(f"{path}: {', '.join(wrong)}: not the manifest of stored features; write them again")
    return manifest


def _check_same(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if found.get(name) != value:
            what = {"model": "another model", "source": "another text, or from one cut differently"}.get(name)
            values = f"{name} is {found.get(name)!r:.90}, but {value!r:.90} is needed"
            raise DataError(
                f"{folder / MANIFEST}: {f'these features are from {what}' if what else values}; choose a new --out, or "
                "remove the folder to write them again"
            )


def _shape(held: dict[str, Any]) -> tuple[int, int, int]:
    return held["num_rows"], len(held["vectors"]), held["width"]


def _num_bytes(held: dict[str, Any]) -> int:
    return math.prod(_shape(held)) * np.dtype(_TYPES[held["precision"]]).itemsize


def _take_room(path: Path, num_bytes: int) -> None:
    """Allocate a file's size on disk; writing through a map into a hole of a full disk would kill the process."""
    with naming_disk(path), path.open("r+b") as file:
        if num_bytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        file.truncate(num_bytes)


def _map(path: Path, held: dict[str, Any], *, mode: Literal["r", "r+"]) -> np.ndarray:
    shape, dtype = _shape(held), np.dtype(_TYPES[held["precision"]])
    # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode=mode, shape=shape) if math.prod(shape) else np.empty(shape, dtype)
