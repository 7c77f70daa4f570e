"""Which run a folder stands for that is to be repeated, and what to do about folders that stand for none."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from maskloom.config import ConfigError
from maskloom.foreign_files import read_json_object
from maskloom.runs.run_folder import DESCRIPTION, RECIPE, described
from maskloom.runs.search import PLAN, RESULTS
from maskloom.runs.vocabulary import REPORT


def refuse_what_is_no_run(folder: Path) -> None:
    """Raise ConfigError that names the command that does it for folders of several runs and of a vocabulary."""
    if (folder / RECIPE).exists() and "tasks" not in described(folder)["inputs"]:
        return
    if (folder / REPORT).exists():
        raise ConfigError(
            f"{folder} is a vocabulary: `maskloom vocab train` with the same text and options writes the same bytes; "
            f"the SHA-256 of its vocab.txt is {read_json_object(folder / REPORT).get('sha256')}"
        )
    runs = sorted(path.parent for path in folder.glob(f"*/{DESCRIPTION}") if (path.parent / RECIPE).exists())
    if runs:
        commands = " or ".join(_command(run) for run in runs)
        raise ConfigError(f"{folder} holds several runs; repeat one of them: {commands}")


def is_search(content: dict[str, Any]) -> bool:
    """Tell whether a folder's description is that of a search."""
    return "space" in content["inputs"] and "method" in content["inputs"]


def best_trial(search: Path) -> Path:
    """Return the run folder of a search's best trial, whose model lies in the search's own folder.

    Raises ConfigError for a search that is not finished.
    """
    if not (search / RESULTS).exists():
        raise ConfigError(f"{search}: the search is not finished; finish it by `maskloom search ... --resume`")
    return search / "trials" / read_json_object(search / RESULTS)["best"]["name"]


def without_model(run: Path) -> str:
    """Return why a run has no model to compare with, and what to do about that."""
    search = run.parent.parent
    if (run / "metrics.json").exists() and run.parent.name == "trials" and (search / PLAN).exists():
        trials = read_json_object(search / PLAN)["trials"]
        command = next((trial["command"] for trial in trials if trial["name"] == run.name), "")
        return (
            f"{run}: the search kept only the model of its best trial, which `{_command(search)}` repeats; "
            f"this one without a comparison: {command}"
        )
    return f"{run}: the run is not finished, so there is nothing to compare with; finish it by --resume"


def _command(run: Path) -> str:
    return shlex.join(["maskloom", "rerun", str(run), "--out", "NEW"])
