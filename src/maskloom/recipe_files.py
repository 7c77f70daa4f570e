"""Reading recipes from TOML files and the command line, writing them, and finding those shipped with the package."""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from maskloom.errors import ConfigError, DataError, not_one_of
from maskloom.system.foreign_files import read_bytes, why_unreadable

SHIPPED = Path(__file__).parent / "recipes"
"""The folder of the recipes shipped with the package."""

RecipeT = TypeVar("RecipeT", bound=BaseModel)
_MAX_RECIPE_BYTES = 1 << 20
# How many invalid keys an error lists individually.
_NUM_NAMED = 50
# Numbers that people write but TOML rejects: `.3` and `5.`
_HALF_WRITTEN = re.compile(r"\s*[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
# Type names in pydantic's messages, and ours.
_TYPE_WORDS = {"dictionary": "a table", "integer": "a whole number", "boolean": "true or false"}
# Prefixes of the type names that pydantic adds to the path of a value with a union type.
_TYPES = ("literal[", "dict[", "list[", "constrained-")

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "rate", "peak_lr"), ("learning_rate",)),
    **dict.fromkeys(("epoch", "epochs", "num_epochs", "num_train_epochs", "max_epochs"), ("epochs", "steps")),
    **dict.fromkeys(("num_steps", "max_steps", "train_steps", "num_train_steps", "iterations"), ("steps",)),
    **dict.fromkeys(("batch", "bs", "train_batch_size", "per_device_train_batch_size"), ("batch_size",)),
    **dict.fromkeys(("max_len", "max_seq_length", "max_seq_len", "sequence_length", "block_size"), ("max_length",)),
    **dict.fromkeys(("mlm_probability", "mask_rate", "masking_rate"), ("masked_lm_prob",)),
    **dict.fromkeys(("whole_word", "do_whole_word_mask"), ("whole_word_masking",)),
    **dict.fromkeys(("warmup_proportion", "warmup", "warmup_share"), ("warmup_ratio", "warmup_steps")),
    **dict.fromkeys(("gradient_accumulation_steps", "micro_batch"), ("micro_batch_size",)),
    **dict.fromkeys(("gradient_clip_val", "clip_norm"), ("max_grad_norm",)),
    **dict.fromkeys(("adam_eps", "eps", "epsilon"), ("adam_epsilon",)),
    **dict.fromkeys(("save_steps",), ("save_every",)),
    **dict.fromkeys(("eval_steps",), ("evaluate_every",)),
    **dict.fromkeys(("logging_steps",), ("log_every",)),
    **dict.fromkeys(("save_total_limit",), ("keep_checkpoints",)),
    **dict.fromkeys(("lr_scheduler_type", "scheduler"), ("schedule",)),
    **dict.fromkeys(("fp16", "bf16", "mixed_precision", "amp"), ("precision",)),
    **dict.fromkeys(("dropout",), ("hidden_dropout_prob",)),
    **dict.fromkeys(("early_stopping_patience",), ("patience",)),
    **dict.fromkeys(("random_seed",), ("seed",)),
    **dict.fromkeys(("wd", "decay"), ("weight_decay",)),
    **dict.fromkeys(("layers", "num_layers"), ("num_hidden_layers",)),
    **dict.fromkeys(("heads", "num_heads"), ("num_attention_heads",)),
}
"""Names from other programs, mapped to ours, closest first; not every recipe kind has them all."""

MODEL_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps",
    "pre_norm", "gated", "rotary", "embedding_size",
)  # fmt: skip
"""The keys of a BERT configuration, which belong in the [model.config] section of a recipe that has one."""


@dataclass(frozen=True)
class RecipeKey:
    """A recipe key: its dotted path, its default (None if absent), its choices, and its meaning with the unit."""

    path: str
    default: Any
    choices: tuple[Any, ...]
    meaning: str


def recipe_keys(kind: type[BaseModel], prefix: str = "") -> Iterator[RecipeKey]:
    """Yield the keys of a kind of recipe in order; in a list of tables the index is written as N."""
    for name, field in kind.model_fields.items():
        path, section = prefix + name, _section_of(field.annotation)
        if section is not None:
            is_list = not isinstance(field.annotation, type) and "list" in str(field.annotation)
            yield from recipe_keys(section, f"{path}.N." if is_list else f"{path}.")
            continue
        default = field.get_default(call_default_factory=True, validated_data={})
        default = None if default is PydanticUndefined else default
        yield RecipeKey(path, default, tuple(_literals(field.annotation)), field.description or "")


