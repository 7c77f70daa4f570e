"""Recipes: TOML files read into strict models, and the errors that a person can cause."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from maskloom.errors import ConfigError as ConfigError
from maskloom.errors import DataError as DataError
from maskloom.foreign_files import read_bytes, why_unreadable

Rate = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
# More than any run can count to; beyond some 300 digits a whole number is no floating-point number any more.
_MOST = 10**12
Count = Annotated[int, Field(ge=1, le=_MOST)]
BatchSize = Annotated[int, Field(ge=1, le=2**20)]  # the largest of the published recipes (LAMB) is 2**16
CountOrNone = Annotated[int, Field(ge=0, le=_MOST)]
Length = Annotated[int, Field(le=1_000_000)]


class Section(BaseModel):
    """Base of every recipe section: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSection(Section):
    """Which architecture to build; `config` overrides single keys of the size with BERT's own names."""

    architecture: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    config: dict[str, Any] = Field(default_factory=dict)


class PretrainingData(Section):
    """Sampling and masking of pre-training instances (paper 3.3.1, 3.3.2)."""

    max_length: Annotated[Length, Field(ge=5)] = 128
    short_sequence_rate: Rate = 0.1
    next_sentence: bool = True
    masking_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    max_predictions: Count | None = None
    mask_share: Rate = 0.8
    keep_share: Rate = 0.1
    whole_word: bool = False
    static_masks: bool = False
    held_out_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.02

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.keep_share > 1.0 + 1e-9:
            raise ValueError(f"mask_share + keep_share = {self.mask_share + self.keep_share}: it may not exceed 1")
        return self

    def resolved_max_predictions(self) -> int:
        """Return the cap on predictions of one sequence, `max_predictions` unless absent.

        The default grows with length and rate, so it never cuts: 20 at length 128 and 80 at 512 for 0.15, as published.
        """
        return self.max_predictions or max(1, round(0.15625 * self.max_length * (self.masking_rate / 0.15)))


class FinetuningData(Section):
    """How examples of a task are encoded."""

    max_length: Annotated[Length, Field(ge=3)] = 128


class TrainingSection(Section):
    """Optimisation (paper 3.4, 3.5).

    `head_learning_rate` is that of the heads, whose parameters are new in fine-tuning; without it they have
    `learning_rate` like all others. The schedule scales both alike. `on_nonfinite` says what follows a loss or gradient
    that is not finite: "stop"; "skip" goes on with the next batch, at most `max_skips` times in a row; "rewind" goes
    back to the last checkpoint and on with the batches after the bad one, at most `max_skips` times in all.
    Where torchrun starts several processes, `parallel` says whether each holds the whole model ("ddp") or a share of it
    ("fsdp"), and a process that lets the others wait for `rank_timeout` seconds ends the run.
    """

    steps: Count = 10_000
    batch_size: BatchSize = 32
    micro_batch_size: Count | None = None
    learning_rate: Positive = 1e-4
    head_learning_rate: Positive | None = None
    warmup_share: Rate = 0.1
    warmup_steps: CountOrNone | None = None
    schedule: Literal["linear", "google"] = "linear"
    optimizer: Literal["adamw", "bert_adam"] = "adamw"
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.999
    adam_epsilon: Positive = 1e-6
    weight_decay: NotNegative = 0.01
    clip_norm: Positive | None = 1.0
    on_nonfinite: Literal["stop", "skip", "rewind"] = "stop"
    max_skips: Count = 3
    save_every: Count | None = None
    evaluate_every: Count | None = None
    log_every: Count = 10
    keep_checkpoints: Count = 2
    keep_best: bool = False
    max_evaluation_instances: Count | None = None
    num_threads: Count | None = None
    parallel: Literal["ddp", "fsdp"] = "ddp"
    rank_timeout: Annotated[float, Field(ge=3.0, le=86_400.0)] = 30.0

    def resolved_warmup_steps(self) -> int:
        """Return the number of warm-up steps: `warmup_steps`, or `warmup_share` of all steps, rounded down."""
        return int(self.warmup_share * self.steps) if self.warmup_steps is None else self.warmup_steps

    def refuse_contradictions(self, phase: Phase | None = None, place: str = "training") -> None:
        """Raise ValueError for a count that exceeds the one it is a part of, in this section or in a phase of it."""
        own = set() if phase is None else phase.model_fields_set
        both = self if phase is None else self.model_copy(update=phase.model_dump(exclude_none=True))
        for part, whole in (("warmup_steps", "steps"), ("micro_batch_size", "batch_size")):
            count, limit = getattr(both, part), getattr(both, whole)
            if None not in (count, limit) and count > limit:
                keys = [f"{place if name in own else 'training'}.{name}" for name in (part, whole)]
                raise ValueError(f"{keys[0]} = {count}: it may not exceed {keys[1]} = {limit}")


