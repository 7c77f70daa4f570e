"""Doing a run again from what its folder says, and comparing what comes out to the bit."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from maskloom.checkpoints.tensor_files import WEIGHTS
from maskloom.config import ConfigError, DataError, FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.data.corpus import Corpus
from maskloom.data.corpus_manifest import MANIFEST
from maskloom.foreign_files import check_regular, read_json_object
from maskloom.launch import num_processes
from maskloom.runs.finetune import finetune
from maskloom.runs.fingerprints import fingerprint, model_files
from maskloom.runs.pretrain import pretrain
from maskloom.runs.progress import Progress
from maskloom.runs.rerun_corpus import check_versions, rerun_corpus
from maskloom.runs.run_folder import METRICS, RECIPE, RESULTS, described, environment, kind_of_run, runs_within
from maskloom.runs.search import PLAN
from maskloom.runs.verification import differing_tensors, sum_of_tensors
from maskloom.runs.vocabulary import REPORT
from maskloom.tasks.columns import ReadingOptions

_SUMS: dict[str, Callable[[Path], str]] = {
    "corpus": lambda path: Corpus.open(path).fingerprint,
    "init": lambda path: fingerprint(*model_files(path)),
    "model": lambda path: fingerprint(*model_files(path)),
    "train": fingerprint,
    "dev": fingerprint,
    "labels": fingerprint,
}
# Where `inputs` has another name for what a path leads to.
_INPUT_NAMES = {"init": "init_model"}


def rerun(
    run: str | Path,
    *,
    out: str | Path,
    resume: bool = False,
    allow_version_change: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Repeat a finished run in a new folder, and return whether what came out is identical.

    Recipe, inputs, seeds and number of threads are those that the folder `run` tells; nothing in it changes. A run is
    a pre-training, a fine-tuning, a search, whose best trial is repeated, or a corpus, whose files are compared. The
    result holds `identical`, the SHA-256 sums of both models' tensors and the first `differing` ones. Before the start
    raises ConfigError for what cannot be repeated, for other versions of the program and its libraries (unless
    `allow_version_change`) and for another number of processes, DataError for data that changed or is gone.
    """
    run, out, progress = Path(run), Path(out), progress or Progress()
    if (run / MANIFEST).exists():
        return rerun_corpus(run, out=out, allow_version_change=allow_version_change, progress=progress)
    _refuse_what_is_no_run(run)
    model, content = run / "model", described(run)
    if kind_of_run(content) == "search":
        if not (run / RESULTS["search"]).exists():
            raise ConfigError(f"{run}: the search is not finished; finish it by `maskloom search ... --resume`")
        run = run / "trials" / str(read_json_object(run / RESULTS["search"])["best"]["name"])
        content = described(run)
        progress.say(f"the best trial is repeated: {run}")
    if "paths" not in content or "world_size" not in content:
        raise ConfigError(f"{run}: an older version made it, which did not record the paths of its inputs")
    if not (model / WEIGHTS).exists():
        raise ConfigError(_without_model(run))
    check_versions(run, content["versions"], environment()["versions"], allow_version_change, progress)
    _check_machine(run, content, progress)
    paths = _checked_paths(run, content)
    torch.set_num_threads(content["hardware"]["threads"])
    recipe = load_recipe(PretrainRecipe if kind_of_run(content) == "pretrain" else FinetuneRecipe, run / RECIPE)
    if recipe.training.minutes is not None:
        raise ConfigError(
            f"{run}: its learning rate followed the clock (training.minutes), so no rerun gives the same bits; "
            "events.jsonl records the fraction of the time used at every step"
        )
    if isinstance(recipe, PretrainRecipe):
        pretrain(recipe, corpus=paths["corpus"], init=paths.get("init"), out=out, resume=resume, progress=progress)
    else:
        inputs = content["inputs"]
        reading = ReadingOptions(**inputs["reading"])
        finetune(
            recipe,
            model=paths["model"],
            train=paths["train"],
            dev=paths["dev"],
            out=out,
            resume=resume,
            reading=replace(reading, labels=str(paths["labels"])) if "labels" in paths else reading,
            metric=inputs["metric"],
            progress=progress,
        )
    return _compared(model, out)


