"""Doing a run again from what its folder says, and comparing the weights to the bit."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from maskloom.checkpoints.tensor_files import WEIGHTS
from maskloom.config import ConfigError, DataError, FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.data.corpus import Corpus
from maskloom.launch import num_processes
from maskloom.runs.finetune import finetune
from maskloom.runs.fingerprints import fingerprint, model_files
from maskloom.runs.pretrain import pretrain
from maskloom.runs.progress import Progress, SilentProgress
from maskloom.runs.run_folder import RECIPE, described, environment
from maskloom.runs.verification import differing_tensors, sum_of_tensors
from maskloom.tasks.columns import ReadingOptions

_SUMS: dict[str, Callable[[Path], str]] = {
    "corpus": lambda path: Corpus.open(path).fingerprint,
    "init": lambda path: fingerprint(*model_files(path)),
    "model": lambda path: fingerprint(*model_files(path)),
    "train": fingerprint,
    "dev": fingerprint,
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
    """Repeat a finished pre-training or fine-tuning run in a new folder, and return whether the weights are identical.

    Recipe, inputs, seeds and number of threads are those that the folder `run` tells; nothing in it changes. The result
    holds `identical`, the SHA-256 sums of both models' tensors and the first `differing` ones. Before the start raises
    ConfigError for what cannot be repeated, for other versions of the program and its libraries (unless
    `allow_version_change`) and for another number of processes, DataError for data that changed or is gone.
    """
    run, out, progress = Path(run), Path(out), progress or SilentProgress()
    content = described(run)
    kind = _kind_of(run, content)
    if not (run / "model" / WEIGHTS).exists():
        raise ConfigError(f"{run}: the run is not finished, so there is nothing to compare with; finish it by --resume")
    _check_versions(run, content, allow_version_change, progress)
    paths = _checked_paths(run, content)
    torch.set_num_threads(content["hardware"]["threads"])
    if kind == "pretrain":
        recipe = load_recipe(PretrainRecipe, run / RECIPE)
        pretrain(recipe, corpus=paths["corpus"], init=paths.get("init"), out=out, resume=resume, progress=progress)
    else:
        inputs = content["inputs"]
        finetune(
            load_recipe(FinetuneRecipe, run / RECIPE),
            model=paths["model"],
            train=paths["train"],
            dev=paths["dev"],
            out=out,
            resume=resume,
            reading=ReadingOptions(**inputs["reading"]),
            metric=inputs["metric"],
            progress=progress,
        )
    return _compared(run, out)


def _kind_of(run: Path, content: dict[str, Any]) -> str:
    kind = tomllib.loads((run / RECIPE).read_text(encoding="utf-8")).get("kind")
    if "space" in content["inputs"]:
        raise ConfigError(f"{run} is a search; rerun one of its trials, such as {run / 'trials' / 'trial-001'}")
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(f"{run}: a run of kind {kind!r} cannot be repeated; pretrain and finetune can")
    if "paths" not in content or "world_size" not in content:
        raise ConfigError(f"{run}: an older version made it, which did not write down where its inputs lay")
    return kind


def _check_versions(run: Path, content: dict[str, Any], allow_change: bool, progress: Progress) -> None:
    """Raise ConfigError when this is not what made the run; say what else may change the last bits."""
    now, before = environment(), content["versions"]
    changes = [
        f"{name} was {before.get(name)}, is {now['versions'].get(name)}"
        for name in sorted(before.keys() | now["versions"].keys())
        if before.get(name) != now["versions"].get(name)
    ]
    if changes and not allow_change:
        raise ConfigError(f"{run}: {'; '.join(changes)}; --allow-version-change repeats the run all the same")
    if num_processes() != content["world_size"]:
        raise ConfigError(
            f"{run} was trained by {content['world_size']} processes, this is {num_processes()}; "
            f"start with torchrun --nproc-per-node {content['world_size']}"
        )
    for name in ("machine", "processor", "cuda"):
        if content["hardware"].get(name) != now["hardware"][name]:
            changes.append(f"{name} was {content['hardware'].get(name)}, is {now['hardware'][name]}")
    if changes:
        progress.say(f"WARNING: {'; '.join(changes)}: the last bits may differ")


def _checked_paths(run: Path, content: dict[str, Any]) -> dict[str, Path]:
    """Return where the inputs lie; raises DataError that names the first one that is gone or has other contents."""
    paths = {name: Path(path) for name, path in content["paths"].items()}
    for name, path in paths.items():
        if not path.exists():
            raise DataError(f"{path}: the {name} of {run} is not there any more")
        expected, found = content["inputs"].get(_INPUT_NAMES.get(name, name)), _SUMS[name](path)
        if found != expected:
            raise DataError(f"{path}: the {name} of {run} has changed: its sum was {expected}, is {found}")
    return paths


def _compared(run: Path, out: Path) -> dict[str, Any]:
    before, now = (load_file(folder / "model" / WEIGHTS) for folder in (run, out))
    differing = differing_tensors(before, now)
    return {
        "run": str(run),
        "rerun": str(out),
        "identical": not differing,
        "sha256_of_run": sum_of_tensors(before),
        "sha256_of_rerun": sum_of_tensors(now),
        "num_tensors": len(before),
        "num_differing": len(differing),
        "differing": differing[:4],
    }
