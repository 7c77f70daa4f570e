"""Recipes as people give and read them: with flags such as `--steps`, and explained key by key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, TypeVar

from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe
from maskloom.errors import ConfigError, UsageError
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.recipe_files import (
    RecipeKey,
    by_key,
    leaves,
    overrides_of,
    put_value,
    read_toml,
    recipe_keys,
    recipe_path,
    shipped_recipes,
    validate_recipe,
)
from maskloom.runs.run_folder import RECIPE, flat
from maskloom.system.launch import is_first_process

RecipeT = TypeVar("RecipeT", PretrainRecipe, FinetuneRecipe)

_OF_TRAINING = ("steps", "minutes", "epochs", "batch_size", "learning_rate", "device")
FLAG_KEYS = {name: name for name in ("task", "seed", "restarts", "keep_restarts")}
FLAG_KEYS |= {name: f"training.{name}" for name in _OF_TRAINING}
FLAG_KEYS |= {"size": "model.size", "max_length": "data.max_length"}
"""The recipe key that each flag sets, by the flag's name with underscores."""


def shown_flag(name: str, value: Any) -> str:
    """Return a flag as typed on a command line, from its name with underscores."""
    return f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}"


def recipe_of_run(
    kind: type[RecipeT],
    given: str | Path | Mapping[str, Any] | None,
    *,
    changes: list[str],
    flags: dict[str, Any],
    resumes: Path | None = None,
    check: Callable[[RecipeT], object] | None = None,
) -> RecipeT:
    """Return a recipe given as a file, by name or as values, with changes and then flags applied.

    If none is given, a run resumed in the folder `resumes` uses its own. When resuming, `--steps` counts the steps of
    all phases, and changes the last phase. Raises ConfigError for errors in the recipe, and for a flag that would
    change nothing.
    """
    by_flag, own = dict[str, str](), by_key(changes)
    flags = {name: value for name, value in flags.items() if value is not None}
    for name in flags:
        if (key := FLAG_KEYS[name]) in own:
            raise UsageError(f"{shown_flag(name, True)} and --set {key}=… set the same key: use only one of them")
    if given is None and resumes is not None and (resumes / RECIPE).exists():
        given = resumes / RECIPE
    elif isinstance(given, str | Path):
        given = recipe_path(given)
    elif given is not None and not isinstance(given, Mapping):
        what = "a TOML file, the name of a shipped recipe or a mapping of keys to values"
        raise ConfigError(f"recipe must be {what}, not {type(given).__name__}")
    if resumes is not None and "minutes" not in flags:
        changes = ["training.extensions=[]", *changes]  # the run's own extensions apply, whatever the steps are now
        started = load_recipe(kind, given, changes)
        phases = getattr(started, "phases", []) if started.training.minutes is None else []
        if phases and (steps := flags.get("steps")):
            left = steps - sum(phase.steps for phase in phases[:-1])
            if left < 1:
                raise ConfigError(f"--steps {steps}: the phases before the last one already have {steps - left} steps")
            key = f"phases.{len(phases) - 1}.steps"
            changes, by_flag = [*changes, f"{key}={left}"], {key: f"--steps {steps}"}
            del flags["steps"]
    changes = [*changes, *overrides_of({FLAG_KEYS[name]: value for name, value in flags.items()})]
    by_flag |= {FLAG_KEYS[name]: shown_flag(name, value) for name, value in flags.items()}
    recipe = load_recipe(kind, given, changes, check=check, flags=by_flag)
    check_flags(recipe, flags, resumes)
    return recipe


def run_to_resume(out: str | Path, resume: bool, say: Callable[[str], None], *, verify: bool = False) -> Path | None:
    """Return the folder of a run to resume; None for a new one, which is reported: a queued job always resumes.

    Raises ConfigError for `verify` without `resume`.
    """
    if verify and not resume:
        raise ConfigError("verify repeats training steps of an earlier run; set resume too")
    if not resume or (Path(out) / RECIPE).exists():
        return Path(out) if resume else None
    if is_first_process():
        say(f"no run in {out} yet: starting a new one")
    return None


def check_flags(recipe: PretrainRecipe | FinetuneRecipe, flags: dict[str, Any], resumes: Path | None = None) -> None:
    """Raise ConfigError for a flag that the recipe, or that of the resumed run in `resumes`, overrides elsewhere."""
    given = {name for name, value in flags.items() if value is not None}
    if (minutes := recipe.training.minutes) is not None and (names := sorted(given & {"steps", "epochs"})):
        if resumes is not None and "minutes" not in given:
            raise ConfigError(
                f"--{names[0]}: {resumes} was started for {minutes:g} minutes, and such a run cannot be extended; "
                "start a new run with another --out"
            )
        raise ConfigError(f"--{names[0]}: training.minutes = {minutes:g} is also set; use only one of them")
    if isinstance(recipe, FinetuneRecipe):
        if "epochs" in given and recipe.training.steps is not None:
            raise ConfigError(f"--epochs: training.steps = {recipe.training.steps} is also set; use only one of them")
        return
    for number, phase in enumerate(recipe.phases):
        for name in sorted(given & phase.model_fields_set):
            key = f"phases.{number}.{name}"
            raise ConfigError(f"--{name.replace('_', '-')}: {key} overrides it; change that with --set {key}=VALUE")


