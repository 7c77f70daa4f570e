"""The folder of a run: its recipe, command, environment and inputs, and the rule that no run overwrites another."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import maskloom
from maskloom.config import Section, load_recipe, recipe_toml
from maskloom.errors import ConfigError, DataError
from maskloom.system.files import file_sha256, remove_left, write_json, write_text
from maskloom.system.folder_lock import LOCK, refuse_if_in_use
from maskloom.system.foreign_files import check_name, check_regular, read_json_object, shown_name
from maskloom.system.launch import claim, is_first_process, is_restarted, num_processes
from maskloom.system.resources import system_text
from maskloom.tasks.choices import race_files
from maskloom.text.tokenizer import TARGETS

RECIPE, DESCRIPTION = "recipe.toml", "run.json"
METRICS = "metrics.json"
"""The results of a training run; the file exists once the run is finished."""
RunKind = Literal["pretrain", "finetune", "search", "glue", "words"]
RESULTS: dict[RunKind, str] = dict.fromkeys(get_args(RunKind), METRICS)
RESULTS |= {"search": "results.json", "glue": "glue.json"}
"""The file that each kind of run writes when it is finished."""
TASK = "task.json"
"""What fine-tuning stores with each model of a run: labels, settings, columns, length."""
# What a run that was killed right at its start leaves in its folder; recipe.toml is written last.
_OF_A_START = (LOCK, DESCRIPTION, "launch.txt", f".{RECIPE}.*.tmp", f".{DESCRIPTION}.*.tmp", ".launch.txt.*.tmp")
# Files and folders that a killed process was writing; whoever holds the run's lock may remove them.
_HALF_WRITTEN = (".*.tmp", ".*.tmp-*", ".*.verify")
# Keys that decide how a run handles failures and where it runs, not its result: a resumed run may change them.
_FREE = {"card", "card.license", "card.language", "card.base_model"}
_FREE |= {f"training.{key}" for key in ("on_nonfinite", "max_skips", "device", "parallel", "rank_timeout")}
_FREE |= {"training.keep_checkpoints", "training.log_to"}


def prepare_run_folder(
    out: Path,
    recipe: Section,
    *,
    inputs: dict[str, Any],
    resume: bool,
    paths: Mapping[str, Path] = {},
    may_change: Collection[str] = (),
    before_change: Callable[[], object] = lambda: None,
) -> bool:
    """Create a run's folder, or check that an existing one holds the same run; return True if the run is continued.

    `inputs` are fingerprints of what the run reads, `paths` their locations. The caller holds the folder's lock, so
    half-written files of a killed process are removed. Recipe keys that match a pattern in `may_change` may differ:
    then `before_change` is called, the run no longer counts as finished, and the new recipe is written. Raises
    ConfigError if the folder holds something else, if it holds a run and `resume` is off, or if other keys or inputs
    differ from those at the start of the run. Raises DataError for a path that is not UTF-8.
    """
    places = {name: path.resolve() for name, path in paths.items()}
    for place in (out, *places.values()):
        check_name(place)
    if holds_run(out, resume):
        has_changed = check_same_recipe(out, recipe, may_change)
        _check_inputs(out, inputs, places)
        claim(out)
        for path in [path for pattern in _HALF_WRITTEN for path in out.rglob(pattern)]:
            with suppress(OSError):
                remove_left(path)
        if has_changed:
            before_change()
            (out / METRICS).unlink(missing_ok=True)
            write_text(out / RECIPE, recipe_toml(_placed(recipe)))
        return True
    recipe_text = recipe_toml(_placed(recipe))
    content = {
        "id": hashlib.sha256(json.dumps([recipe_text, inputs], sort_keys=True).encode()).hexdigest(),
        "inputs": inputs,
        "paths": {name: str(place) for name, place in places.items()},
        "seeds": seeds_of(recipe),
        **environment(),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / DESCRIPTION, content)
    claim(out)
    write_text(out / RECIPE, recipe_text)
    return False


def holds_run(out: Path, resume: bool) -> bool:
    """Return whether a folder holds a run to resume; raises ConfigError if it holds one and `resume` is off, or others.

    Files that a run leaves before it has its recipe do not count.
    """
    names = {path.name for path in out.iterdir()} if out.is_dir() else set[str]()  # listed once: a run may just begin
    if RECIPE in names or (out / RECIPE).exists():
        if not resume:
            raise ConfigError(f"{out} already contains a run; continue it with --resume or choose another --out")
        return True
    others = [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _OF_A_START)]
    if others or (out.exists() and not out.is_dir()):
        raise ConfigError(f"{out} exists and is not a run folder; choose an empty or a new --out")
    return False


def check_run_folder(out: Path, resume: bool) -> None:
    """Refuse a folder in which another run works, or none can begin or go on, as the run itself does later."""
    refuse_if_in_use(out)
    if is_first_process() and not is_restarted(out):
        try:
            holds_run(out, resume)
        except ConfigError:
            refuse_if_in_use(out)  # the other run may have begun since the first look
            raise


def undo_run(out: Path, *others: str) -> None:
    """Remove the files with which a run started, and its `others`, so that a corrected run may reuse the folder."""
    for name in (RECIPE, DESCRIPTION, *others):
        (out / name).unlink(missing_ok=True)


def described(out: Path) -> dict[str, Any]:
    """Return the command, versions, hardware and inputs recorded in a run's folder; raises ConfigError for no run."""
    if not out.exists():
        raise ConfigError(f"{out}: no such folder")
    try:
        content = read_json_object(out / DESCRIPTION)
    except DataError:
        content = {}
    is_whole = isinstance(content.get("inputs"), dict) and {"id", "paths", "world_size"} <= content.keys()
    if not is_whole or not (out / RECIPE).exists():
        raise ConfigError(f"{out} is not the folder of a run: it needs {RECIPE} and a complete {DESCRIPTION}")
    return content


