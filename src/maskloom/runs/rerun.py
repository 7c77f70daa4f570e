"""Repeating a run from its folder, and comparing the results bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from maskloom.checkpoints.tensor_files import WEIGHTS
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import ConfigError, DataError
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.pretrain import pretrain
from maskloom.runs.resuming import differing_tensors, sum_of_tensors
from maskloom.runs.run_folder import (
    DESCRIPTION,
    RECIPE,
    RESULTS,
    changes,
    described_model,
    environment,
    input_sums,
    kind_of_run,
)
from maskloom.system.foreign_files import check_regular, read_json_value


def rerun(
    run: Path,
    *,
    out: Path,
    resume: bool = False,
    allow_version_change: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Repeat a finished run in a new folder, and return whether the results are identical.

    Recipe, inputs, seeds and number of threads come from the folder `run`, which does not change. A run is a
    pre-training, a fine-tuning, or a search, whose best trial is repeated. The result holds `identical`, the SHA-256
    sums of both models' tensors and the first `differing` ones. Before starting, raises ConfigError for a run that
    cannot be repeated, for other versions of the program and its libraries (unless `allow_version_change`) and for
    another number of processes, and DataError for data that has changed or is gone.
    """
    model, content = run / "model", described_model(run)
    if kind_of_run(content) == "glue":
        raise ConfigError(f"{run} contains several runs; repeat one of them")
    if kind_of_run(content) == "search":
        if not (results := run / RESULTS["search"]).exists():
            raise ConfigError(f"{run}: the search is not finished; finish it with `maskloom search ... --resume`")
        run = run / "trials" / str(read_json_value(results, "best", dict).get("name"))
        content = described_model(run)
        progress.say(f"repeating the best trial: {run}")
    if not (model / WEIGHTS).exists():
        raise ConfigError(f"{run}: no model to compare with: the run is not finished, or its search kept only the best")
    for key, kind in (("versions", dict), ("hardware", dict), ("world_size", int), ("paths", dict)):
        read_json_value(run / DESCRIPTION, key, kind)
    if type(threads := content["hardware"].get("threads")) is not int or threads < 1:
        raise DataError(f"{run / DESCRIPTION}: hardware.threads = {threads!r:.80}: expected the number of threads")
    _check_environment(run, content, allow_version_change, progress)
    paths = _checked_paths(run, content)
    torch.set_num_threads(threads)
    recipe = load_recipe(PretrainRecipe if kind_of_run(content) == "pretrain" else FinetuneRecipe, run / RECIPE)
    if recipe.training.minutes is not None:
        raise ConfigError(f"{run}: its learning rate followed the clock (training.minutes); no rerun is bit-identical")
    if isinstance(recipe, PretrainRecipe):
        pretrain(recipe, corpus=paths["corpus"], init=paths.get("init"), out=out, resume=resume, progress=progress)
    else:
        data = LabelledFiles(paths["train"], paths["dev"]).as_told(content["inputs"], paths)
        finetune(recipe, model=paths["model"], data=data, out=out, resume=resume, progress=progress)
    return _compared(model, out)


def _check_environment(run: Path, before: dict[str, Any], allow_version_change: bool, progress: Progress) -> None:
    """Raise ConfigError for other versions, unless allowed, or another number of processes; warn of what may differ."""
    now = environment()
    versions, known = now["versions"], before["versions"]
    changed = changes(known, versions, sorted(known.keys() | versions.keys()))
    if changed and not allow_version_change:
        raise ConfigError(f"{run}: {'; '.join(changed)}; --allow-version-change repeats the run anyway")
    if changed:
        progress.say(f"warning: {'; '.join(changed)}: the result may differ")
    if now["world_size"] != (number := before["world_size"]):
        how = f"start with torchrun --nproc-per-node {number}"
        raise ConfigError(f"{run} was trained by {number} processes, this one has {now['world_size']}; {how}")
    if changed := changes(before["hardware"], now["hardware"], ("machine", "processor", "cuda")):
        progress.say(f"warning: {'; '.join(changed)}: the last bits may differ")


def _checked_paths(run: Path, content: dict[str, Any]) -> dict[str, Path]:
    """Return the paths of the inputs; raises DataError that names the first one that is gone or has changed."""
    needed = {"corpus"} if kind_of_run(content) == "pretrain" else {"model", "train", "dev"}
    if not needed <= content["paths"].keys() or any(not isinstance(path, str) for path in content["paths"].values()):
        given = f"paths = {content['paths']!r:.80}"
        raise DataError(f"{run / DESCRIPTION}: {given}: expected the paths of {', '.join(sorted(needed))}")
    paths = {name: Path(path) for name, path in content["paths"].items()}
    for name, path in paths.items():
        if not path.exists():
            raise DataError(f"{path}: the {name} of {run} no longer exists")
        expected = content["inputs"].get(name)
        found = Corpus.open(path).fingerprint if name == "corpus" else input_sums({name: path})[name]
        if found != expected:
            raise DataError(f"{path}: the {name} of {run} has changed: its checksum was {expected}, now it is {found}")
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
