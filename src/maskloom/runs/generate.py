"""A continuation for every row of a file, in its order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from maskloom.files import output_file
from maskloom.generation.search import Generation
from maskloom.inference import Predictor
from maskloom.runs.first_look import check_place
from maskloom.runs.predict import output_suffix
from maskloom.runs.progress import Progress
from maskloom.runs.reading_defaults import FileReading
from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.tables import ReadingOptions
from maskloom.training.memory import release_free_memory

_WINDOW = 64


def generate(
    model: str | Path,
    input: str | Path,
    output: str | Path,
    settings: Generation,
    *,
    reading: ReadingOptions | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a .jsonl with a row for each prompt: `index`, `line`, `prompt`, and what `GeneratedText` has.

    The output takes its name when it is complete. Raises ConfigError or DataError for a model that continues nothing, a
    wrong file, and a prompt, by its line, that is empty or too long.
    """
    progress, source, target = progress or Progress(), Path(input), Path(output)
    check_place(source, target)
    output_suffix(target, (".jsonl",))
    predictor = Predictor.load(model, batch_size=batch_size)
    report = ReadingReport(source)
    rows = FileReading(source, KINDS["single"], reading or ReadingOptions(), {}, report, needs_label=False)
    progress.begin("generating", rows.count())
    index = num_tokens = 0
    with output_file(target, "w") as file:
        for window in rows.pieces(_WINDOW):
            texts = [example.text for example in window]
            ids = predictor.prompt_ids(texts, [f"{source}, line {example.line}" for example in window])
            for example, found in zip(window, predictor.generate_from_ids(ids, settings, index), strict=True):
                row = {"index": index, "line": example.line, "prompt": example.text, **found}
                print(json.dumps(row, ensure_ascii=False), file=file)
                index, num_tokens = index + 1, num_tokens + found["num_tokens"]
            progress.advance(index)
            release_free_memory()
    progress.end()
    return {"output": str(target), "num_texts": index, "num_tokens": num_tokens, "data": report.as_dict()}