class Phase(Section):
    """One phase of pre-training at one sequence length; what is absent comes from [data] and [training]."""

    max_length: Annotated[Length, Field(ge=5)]
    steps: Count
    batch_size: BatchSize | None = None
    learning_rate: Positive | None = None
    warmup_steps: CountOrNone | None = None


class PretrainRecipe(Section):
    """A pre-training run: model, data, training and, optionally, phases of sequence length."""

    kind: Literal["pretrain"] = "pretrain"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    model: ModelSection = ModelSection()
    data: PretrainingData = PretrainingData()
    training: TrainingSection = TrainingSection()
    phases: list[Phase] = Field(default_factory=list)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        for number, phase in enumerate(self.phases):
            self.training.refuse_contradictions(phase, f"phases.{number}")
        if not self.phases:
            self.training.refuse_contradictions()
        if self.training.keep_best and self.data.held_out_share == 0.0:
            raise ValueError("training.keep_best = true: with data.held_out_share = 0 nothing is there to choose by")
        return self


class FinetuneTraining(TrainingSection):
    """Fine-tuning counts epochs unless steps are given (paper 3.5: batch 16 or 32, 2e-5 to 5e-5, 3 or 4 epochs).

    `group_by_length` puts examples of like length into a batch; no padding is computed with, so it gains little speed.
    """

    steps: Count | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    epochs: Annotated[float, Field(gt=0.0, le=1e6)] = 3.0
    learning_rate: Positive = 5e-5
    group_by_length: bool = False

    def with_steps(self, num_examples: int) -> TrainingSection:
        """Return the section with its steps counted: `int(num_examples / batch_size * epochs)`, at least one.

        Raises ConfigError when `warmup_steps` are more than that.
        """
        steps = self.steps or max(1, int(num_examples / self.batch_size * self.epochs))
        counted = TrainingSection(steps=steps, **self.model_dump(exclude={"epochs", "steps", "group_by_length"}))
        if (warmup := counted.resolved_warmup_steps()) > steps:
            raise ConfigError(f"training.warmup_steps = {warmup}: {num_examples} examples give {steps} steps")
        return counted


class SpanSection(Section):
    """Answers as spans of a context (paper 4.2, 4.3), in the terms of the published code.

    `stride` is the step from one window to the next; an answer is kept empty when the null answer scores more than
    `null_threshold` above it, in data with questions that have none.
    """

    stride: Count = 128
    max_question_length: Count = 64
    max_answer_length: Count = 30
    num_best: Count = 20
    null_threshold: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class TaggingSection(Section):
    """Tags of words (paper 5.3): how they are written in files, and how much of a document a word sees.

    `scheme` "plain" is for tags that stand for single words, such as parts of speech; "auto" tells them from entities.
    """

    scheme: Literal["auto", "iob1", "iob2", "bioes", "bilou", "io", "plain"] = "auto"
    context: Literal["sentence", "document"] = "sentence"
    crf: bool = False


# How LayerCombination names layers; whether the encoder has so many is known when it is there.
_LAYERS = "^(embeddings|last|second_to_last|(sum|concat)_last_four|sum_all|scalar_mix|all|[-0-9, ]+)$"


class FeaturesSection(Section):
    """Tagging on vectors of a frozen encoder (paper 5.3, Table 7): which layers, and the BiLSTM that reads them.

    `layers` is embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, scalar_mix, or numbers of
    layers joined by commas, 0 for the embeddings. `lstm_size` counts both directions together. `precision` is that of
    the vectors on disk.
    """

    layers: Annotated[str, Field(pattern=_LAYERS)] = "concat_last_four"
    lstm_size: Annotated[int, Field(ge=2, le=65_536, multiple_of=2)] = 768
    lstm_layers: Annotated[int, Field(ge=1, le=4)] = 2
    dropout: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)] = 0.1
    precision: Literal["float32", "float16"] = "float32"


class FinetuneRecipe(Section):
    """A fine-tuning run: task, data, training; the sections of kinds of task are read by those kinds alone.

    `tune_on_dev` fits temperature and thresholds to dev at the end. `keep_restarts` keeps the best model of every seed,
    the members of an ensemble.
    """

    kind: Literal["finetune"] = "finetune"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    restarts: Count = 1
    keep_restarts: bool = False
    tune_on_dev: bool = False
    task: Literal["single", "pair", "regression", "multilabel", "span", "tagging", "choice"] = "single"
    class_weights: Literal["none", "balanced"] | dict[str, Positive] = "none"
    from_scratch: bool = False
    data: FinetuningData = FinetuningData()
    training: FinetuneTraining = FinetuneTraining()
    span: SpanSection = SpanSection()
    tagging: TaggingSection = TaggingSection()
    features: FeaturesSection | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.features is not None and (self.task != "tagging" or self.from_scratch):
            raise ValueError("[features] is for task = 'tagging' with the weights of a trained model")
        if self.class_weights != "none" and self.task not in ("single", "pair"):
            raise ValueError(f"class_weights: classes of task = {self.task!r} do not exclude each other; use 'none'")
        if self.tune_on_dev and self.task == "regression":
            raise ValueError("tune_on_dev = true: task = 'regression' has neither a temperature nor thresholds to fit")
        self.training.refuse_contradictions()
        return self

    def task_settings(self) -> dict[str, Any]:
        """Return the section of the kind of task as plain values; {} for a kind that has none."""
        section = getattr(self, self.task, None)
        settings = section.model_dump() if isinstance(section, Section) else {}
        return settings if self.features is None else {**settings, "features": self.features.model_dump()}


