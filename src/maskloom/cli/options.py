"""Options and output helpers shared by commands, and suggestions for unknown flags."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from maskloom.errors import ConfigError, UsageError, not_one_of
from maskloom.rows import SizeName, names_of
from maskloom.runs.display import lines_of, printable, printable_json
from maskloom.system.files import open_file_number
from maskloom.system.foreign_files import check_model_name, restart_models
from maskloom.system.launch import DEVICE_NAMES, is_first_process

_CLICK = "typer._click" if find_spec("typer._click") else "click"  # newer releases of typer bundle it
_CONTEXT: Callable[[], Any] = import_module(f"{_CLICK}.globals").get_current_context

# typer names an option after its parameter. Switches are named explicitly so that they get no --no- form.
Texts = Annotated[
    list[Path], typer.Argument(help="Files or folders: .txt, .jsonl with a `text` field (also .gz, .zst), .parquet.")
]


def below_no_file(out: Path | None) -> Path | None:
    """Reject a folder to write that is a file, or would lie below one."""
    for place in (out, *out.parents) if out else ():
        if os.path.exists(place) and not os.path.isdir(place):
            raise ConfigError(f"{out}: {place} is a file, not a folder")
    return out


Out = Annotated[Path, typer.Option(help="Folder to write.", callback=below_no_file)]
Model = Annotated[Path, typer.Option(help="A model folder in Hugging Face layout, or a run folder.")]
Averaged = Annotated[Literal["probabilities", "logits"], typer.Option(help="What an ensemble averages.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Recipe = Annotated[
    Path | None, typer.Option(help="A TOML recipe, or the name of a shipped one (see maskloom recipes).")
]
Workers = Annotated[int, typer.Option(min=1, max=1024, help="Number of processes.")]
BadText = Annotated[Literal["error", "skip"], typer.Option(help="What to do with bytes that are not UTF-8.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in --out from its newest complete checkpoint.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="With --resume: first repeat the last steps and compare them bit for bit.")
]


def _take_device(name: str | None) -> str | None:
    """Set the device for the whole process and return it; unknown names are rejected before any heavy import."""
    if name is not None and not re.fullmatch(DEVICE_NAMES, name):
        raise typer.BadParameter(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:0 and so on, mps")
    if name is not None:
        os.environ["MASKLOOM_DEVICE"] = name
    return name


def _known_task(name: str | None) -> str | None:
    if name is not None and name not in (known := names_of("task")):
        raise typer.BadParameter(not_one_of(name, known))
    return name


Device = Annotated[
    str | None,
    typer.Option(help="Device to use: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.", callback=_take_device),
]
MaxLength = Annotated[
    int | None, typer.Option(min=3, help="Maximum tokens; longer sequences are truncated and counted.")
]


def optional(kind: Any, meaning: str, *flags: str, **more: Any) -> Any:
    """Return the annotation of an option, for `with_options`, that is None unless given."""
    return Annotated[kind | None, typer.Option(*flags, help=meaning, **more)]


_READING: dict[str, Any] = {
    "text_column": optional(str, "Column of the text, by name or by number from 1."),
    "pair_column": optional(str, "Column of the second text."),
    "label_column": optional(str, "Column of the label or score."),
    "format": optional(
        str,
        "A data set's files as distributed: cola, sst-2 … (GLUE), goemotions, conll2003, swag, hellaswag, codah, "
        "cosmosqa, arc, commonsenseqa, copa, race.",
    ),
    "labels": optional(Path, "A file with one label name per line."),
    "target_suffix": optional(str, "For a seq2seq task: suffix of the target file next to a source file, such as en."),
    "on_bad_rows": Annotated[
        Literal["error", "skip"], typer.Option(help="Stop at an invalid row, or skip and count such rows.")
    ],
}


def with_options(
    name: str, options: dict[str, Any], made: Callable[..., Any] = dict, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `name` with options and passes it `made(**options)`.

    Options without a default are None unless given. With an empty `name` they are only added, at the end.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own, kind = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(option, kind, default=defaults.get(option), annotation=annotation)
            for option, annotation in options.items()
        ]
        kept = {old.name: [old.replace(kind=kind)] for old in own.parameters.values()}
        parameters = [parameter for place in {**kept, name: added}.values() for parameter in place]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            value = made(**{option: given.pop(option) for option in options})
            command(**{name: value} if name else {}, **given)

        called.__signature__ = own.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate


class Commands(typer.Typer):
    """Commands that all have --json, which `show` reads."""

    def command(self, *given: Any, **how: Any) -> Any:
        """Return a decorator that adds a command."""
        add = super().command(*given, **how)
        return lambda command: add(with_options("", {"as_json": AsJson}, as_json=False)(command))


def only_given(**values: Any) -> dict[str, Any]:
    """Return the running command's options that were given, even with their default values, by name."""
    source = _CONTEXT().get_parameter_source
    return {name: value for name, value in values.items() if source(name).name == "COMMANDLINE"}


