"""What the folder of a run tells, whether it is finished or not."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from maskloom.errors import ConfigError, DataError
from maskloom.foreign_files import read_bytes, read_json_object
from maskloom.runs.run_folder import RECIPE, RESULTS, RunKind, described, kind_of_run, runs_within
from maskloom.training.events import read_events

_TROUBLE = ("nonfinite", "warning", "out_of_memory", "lost_events")


@dataclass(frozen=True)
class RunRecord:
    """One run: its `kind`, recipe and description as plain values, and its results where it has come to any.

    `trained` are the runs inside it whose curves stand for it: itself, the best trial of a search, or that of every
    task of GLUE. `model_folder` is where its model lies when it is finished.
    """

    name: str
    folder: Path
    kind: RunKind
    recipe_text: str
    recipe: dict[str, Any]
    description: dict[str, Any]
    result: dict[str, Any] | None
    model_folder: Path
    inner: tuple[RunRecord, ...] = ()

    @property
    def trained(self) -> tuple[RunRecord, ...]:
        """The runs whose curves stand for this one."""
        return self.inner if self.kind in ("search", "glue") else (self,)

    @property
    def best(self) -> dict[str, Any] | None:
        """The result of a finished fine-tuning, or of the best trial of a search; None for others."""
        if self.result is None or self.kind not in ("finetune", "search"):
            return None
        return self.result if self.kind == "finetune" else self.result["best"]

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events of its log; [] where there is none yet."""
        path = self.folder / "events.jsonl"
        return read_events(path) if path.is_file() else []

    @cached_property
    def stages(self) -> dict[str, list[dict[str, Any]]]:
        """Its events by curve: all phases of a pre-training in one count of steps, or each seed by itself."""
        if self.kind == "pretrain":
            return {"": in_one_count(self.events)}
        by_stage: dict[str, list[dict[str, Any]]] = {}
        for event in self.events:
            if "stage" in event:
                by_stage.setdefault(str(event["stage"]), []).append(event)
        return by_stage

    @property
    def trouble(self) -> list[dict[str, Any]]:
        """What went wrong on the way: steps that were not finite, warnings, memory that ran out."""
        return [event for event in self.events if event.get("event") in _TROUBLE]

    @property
    def last_step(self) -> int:
        """The last step that was logged."""
        return max((event.get("step") or 0 for events in self.stages.values() for event in events), default=0)


def read_run(folder: str | Path, name: str) -> RunRecord:
    """Read the folder of a pre-training, a fine-tuning, a search or a GLUE run.

    Raises ConfigError for any other folder, and names the runs that lie in it, DataError for a file that is damaged.
    """
    folder = Path(folder)
    if not (folder / RECIPE).exists():
        raise ConfigError(_no_run(folder))
    description = described(folder)
    try:
        text = read_bytes(folder / RECIPE, limit=1 << 20).decode("utf-8")
        recipe = tomllib.loads(text)
    except ValueError as error:
        raise DataError(f"{folder / RECIPE}: not valid TOML: {error}") from None
    kind = kind_of_run(description)
    result = read_json_object(folder / RESULTS[kind]) if (folder / RESULTS[kind]).is_file() else None
    inner: list[RunRecord] = []
    if kind == "search" and result is not None:
        best = read_run(folder / "trials" / str(result["best"]["name"]), f"{name}, best trial")
        inner = [replace(best, model_folder=folder / "model")]
    if kind == "glue":
        tasks = sorted(path.parent for path in folder.glob(f"*/{RECIPE}"))
        inner = [run for path in tasks for run in read_run(path, f"{name}, {path.name}").inner]
        inner = [replace(run, name=run.name.removesuffix(", best trial")) for run in inner]
    return RunRecord(name, folder, kind, text, recipe, description, result, folder / "model", tuple(inner))


def _no_run(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder}: no such folder; a run folder is expected"
    inside = runs_within(folder)
    if not inside:
        return f"{folder} is not the folder of a run: it has no {RECIPE}"
    return f"{folder} holds several runs; name those that you want: {' '.join(map(str, inside[:12]))}"


def in_one_count(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count the steps of later phases of a pre-training on from those of the phases before."""
    staged = [event for event in events if "stage" in event]
    lasts: dict[str, int] = {}
    for event in staged:
        lasts[event["stage"]] = max(lasts.get(event["stage"], 0), event.get("step", 0))
    offsets = dict(zip(lasts, accumulate(lasts.values(), initial=0), strict=False))
    return [{**event, "step": offsets[event["stage"]] + event.get("step", 0)} for event in staged]
