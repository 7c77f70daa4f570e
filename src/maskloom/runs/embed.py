"""Vectors for every row of a file, in its order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from maskloom.checkpoints.sentence_transformers import PoolingMode
from maskloom.files import output_file
from maskloom.inference import Predictor
from maskloom.runs.first_look import check_place
from maskloom.runs.predict import output_suffix
from maskloom.runs.progress import Progress
from maskloom.runs.reading_defaults import FileReading
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS
from maskloom.training.memory import release_free_memory

_WINDOW = 4096


def embed(
    model: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    pooling: PoolingMode | None = None,
    normalize: bool | None = None,
    reading: ReadingOptions | None = None,
    max_length: int | None = None,
    int8: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write one vector a row: .npy holds (rows, hidden) float32, .jsonl one object with `index` and `vector` a row.

    Texts are read as single ones unless a pair column is named. `pooling` and `normalize` are those of
    `Predictor.encode`. `int8` computes in eight-bit integers. Memory is bounded, and the output takes its name when it
    is complete. Raises ConfigError or DataError for a wrong option, model or file, or for `int8` on a processor that
    lacks it.
    """
    progress, source, target = progress or Progress(), Path(input), Path(output)
    check_place(source, target)
    suffix = output_suffix(target, (".npy", ".jsonl"))
    predictor = Predictor.load(model, max_length=max_length, int8=int8)
    modules = predictor.modules.changed(pooling, normalize)
    report = ReadingReport(source)
    kind = "pair" if reading is not None and reading.pair_column else "single"
    texts = FileReading(source, KINDS[kind], reading or ReadingOptions(), {}, report, needs_label=False)
    progress.begin("embedding", texts.count())
    with output_file(target) as file:
        if suffix == ".npy":
            _write_header(file, 0, predictor.hidden_size)
        index = 0
        for vectors in _vectors(predictor, texts, pooling, normalize):
            if suffix == ".npy":
                file.write(vectors.astype("<f4", copy=False).tobytes())
            else:
                for number, vector in enumerate(vectors.tolist(), start=index):
                    file.write(json.dumps({"index": number, "vector": vector}).encode() + b"\n")
            index += len(vectors)
            progress.advance(index)
            release_free_memory()  # batches differ in size, so the C library would keep more and more of what was freed
        if suffix == ".npy":
            file.seek(0)
            _write_header(file, index, predictor.hidden_size)
    progress.end()
    return {
        "output": str(target),
        "num_vectors": report.num_kept,
        "hidden_size": predictor.hidden_size,
        "pooling": modules.pooling,
        "normalized": modules.normalizes,
        "int8": int8,
        "num_truncated_examples": predictor.num_truncated,
        "max_length": predictor.max_length,
        "data": report.as_dict(),
    }


def _vectors(
    predictor: Predictor, reading: FileReading, pooling: PoolingMode | None, normalize: bool | None
) -> Iterator[np.ndarray]:
    for window in reading.pieces(_WINDOW):
        texts = [example.text if example.pair is None else (example.text, example.pair) for example in window]
        yield predictor.encode(texts, pooling=pooling, normalize=normalize)


def _write_header(file: IO[bytes], num_rows: int, width: int) -> None:
    """Write the header of a .npy file; numpy leaves room in it for the first axis to grow to 21 digits."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, width)}
    np.lib.format.write_array_header_1_0(file, header)