def refuse(reason: str, *names: str) -> None:
    """Raise UsageError, with the reason, if one of the named options was given to the running command."""
    context = _CONTEXT()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name).name == "COMMANDLINE":
            is_off = context.params[option.name] is False and option.secondary_opts
            raise UsageError(f"{(option.secondary_opts if is_off else option.opts)[0]}: {reason}")


def reads(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the named options to a command, which receives them as ReadingOptions in its parameter `reading`."""

    def reading(labels: Path | None = None, **given: Any) -> Any:
        from maskloom.tasks.tables import ReadingOptions

        return ReadingOptions(labels=str(labels) if labels else None, **given)

    return with_options("reading", {name: _READING[name] for name in names}, reading, on_bad_rows="error")


_GENERATION: dict[str, Any] = {
    "max_tokens": optional(
        int, "Maximum new tokens; by default 64, or as fine-tuned. A target has at most 50 more than its source."
    ),
    "temperature": optional(float, "Sampling temperature; below 1 favours likely tokens, 0 takes the most likely."),
    "top_k": optional(int, "Sample from this many of the most likely tokens."),
    "top_p": optional(float, "Sample from the smallest set of tokens with this total probability."),
    "beam": optional(int, "Beam search with this many candidates instead of sampling."),
    "length_penalty": optional(float, "Beam search: divide scores by ((5 + length) / 6) to this power."),
    "num_best": optional(int, "Beam search: number of texts to show, best first."),
    "min_tokens": optional(int, "Minimum tokens per text."),
    "no_repeat_ngram": optional(int, "Never repeat an n-gram of this length, nor one of the prompt; 0 allows all."),
    "seed": optional(int, "Random seed for sampling."),
}
draws = with_options("given", _GENERATION, only_given)
"""Adds generation options to a command, which receives the given ones as a dictionary in `given`."""


def _chosen_models(model: list[Path] | None, ensemble: Path | None) -> list[Path]:
    chosen = [*(model or [])]
    if model and ensemble is not None:
        raise UsageError(f"--ensemble {ensemble}: it already names all models; leave out --model")
    if ensemble is not None:
        check_model_name(ensemble)
        chosen += restart_models(ensemble)
    if not chosen:
        raise UsageError("no model: pass --model (several times for an ensemble) or --ensemble")
    if len(chosen) == 1:
        refuse(f"{chosen[0]} is one model; give several, or leave it out", "average")
    return chosen


_MODELS: dict[str, Any] = {
    "model": optional(list[Path], "A model or run folder. Repeatable, for an ensemble."),
    "ensemble": optional(Path, "A run made with --keep-restarts, whose restarts form the ensemble."),
}
takes_models = with_options("models", _MODELS, _chosen_models)
"""Adds --model and --ensemble to a command, which receives one or more model folders in its parameter `models`."""


def chosen_recipe(
    kind: Any,
    path: Path | None,
    changes: list[str],
    out: Path,
    resume: bool,
    *,
    flags: dict[str, Any],
    check: Callable[[Any], object] | None = None,
) -> Any:
    """Return the recipe with `changes` then `flags` applied; a resumed run may use its own. Rejects a folder in use."""
    from maskloom.runs.recipes import recipe_of_run, run_to_resume
    from maskloom.runs.run_folder import check_run_folder

    check_run_folder(out, resume)  # before the heavy imports
    resumes = run_to_resume(out, resume, lambda line: say(line, err=True))
    return recipe_of_run(kind, path, changes=changes, flags=flags, resumes=resumes, check=check)


_COMMANDS = {"glue": "glue run", "words": "words train"}  # of the kinds of runs, where they have another name


def continued(out: Path, resume: bool, kind: str) -> dict[str, Path] | None:
    """Return the inputs that a run to resume has recorded, or None for a new run; rejects a run of another kind.

    Also rejects --verify, where a command has it, without --resume.
    """
    if not resume:
        refuse("it repeats training steps of an earlier run; pass --resume too", "verify")
    if not resume or not (out / "recipe.toml").exists():
        return None
    from maskloom.runs.run_folder import described, kind_of_run

    if (found := kind_of_run(description := described(out))) != kind:
        raise UsageError(f"{out}: this run is continued by maskloom {_COMMANDS.get(found, found)} --resume")
    return {name: Path(path) for name, path in description["paths"].items()}


def show(
    result: Any,
    *,
    lines: Callable[[Any], list[str]] = lines_of,
    beside: Path | None = None,
    account: Callable[[Any], str] | None = None,
) -> None:
    """Print a result as one JSON value (--json) or as text formatted by `lines`, by default every key of it.

    In distributed training only the first process prints. If `beside` names standard output, where rows were written,
    the result goes to standard error; so does the summary that `account` adds to the text.
    """
    if not is_first_process():
        return
    to_stderr = beside is not None and open_file_number(beside) == 1
    if _CONTEXT().params["as_json"]:
        typer.echo(printable_json(json.dumps(result, ensure_ascii=False)), err=to_stderr)
        return
    say(*lines(result), err=to_stderr)
    if account is not None:
        say(account(result), err=True)


def say(*lines: str, err: bool = False) -> None:
    """Print lines of text, with control characters escaped."""
    typer.echo("\n".join(map(printable, lines)), err=err)


# Commands whose --set changes a recipe for pre-training.
_OF_PRETRAINING = ("pretrain", "plan")


def complete_key(context: typer.Context, incomplete: str) -> list[str]:
    """Return recipe keys that start with `incomplete`, or the values of the key before its "="."""
    from maskloom.config import FinetuneRecipe, PretrainRecipe
    from maskloom.recipe_files import recipe_keys

    keys = list(recipe_keys(PretrainRecipe if context.info_name in _OF_PRETRAINING else FinetuneRecipe))
    key, separator, value = incomplete.partition("=")
    if not separator:
        return [f"{known.path}=" for known in keys if known.path.startswith(incomplete) and ".N." not in known.path]
    choices = next((known.choices for known in keys if known.path == key), ())
    return [f"{key}={choice}" for choice in choices if str(choice).startswith(value)]


Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a recipe key, such as training.steps=1000 (maskloom recipes show NAME lists them, with NAME a "
        "recipe, pretrain or finetune). Repeatable.",
        autocompletion=complete_key,
    ),
]
Metric = Annotated[str | None, typer.Option(help="The dev score that selects the best weights.")]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        help="A recipe key with its values, such as training.batch_size=16,32 (repeatable); or a named grid: paper "
        "(18 trials), small (the paper's for GLUE, 4 trials), minis (for models below base, 20 trials), none."
    ),
]
_FLAGS: dict[str, Any] = {
    "size": optional(SizeName, "Published size of the model; by default, the recipe's."),
    "task": optional(
        str,
        "Kind of task: single, pair, regression, multilabel, document, span, tagging, choice or seq2seq. By default "
        "that of the recipe or --format, otherwise single.",
        callback=_known_task,
        autocompletion=lambda: names_of("task"),
    ),
    "epochs": optional(float, "Passes over the training data."),
    "steps": optional(int, "Optimiser steps; with --resume, a different number extends or shortens the run.", min=1),
    "minutes": optional(float, "Minutes to train, instead of steps or epochs; the schedule follows the clock."),
    "batch_size": optional(int, "Sequences or examples per step.", min=1),
    "learning_rate": optional(float, "Peak learning rate."),
    "max_length": optional(int, "Maximum sequence length in tokens.", min=3),
    "seed": optional(int, "Random seed.", min=0),
    "device": Device,
    "keep_restarts": optional(bool, "Keep the best model of every seed, for an ensemble.", "--keep-restarts"),
    "restarts": optional(int, "Number of seeds; in a search, per trial.", min=1),
}


def epochs_of(flags: dict[str, Any], changes: list[str] | None) -> float | None:
    """Remove --epochs from the flags of pre-training and return it; rejects it together with --set training.steps."""
    from maskloom.recipe_files import by_key

    epochs = flags.pop("epochs")
    if epochs is not None and "training.steps" in by_key(changes):
        raise UsageError("--epochs and --set training.steps=… both set how long to train: use only one of them")
    return epochs


def trains(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the named flags to a command, which receives their values by name in its parameter `flags`, but no device."""
    return with_options("flags", {name: _FLAGS[name] for name in names}, lambda device=None, **flags: flags)


def space_beside(grid: list[str] | None, flags: dict[str, Any], changes: list[str] | None) -> Any:
    """Return the search space of a grid, None without one; raises ConfigError if a flag or --set has its keys."""
    if grid is None:
        return None
    from maskloom.recipe_files import by_key
    from maskloom.runs.recipes import FLAG_KEYS, shown_flag
    from maskloom.runs.search_space import parse_space

    space = parse_space(grid)
    given = {FLAG_KEYS[name]: shown_flag(name, value) for name, value in flags.items() if value is not None}
    given |= {key: f"--set {change}" for key, change in by_key(changes).items()}
    for key in space:
        if key in given:
            raise ConfigError(f"{given[key]}: the grid varies {key}; use --grid {key}=VALUE instead")
    return space


_EXCEPTIONS: Any = import_module(f"{_CLICK}.exceptions")
# Other programs' names for flags that are not recipe keys, and the flags meant; for recipe keys see recipe_files.
_OTHER_FLAGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("output", "output_dir", "output_folder", "save_dir"), ("out",)),
    **dict.fromkeys(("model_name_or_path", "model_path", "checkpoint", "pretrained"), ("model",)),
    **dict.fromkeys(("train_file", "train_data", "training_data"), ("train",)),
    **dict.fromkeys(("validation_file", "eval_file", "dev_file", "valid", "validation", "eval"), ("dev",)),
    **dict.fromkeys(("test", "test_file", "data_dir", "dataset", "data", "input", "input_file"), ("data", "input")),
    **dict.fromkeys(("config", "recipe_file"), ("recipe",)),
    **dict.fromkeys(("continue", "resume_from_checkpoint"), ("resume",)),
    **dict.fromkeys(("num_workers", "processes", "jobs"), ("workers",)),
}