RecipeT = TypeVar("RecipeT", bound=Section)
_MAX_RECIPE_BYTES = 1 << 20
# Wrong keys that an error names one by one.
_NUM_NAMED = 50


def load_recipe(
    kind: type[RecipeT],
    path: str | Path | None,
    overrides: list[str] | None = None,
    *,
    check: Callable[[RecipeT], object] | None = None,
) -> RecipeT:
    """Read a recipe of one kind from a TOML file and apply `key.sub=value` overrides to it.

    Raises ConfigError that names key, value and file for what is unknown, ill-typed or contradictory; `check` may know
    of more and raise it.
    """
    values = {} if path is None else _read_toml(Path(path))
    for override in overrides or []:
        _apply_override(values, override)
    source = str(path) if path else "recipe"
    recipe = validate_recipe(kind, values, source=source)
    if check is not None:
        try:
            check(recipe)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    return recipe


def _read_toml(path: Path) -> dict[str, Any]:
    problem = why_unreadable(path)
    if problem is not None:
        raise ConfigError(f"{path}: the recipe {problem}")
    try:
        return tomllib.loads(read_bytes(path, limit=_MAX_RECIPE_BYTES).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; recipes are UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid TOML: nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except DataError as error:
        raise ConfigError(str(error)) from None
    except ValueError:
        raise ConfigError(f"{path}: not valid TOML: a number has too many digits") from None


def validate_recipe(kind: type[RecipeT], values: dict[str, Any], *, source: str) -> RecipeT:
    """Check a mapping against a recipe model; raises ConfigError with one line for every wrong key."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [_explain(kind, problem, source) for problem in problems[:_NUM_NAMED]]
        more = [f"{source}: and {len(problems) - _NUM_NAMED} more"] if len(problems) > _NUM_NAMED else []
        raise ConfigError("\n".join(lines + more)) from None


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    key = key.strip()
    if not separator or not key:
        raise ConfigError(f"--set {override!r:.200}: expected key=value, such as training.steps=1000")
    if "\n" in override or "\r" in override:
        raise ConfigError(f"--set {override!r:.200}: a line break in it; each key takes a --set of its own")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    target = values
    *parents, last = key.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {override!r:.200}: {parent!r:.60} is a value, not a section")
    target[last] = value


def _explain(kind: type[BaseModel], problem: Any, source: str) -> str:
    # Of a value that may be of two types, pydantic names the type too.
    path = [str(part) for part in problem["loc"] if not str(part).startswith(("literal[", "dict["))]
    key = ".".join(path) or "recipe"
    if problem["type"] == "extra_forbidden":
        known = _keys_at(kind, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        nearest = ".".join([*path[:-1], *near])
        hint = f"did you mean {nearest!r}?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"{source}: unknown key {key!r:.200}; {hint}"
    if problem["type"] == "value_error":  # values that do not fit together; the message names them
        return f"{source}: {'.'.join([*path, str(problem['ctx']['error'])])}"
    return f"{source}: {key:.200} = {_shown(problem['input'])}: {reason_of(problem)}"


def reason_of(problem: Any) -> str:
    """Return why pydantic refuses a value, without its own terms: its prefix, names of classes."""
    return problem["msg"].removeprefix("Value error, ").partition(" or instance of ")[0]


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.200}"
    except (ValueError, RecursionError):  # a number of thousands of digits; a table within a table within ...
        return f"a {type(value).__name__}"


def _keys_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    current: Any = kind
    for part in path:
        if part.isdigit():
            continue
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        annotation = field.annotation
        arguments = getattr(annotation, "__args__", ())
        current = next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), annotation)
    return list(getattr(current, "model_fields", {}))


def recipe_toml(recipe: Section) -> str:
    """Return a recipe as TOML text that `load_recipe` reads back to an equal recipe."""
    return "\n".join(_toml_lines(recipe.model_dump(exclude_none=True), "")).lstrip("\n") + "\n"


def _toml_lines(values: dict[str, Any], prefix: str) -> list[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    rows = {key: value for key, value in values.items() if isinstance(value, list)}
    lines = [f"{_toml_key(k)} = {_toml_value(v)}" for k, v in values.items() if k not in tables and k not in rows]
    for key, table in tables.items():
        name = prefix + _toml_key(key)
        lines += ["", f"[{name}]", *_toml_lines(table, name + ".")]
    for key, items in rows.items():
        for item in items:
            lines += ["", f"[[{prefix}{_toml_key(key)}]]", *_toml_lines(item, "")]
    return lines


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _toml_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