def keys_named(kind: type[BaseModel], name: str) -> list[str]:
    """Return the recipe keys whose last part is `name`; those in a list of tables only if no other key matches."""
    keys = [key.path for key in recipe_keys(kind)]
    keys += [f"model.config.{key}" for key in MODEL_KEYS if "model.config" in keys]
    found = [key for key in keys if key.rpartition(".")[2] == name]
    return [key for key in found if ".N." not in key] or found


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section type in a field's annotation, whether plain, in a list or optional; None without one."""
    candidates = (annotation, *get_args(annotation))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _literals(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        if isinstance(argument, str | bool):
            yield argument
        elif get_args(argument):
            yield from _literals(argument)


def shipped_recipes() -> dict[str, Path]:
    """Return the shipped recipes by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def recipe_path(given: str | Path) -> Path:
    """Return an existing path or the file of a shipped recipe, in that order; raises ConfigError with suggestions."""
    path, shipped = Path(given), shipped_recipes()
    if path.exists() and not (path.is_dir() and str(given) in shipped):
        return path
    if str(given).removesuffix(".toml") in shipped:
        return shipped[str(given).removesuffix(".toml")]
    near = difflib.get_close_matches(path.stem, shipped, n=1, cutoff=0.6)
    hint = f"did you mean the shipped recipe {near[0]}?" if near else f"the shipped recipes are {', '.join(shipped)}"
    raise ConfigError(f"{path}: there is no such recipe; {hint}")


def load_recipe(
    kind: type[RecipeT],
    path: str | Path | Mapping[str, Any] | None,
    overrides: list[str] | None = None,
    *,
    check: Callable[[RecipeT], object] | None = None,
    flags: Mapping[str, str] | None = None,
    begin: str = "",
) -> RecipeT:
    """Read a recipe from a TOML file or a mapping of dotted keys to values, and apply `key.sub=value` overrides.

    Raises ConfigError for an unknown, ill-typed or contradictory key, naming the key, its value and its origin: the
    file, the override or, for a key in `flags`, the flag. `check` may raise it for further reasons. If the user gave
    overrides that `begin` with the name of a recipe, such as "pretrain.", messages name keys in the same way.

    A table [sizes.NAME] holds the keys that differ at that model size. The one of the chosen size applies before the
    overrides.
    """
    values: dict[str, Any] = {}
    if isinstance(path, Mapping):
        for key, value in path.items():
            put_value(values, key, copy.deepcopy(value), f"recipe key {key!r:.200}")
    elif path is not None:
        values = read_toml(Path(path))
        _check_kind(kind, values, Path(path))
    source = str(path) if path and not isinstance(path, Mapping) else "recipe"
    if isinstance(values.get("sizes"), dict) and "model" in kind.model_fields:
        _apply_size(kind, values, overrides or [], source)
    said = {key: f"--set {begin + override!r:.200}" for key, override in by_key(overrides).items()}
    said |= flags or {}
    for override in overrides or []:
        _apply_override(values, override, said)
    recipe = validate_recipe(kind, values, source=source, said=said, begin=begin)
    if check is not None:
        try:
            check(recipe)
        except ConfigError as error:
            raise ConfigError(f"{_who_said([], str(error), source, said)}: {error}") from None
    return recipe


def _who_said(path: list[str], reason: str, source: str, said: Mapping[str, str]) -> str:
    """Return the origin of the value at a path: an override of that key or of an enclosing one, else the source.

    The source is followed by the overrides of keys that the reason mentions (values may contradict each other) or, if
    there are none, by those of keys below the path.
    """
    for length in range(len(path), 0, -1):
        if change := said.get(".".join(path[:length])):
            return change
    words, start = {*re.findall(r"\w+(?:\.\w+)*", reason)}, ".".join([*path, ""])  # a dotted key means only itself
    near = [change for key, change in said.items() if words & {key, key.rpartition(".")[2]}]
    near = near or [change for key, change in said.items() if path and key.startswith(start)]
    return f"{source} with {', '.join(near)}" if near else source


def _check_kind(kind: type[BaseModel], values: dict[str, Any], path: Path) -> None:
    """Raise ConfigError for a recipe that belongs to another command."""
    own, said = kind.model_fields.get("kind"), values.get("kind")
    if own is not None and said != own.default and said in ("pretrain", "finetune"):
        raise ConfigError(f"{path}: kind = {said!r}: a recipe for maskloom {said}, not maskloom {own.default}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the contents of a TOML file; raises ConfigError, naming the file, if it cannot be read or parsed."""
    if problem := why_unreadable(path):
        raise ConfigError(f"{path}: the recipe {problem}")
    try:
        return tomllib.loads(read_bytes(path, limit=_MAX_RECIPE_BYTES).decode("utf-8"))
    except DataError as error:
        raise ConfigError(str(error)) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start + 1} is not UTF-8; recipes are UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError:
        reason = "a number has too many digits"
    raise ConfigError(f"{path}: not valid TOML: {reason}")