def kind_of_run(description: Mapping[str, Any]) -> RunKind:
    """Return the kind of run of a description, as determined by its inputs."""
    inputs = description["inputs"]
    if "space" in inputs:
        return "glue" if "tasks" in inputs else "search"
    if "text" in inputs:
        return "words"
    return "pretrain" if "corpus" in inputs else "finetune"


def described_model(out: Path) -> dict[str, Any]:
    """Return what `described` does; raises ConfigError also for a run that trained word vectors, which has no model."""
    description = described(out)
    if kind_of_run(description) == "words":
        raise ConfigError(f"{out} contains word vectors, not a model; `maskloom words --help` lists their uses")
    return description


def run_id(out: Path, part: str) -> str:
    """Return an id that distinguishes the checkpoints of a part of a run from all others."""
    return f"{described(out)['id'][:16]}/{part}"


def seeds_of(recipe: Section) -> list[int]:
    """Return the seeds that a recipe trains from."""
    first = getattr(recipe, "seed", 0)
    return list(range(first, first + getattr(recipe, "restarts", 1)))


def environment() -> dict[str, Any]:
    """Return the command, the versions and the hardware of this process."""
    import numpy as np  # imported here: reading run folders does not need it

    torch = sys.modules.get("torch")  # word vectors do not need it, and it takes as much memory as many of them
    named = re.search(r"^model name\s*:(.*)", system_text("/proc/cpuinfo"), re.MULTILINE)
    return {
        "command": ["maskloom", *map(shown_name, sys.argv[1:])],
        "versions": {
            "maskloom": maskloom.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            **{name: version(name) for name in ("tokenizers", "safetensors")},
            "torch": torch.__version__ if torch else version("torch"),
        },
        "hardware": {
            "machine": platform.machine(),
            "processor": named[1].strip() if named else platform.processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads() if torch else None,
            "cuda": torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None,
        },
        "world_size": num_processes(),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return a phrase for each of the named values that differs."""
    return [f"{name} was {before.get(name)}, is {now.get(name)}" for name in names if before.get(name) != now.get(name)]


def version_lines(out: Path) -> list[str]:
    """Return a warning for each version that has changed since a run began."""
    found, now = read_json_object(out / DESCRIPTION).get("versions"), environment()["versions"]
    before = found if isinstance(found, dict) else {}
    return [
        f"warning: {change}: the last bits may differ"
        for change in changes(before, now, sorted(before.keys() & now.keys()))
    ]


def check_same_recipe(out: Path, recipe: Section, may_change: Collection[str]) -> bool:
    """Return whether keys in `may_change` differ from the recipe of the run in `out`; raises ConfigError for others."""
    before, now = (flat(_placed(one).model_dump()) for one in (load_recipe(type(recipe), out / RECIPE), recipe))
    changed = [key for key in sorted((before.keys() | now.keys()) - _FREE) if before.get(key) != now.get(key)]
    differing = [key for key in changed if not any(fnmatch.fnmatchcase(key, pattern) for pattern in may_change)]
    if differing:
        changes = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing)
        raise ConfigError(f"{out}: a resumed run must keep its recipe: {changes}")
    return bool(changed)


def _placed(recipe: Section) -> Section:
    """Return a recipe that names word vectors by their absolute path, for a resume in another directory."""
    sections: dict[str, Any] = {name: getattr(recipe, name, None) for name in ("model", "features")}
    placed = {
        name: one.model_copy(update={"word_vectors": os.path.abspath(one.word_vectors)})
        for name, one in sections.items()
        if getattr(one, "word_vectors", None) is not None
    }
    return recipe.model_copy(update=placed)


def _check_inputs(out: Path, inputs: dict[str, Any], places: dict[str, Path]) -> None:
    content = described(out)
    known, paths = content["inputs"], content["paths"]
    for name, value in json.loads(json.dumps(inputs)).items():  # as stored: JSON has no tuples
        if known.get(name) != value:
            if name not in known:
                raise ConfigError(f"{out}: the run was started without {name}; leave it out, or choose another --out")
            change = f"the run was started with {name} {known[name]!r}, not {value!r}; use the original"
            place, before = places.get(name), paths.get(name)
            if place and before:
                differs = "has changed since" if str(place) == before else f"is not {before}, which was read at"
                change = f"{name} {place} {differs} the start of this run; use the original"
            raise ConfigError(f"{out}: {change}, or start another run with a new --out")


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested tables, and lists of tables, as one table with dotted keys."""
    if isinstance(values, list) and values and all(isinstance(item, dict) for item in values):
        values = {str(number): item for number, item in enumerate(values)}
    if isinstance(values, dict):
        return {
            k: v for name, item in values.items() for k, v in flat(item, f"{prefix}.{name}" if prefix else name).items()
        }
    return {prefix: values}


def model_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that affect training: configuration, weights, tokens."""
    patterns = ("config.json", "*.safetensors", "*.safetensors.index.json")
    tokens = ("vocab.txt", "tokenizer.json", "vocab.json", "merges.txt")
    patterns += (*tokens, *(f"{TARGETS}/{name}" for name in tokens))
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def input_sums(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return the fingerprints of inputs by name; those of model and vocabulary folders cover their `model_files`."""
    folders = ("init", "model", "source_vocab")
    return {name: fingerprint(*(model_files(path) if name in folders else [path])) for name, path in paths.items()}


def saved_sum(folder: Path) -> str:
    """Return the SHA-256 over configuration and weights of a folder saved here; raises as `fingerprint` does."""
    return fingerprint(folder / "config.json", folder / "model.safetensors")


def fingerprint(*paths: Path) -> str:
    """Return the SHA-256 over the contents, not names, of files and example folders; DataError for unreadable ones."""
    digest = hashlib.sha256()
    for path in (file for given in paths for file in (race_files(given) if given.is_dir() else [given])):
        check_regular(path)
        try:
            digest.update(bytes.fromhex(file_sha256(path)))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