def with_epochs(recipe: PretrainRecipe, epochs: float | None, steps: int | None, corpus: str | Path) -> PretrainRecipe:
    """Return a recipe with the steps that make `epochs` of a corpus, about as many as a run reports; None keeps it.

    Raises ConfigError if `steps`, phases or a time budget decide, for epochs that are not a number above 0, and if the
    recipe does not fit that many steps.
    """
    if epochs is None:
        return recipe
    if not (isinstance(epochs, int | float) and 0 < epochs < math.inf):
        raise ConfigError(f"--epochs {epochs!r}: expected a number above 0")
    if recipe.phases:
        raise ConfigError("--epochs: every phase has its own steps")
    minutes = recipe.training.minutes
    if steps is not None or minutes is not None:
        other = f"--steps {steps}" if minutes is None else f"training.minutes = {minutes:g}"
        raise ConfigError(f"--epochs: {other} is also set; use only one of them")
    # imported here: other commands do not need them
    from maskloom.data.corpus.opening import Corpus, split_documents
    from maskloom.runs.pretraining_plan import pretraining_data

    opened, batch_size = Corpus.open(corpus, verify=False), recipe.training.batch_size
    train, _ = split_documents(opened, recipe.data.held_out_fraction, seed=recipe.seed)
    data = pretraining_data(recipe)
    loader = PRETRAINING[recipe.objective].loader(opened, train, data, batch_size=batch_size, seed=recipe.seed)
    found = max(1, round(loader.account().num_instances * epochs / batch_size))
    values = recipe.model_dump(exclude_unset=True)
    put_value(values, "training.steps", found, "--epochs")
    return validate_recipe(PretrainRecipe, values, source=f"--epochs {epochs:g}")


KINDS: dict[str, type[PretrainRecipe | FinetuneRecipe]] = {"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}


def listed_recipes() -> dict[str, str]:
    """Return the shipped recipes by name, with the first sentence of the comment of each."""
    return {name: _first_sentence(_comment(path)) for name, path in shipped_recipes().items()}


def explained(name: str) -> dict[str, Any]:
    """Return everything that a shipped recipe, a file or a kind's defaults set; raises ConfigError for no recipe."""
    if name in KINDS:
        return {"recipe": name, "about": f"The defaults of maskloom {name}.", "keys": _keys(KINDS[name], {})}
    path = recipe_path(name)
    values = read_toml(path)
    by_size, values = values.pop("sizes", {}), dict(leaves(values, whole="model.config"))
    kind = KINDS.get(values.get("kind", "finetune"), FinetuneRecipe)
    load_recipe(kind, path)
    values |= flat({name: value for name, value in values.items() if isinstance(value, list)})
    sizes = {size: dict(leaves(table)) for size, table in by_size.items()}
    return {"recipe": str(path), "about": _comment(path), "keys": _keys(kind, values), "sizes": sizes}


# A longer key and value move only their own meaning to the right, not all others.
_WIDTH_OF_KEYS = 44


def explained_lines(content: dict[str, Any]) -> list[str]:
    """Return the lines of what `explained` returns."""
    lines = [content["recipe"], "", *content["about"].split("\n")]
    for _, section in groupby(content["keys"], lambda key: key["path"].rpartition(".")[0]):
        lines.append("")
        for key in section:
            mark = "*" if key["is_set"] else " "
            text = f"{key['path']} = {shown_value(key['value'])}"
            default = f" (default {shown_value(key['default'])})" if key["value"] != key["default"] else ""
            lines.append(f"{mark} {text:<{_WIDTH_OF_KEYS}}  {key['meaning']}{default}{choices_text(key['choices'])}")
    by_size = content.get("sizes", {})
    lines += [""] if by_size else []
    for size, given in by_size.items():
        lines.append(f"* with --size {size}: {', '.join(f'{key} = {shown_value(given[key])}' for key in given)}")
    return [*lines, "", "* set by the recipe; any key can be changed with --set KEY=VALUE"]


def _keys(kind: type[PretrainRecipe | FinetuneRecipe], values: dict[str, Any]) -> list[dict[str, Any]]:
    keys = (key for key in _in_tables(recipe_keys(kind), values) if key.path != "kind")
    return [{**asdict(key), "value": values.get(key.path, key.default), "is_set": key.path in values} for key in keys]


def _in_tables(keys: Iterable[RecipeKey], values: dict[str, Any]) -> Iterator[RecipeKey]:
    """Yield keys, those of a list of tables once for each of its tables, or with the index N if it is absent."""
    for section, group in groupby(keys, lambda key: key.path.rpartition(".")[0]):
        held = [*group]
        numbers = range(len(values.get(section.removesuffix(".N"), ()))) if section.endswith(".N") else ()
        yield from [replace(key, path=key.path.replace(".N.", f".{at}.")) for at in numbers for key in held] or held


def shown_value(value: Any) -> str:
    """Return a value as in TOML, or - for None."""
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def choices_text(choices: Any) -> str:
    """Return a sentence that lists the allowed values of a key, or nothing."""
    return f" One of {', '.join(map(str, choices))}." if len(choices) > 1 else ""


def _comment(path: Path) -> str:
    """Return the comment at the start of a recipe."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)


def _first_sentence(text: str) -> str:
    joined = " ".join(text.partition("\n\n")[0].split())
    end = re.search(r"(?<!et al)\.( [A-Z]|$)", joined)
    return joined if end is None else joined[: end.start() + 1]
