"""The folder of a run: its recipe, how and where it ran, and the rule that no run overwrites another."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import maskloom
from maskloom.config import ConfigError, RecipeT, Section, load_recipe, recipe_toml
from maskloom.files import write_json, write_text

RECIPE = "recipe.toml"


def prepare_run_folder(out: Path, recipe: Section, *, inputs: dict[str, Any], resume: bool) -> bool:
    """Create a run's folder, or check that an existing one holds the same run; return True when it is continued.

    `inputs` are fingerprints of what the run reads. Raises ConfigError when the folder holds a run and `resume` is
    off, or when recipe or inputs differ from those that the folder was started with.
    """
    if (out / RECIPE).exists():
        if not resume:
            raise ConfigError(f"{out} already holds a run; continue it with --resume or choose another --out")
        _check_same(out, recipe, inputs)
        return True
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not a run folder; choose an empty or a new --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "run.json", {"inputs": inputs, **environment()})
    write_text(out / RECIPE, recipe_toml(recipe))
    return False


def stored_recipe(kind: type[RecipeT], out: Path) -> RecipeT | None:
    """Return the recipe that a run folder was started with, or None when the folder holds no run."""
    path = out / RECIPE
    return load_recipe(kind, path) if path.exists() else None


def environment() -> dict[str, Any]:
    """Return the command, the versions and the hardware of this process."""
    import numpy as np  # here, so that what only reads run folders starts without them
    import torch

    return {
        "command": ["maskloom", *sys.argv[1:]],
        "versions": {
            "maskloom": maskloom.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _check_same(out: Path, recipe: Section, inputs: dict[str, Any]) -> None:
    stored = load_recipe(type(recipe), out / RECIPE)
    before, now = _flat(stored.model_dump()), _flat(recipe.model_dump())
    differing = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if differing:
        changes = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing)
        raise ConfigError(f"{out}: a resumed run keeps its recipe: {changes}")
    known = json.loads((out / "run.json").read_text(encoding="utf-8"))["inputs"]
    for name, value in inputs.items():
        if known.get(name) != value:
            raise ConfigError(f"{out}: the run was started with {name} {known.get(name)!r}, this one is {value!r}")


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(values, dict):
        return {
            k: v
            for name, item in values.items()
            for k, v in _flat(item, f"{prefix}.{name}" if prefix else name).items()
        }
    return {prefix: values}