def validate_recipe(
    kind: type[RecipeT],
    values: dict[str, Any],
    *,
    source: str,
    said: Mapping[str, str] | None = None,
    begin: str = "",
) -> RecipeT:
    """Validate a mapping against a recipe model; raises ConfigError with one line per invalid key.

    `said` gives the origin of the values of some keys; the others come from `source`. For `begin`, see `load_recipe`.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = _told_once(error.errors(include_url=False))
        lines = []
        for problem in problems[:_NUM_NAMED]:
            origin = _who_said(_path_of(problem), problem["msg"], source, said or {})
            lines.append(f"{origin}: {_explain(kind, problem, begin)}")
        more = [f"{source}: and {len(problems) - _NUM_NAMED} more"] if len(problems) > _NUM_NAMED else []
        raise ConfigError("\n".join(lines + more)) from None


def _apply_size(kind: type[BaseModel], values: dict[str, Any], overrides: list[str], source: str) -> None:
    """Replace the tables [sizes.NAME] by the keys of the chosen size.

    Raises ConfigError for a table of no known size, one that is none, and where no new model is trained.
    """
    by_size, size = values.pop("sizes"), next(key for key in recipe_keys(kind) if key.path == "model.size")
    given = copy.deepcopy(values)
    for override in overrides:
        _apply_override(given, override)
    if "model" not in given and kind.model_fields["model"].default is None:
        raise ConfigError(f"{source}: [sizes] needs [model]: this recipe trains no new model")
    for name, table in by_size.items():
        if name not in size.choices:
            raise ConfigError(f"{source}: [sizes]: {not_one_of(name, size.choices)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: sizes.{name} = {_shown(table)}: it must be a table")
    model = given.get("model", {})
    chosen = model.get("size", size.default) if isinstance(model, dict) else None
    for key, value in leaves(by_size.get(str(chosen), {})):
        put_value(values, key, value, f"{source}: [sizes.{chosen}]")


def leaves(table: Mapping[str, Any], prefix: str = "", *, whole: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested tables with their dotted keys; the table at the key `whole` is one value."""
    for name, value in table.items():
        key = prefix + name
        is_section = isinstance(value, dict) and key != whole
        yield from leaves(value, f"{key}.", whole=whole) if is_section else [(key, value)]