def _refuse_what_is_no_run(folder: Path) -> None:
    """Raise ConfigError that names the command that does it for folders of several runs and of a vocabulary."""
    if (folder / RECIPE).exists() and kind_of_run(described(folder)) != "glue":
        return
    if (folder / REPORT).exists():
        raise ConfigError(
            f"{folder} is a vocabulary: `maskloom vocab train` with the same text and options writes the same bytes; "
            f"the SHA-256 of its vocab.txt is {read_json_object(folder / REPORT).get('sha256')}"
        )
    if runs := runs_within(folder):
        commands = " or ".join(_command(run) for run in runs)
        raise ConfigError(f"{folder} holds several runs; repeat one of them: {commands}")


def _without_model(run: Path) -> str:
    """Return why a run has no model to compare with, and what to do about that."""
    search = run.parent.parent
    if (run / METRICS).exists() and run.parent.name == "trials" and (search / PLAN).exists():
        trials = read_json_object(search / PLAN)["trials"]
        command = next((trial["command"] for trial in trials if trial["name"] == run.name), "")
        return (
            f"{run}: the search kept only the model of its best trial, which `{_command(search)}` repeats; "
            f"this one without a comparison: {command}"
        )
    return f"{run}: the run is not finished, so there is nothing to compare with; finish it by --resume"


def _command(run: Path) -> str:
    return shlex.join(["maskloom", "rerun", str(run), "--out", "NEW"])


def _check_machine(run: Path, content: dict[str, Any], progress: Progress) -> None:
    """Raise ConfigError for another number of processes; say what of the machine may change the last bits."""
    if num_processes() != content["world_size"]:
        raise ConfigError(
            f"{run} was trained by {content['world_size']} processes, this is {num_processes()}; "
            f"start with torchrun --nproc-per-node {content['world_size']}"
        )
    before, now = content["hardware"], environment()["hardware"]
    names = ("machine", "processor", "cuda")
    changes = [f"{name} was {before.get(name)}, is {now[name]}" for name in names if before.get(name) != now[name]]
    if changes:
        progress.say(f"WARNING: {'; '.join(changes)}: the last bits may differ")


def _checked_paths(run: Path, content: dict[str, Any]) -> dict[str, Path]:
    """Return where the inputs lie; raises DataError that names the first one that is gone or has other contents."""
    paths = {name: Path(path) for name, path in content["paths"].items()}
    for name, path in paths.items():
        if not path.exists():
            raise DataError(f"{path}: the {name} of {run} no longer exists")
        expected, found = content["inputs"].get(_INPUT_NAMES.get(name, name)), _SUMS[name](path)
        if found != expected:
            raise DataError(f"{path}: the {name} of {run} has changed: its checksum was {expected}, is {found}")
    return paths


def _tensors(folder: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    check_regular(folder / WEIGHTS)
    return {f"{prefix}{name}": tensor for name, tensor in load_file(folder / WEIGHTS).items()}


def _compared(model: Path, out: Path) -> dict[str, Any]:
    before, now = _tensors(model), _tensors(out / "model")
    best = model.with_name("best-model")  # of pre-training with training.keep_best
    if (best / WEIGHTS).exists():
        before |= _tensors(best, "best-model: ")
        now |= _tensors(out / best.name, "best-model: ")
    differing = differing_tensors(before, now)
    return {
        "run": str(model.parent),
        "rerun": str(out),
        "identical": not differing,
        "sha256_of_run": sum_of_tensors(before),
        "sha256_of_rerun": sum_of_tensors(now),
        "num_tensors": len(before),
        "num_differing": len(differing),
        "differing": differing[:4],
    }