class PointingGroup(TyperGroup):
    """A group whose commands suggest a flag or recipe key in place of an unknown flag.

    For an invalid value of a flag they explain why, without library jargon, and suggest the closest valid one.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except _EXCEPTIONS.NoSuchOption as error:
            meant = _meant(error) or get_close_matches(error.option_name, error.possibilities or (), cutoff=0.75)
            raise _EXCEPTIONS.NoSuchOption(error.option_name, possibilities=meant, ctx=error.ctx) from None
        except _EXCEPTIONS.BadParameter as error:  # newer releases of typer parse values with pydantic
            from maskloom.recipe_files import reason_of

            for problem in getattr(error.__cause__, "errors", list)():
                if problem["type"] != "value_error":  # its message names the value already
                    error.message = f"{problem['input']!r}: {reason_of(problem)}"
            error.message = error.message.removeprefix("Value error, ")
            if found := re.fullmatch(r"'(.*)' is not one of '(.*)'\.", error.message, re.DOTALL):
                error.message = not_one_of(found[1], found[2].split("', '"))
            raise


class WordsGroup(TyperGroup):
    """The commands for word vectors, whose module is imported when they are needed."""

    @property
    def commands(self) -> Any:
        """The commands by name."""
        return typer.main.get_command(import_module("maskloom.cli.words").words_app).commands  # pyright: ignore

    @commands.setter
    def commands(self, _: Any) -> None: ...


def _meant(error: Any) -> list[str]:
    """Return the flags, or settings of recipe keys, that an unknown flag stands for in other programs or in recipes."""
    from maskloom.config import FinetuneRecipe, PretrainRecipe
    from maskloom.recipe_files import OTHER_NAMES, keys_named

    name, command = error.option_name.lstrip("-").replace("-", "_").lower(), error.ctx.command
    if name == "vocab_size":  # the --size of other commands is that of a model or of vectors
        return ["--size" if error.ctx.command_path.endswith(" vocab train") else "maskloom vocab train --size"]
    flags = {flag for parameter in command.params for flag in parameter.opts}
    names = [name, *OTHER_NAMES.get(name, ()), *_OTHER_FLAGS.get(name, ())]
    if found := [flag for other in names if (flag := f"--{other.replace('_', '-')}") in flags]:
        return found[:1]
    kinds: dict[str, Any] = {"": PretrainRecipe if command.name in _OF_PRETRAINING else FinetuneRecipe}
    if command.name == "reproduce":  # whose keys begin with the recipe that they belong to
        kinds = {"pretrain.": PretrainRecipe, "finetune.": FinetuneRecipe}
    for other in names if "--set" in flags else ():
        keys = [f"{begin}{key}" for begin, kind in kinds.items() for key in keys_named(kind, other) if ".N." not in key]
        if keys:
            return [f"--set {key}=VALUE" for key in keys]
    return []