def by_key(overrides: Sequence[str] | None) -> dict[str, str]:
    """Return overrides such as `training.steps=1000` by the keys that they set."""
    return {override.partition("=")[0].strip(): override for override in overrides or []}


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return values by key in the form that `--set` takes."""
    return [f"{key}={_toml_value(value)}" for key, value in settings.items()]


def _apply_override(values: dict[str, Any], override: str, said: Mapping[str, str] = {}) -> None:
    key, separator, text = override.partition("=")
    key = key.strip()
    if not separator or not key:
        raise ConfigError(f"--set {override!r:.200}: expected key=value, such as training.steps=1000")
    if "\n" in override or "\r" in override:
        raise ConfigError(f"--set {override!r:.200}: contains a line break; give each key its own --set")
    try:
        # inside braces a `#` in the text is an error rather than a comment that silently drops the rest
        found = tomllib.loads(f"found = {{value = {text}}}")["found"]
        value = found["value"] if len(found) == 1 else text
    except (ValueError, RecursionError):
        value = float(text) if _HALF_WRITTEN.fullmatch(text) else text
    put_value(values, key, value, said.get(key, f"--set {override!r:.200}"))


def put_value(values: dict[str, Any], key: str, value: Any, what: str) -> None:
    """Store a value at a dotted key; raises ConfigError, naming `what`, if a parent in the key is not a section."""
    target: Any = values
    *parents, last = key.split(".")
    for parent in parents:
        if isinstance(target, list) and parent.isdecimal() and int(parent) < len(target):
            target = target[int(parent)]
        else:
            target = target.setdefault(parent, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict | list):
            raise ConfigError(f"{what}: {parent!r:.60} is a value, not a section")
    if isinstance(target, list):
        raise ConfigError(f"{what}: expected a key in one of {len(target)} tables, such as phases.0.steps")
    target[last] = value


def _path_of(problem: Any) -> list[str]:
    """Return the path of an invalid value without the type names that pydantic adds for union types."""
    return [str(part) for part in problem["loc"] if not str(part).startswith(_TYPES)]


def _told_once(problems: list[Any]) -> list[Any]:
    """Return one set of problems for each value of a union type: those of the type that matches furthest."""
    told: dict[tuple[str, ...], list[Any]] = {}
    for problem in problems:
        place = takewhile(lambda part: not part.startswith(_TYPES), map(str, problem["loc"]))
        told.setdefault(tuple(place), []).append(problem)
    kept = []
    for place, found in told.items():
        if any(problem["type"] == "dict_type" for problem in found[1:]):
            found[0] = {**found[0], "msg": f"{found[0]['msg']}, or a table"}
        kept += [problem for problem in found if len(_path_of(problem)) > len(place)] or found[:1]
    return kept


def _explain(kind: type[BaseModel], problem: Any, begin: str) -> str:
    """Return what is wrong with a value, with its key; `begin` comes before the keys of the recipe."""
    path, value = _path_of(problem), problem["input"]
    key = begin + ".".join(path) if path else "recipe"
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r:.200}; {_hint(kind, path, begin)}"
    if problem["type"] == "value_error":  # contradictory values; the message names them
        told = ".".join([*path, str(problem["ctx"]["error"])])
        return told if told.startswith("[") else begin + told
    if problem["type"] == "missing":
        return f"{key:.200} is missing"
    if problem["type"] == "literal_error" and isinstance(value, str):
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        return f"{key:.200} = {not_one_of(value, choices)}"
    reason = reason_of(problem)
    if problem["type"] == "string_pattern_mismatch":
        meaning = next((known.meaning for known in recipe_keys(kind) if begin + known.path == key), "")
        reason = f"not a valid value of this key: {meaning}"
    return f"{key:.200} = {_shown(value)}: {reason}"


def _hint(kind: type[BaseModel], path: list[str], begin: str) -> str:
    """Suggest a key: a synonym or similar name in another section, a close match in this one, or all keys here."""
    others = OTHER_NAMES.get(path[-1].lower().replace("-", "_"), ())
    section = kind
    for part in path[:-1]:
        if not part.isdigit():
            section = _section_of(section.model_fields[part].annotation) or section
    here, all_names = list(section.model_fields), {key.path.rpartition(".")[2] for key in recipe_keys(kind)}
    near = difflib.get_close_matches(path[-1], here, n=1, cutoff=0.5)
    like = {*difflib.get_close_matches(path[-1], all_names, n=1, cutoff=0.85)} - {*here}
    found = next(filter(None, (keys_named(kind, name) for name in (path[-1], *others, *like))), [])
    if not found and not near:
        return f"known keys: {', '.join(sorted(here))}"
    named = found or [".".join([*path[:-1], *near])]
    flag = " or the flag --epochs" if "epochs" in others and found == ["training.steps"] and not begin else ""
    return f"did you mean {' or '.join(repr(begin + name) for name in named)}{flag}?"


def reason_of(problem: Any) -> str:
    """Return why pydantic rejects a value, without its jargon: the prefix, class names and parsing details."""
    reason = problem["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]
    reason = reason.partition(", unable to parse ")[0].replace("Input should", "it must", 1)
    return re.sub(r"a valid (\w+)", lambda found: _TYPE_WORDS.get(found[1], f"a {found[1]}"), reason)


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except (ValueError, RecursionError):  # a number with thousands of digits; deeply nested tables
        return f"a {type(value).__name__}"


def recipe_toml(recipe: BaseModel) -> str:
    """Return a recipe as TOML text that `load_recipe` reads back to an equal recipe."""
    return "\n".join(_toml_lines(recipe.model_dump(exclude_none=True), "")).lstrip("\n") + "\n"


def _toml_lines(values: dict[str, Any], prefix: str) -> list[str]:
    plain: list[str] = []
    tables: list[str] = []
    rows: list[str] = []  # of lists of tables; an empty list means the same as no list
    for key, value in values.items():
        name = prefix + _toml_key(key)
        if isinstance(value, dict):
            tables += ["", f"[{name}]", *_toml_lines(value, name + ".")]
        elif isinstance(value, list) and all(isinstance(item, dict) for item in value):
            for item in value:
                rows += ["", f"[[{name}]]", *_toml_lines(item, "")]
        else:
            plain.append(f"{_toml_key(key)} = {_toml_value(value)}")
    return plain + tables + rows


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON's names for these are not TOML's
    # TOML allows neither surrogates, which ASCII needs for some characters, nor a plain DEL, which JSON leaves
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
