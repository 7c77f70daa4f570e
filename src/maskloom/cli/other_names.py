"""Flags that are not there lead to those that are: other programs' names, and keys of recipes."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from typer.core import TyperGroup

from maskloom.errors import not_one_of

# Newer releases of typer hold click themselves.
_EXCEPTIONS: Any = import_module("typer._click.exceptions" if find_spec("typer._click") else "click.exceptions")
# Names of other programs for what is no recipe key; theirs of recipe keys are in recipe_files.
_FLAGS = {
    **dict.fromkeys(("output", "output_dir", "output_folder", "save_dir"), "out"),
    **dict.fromkeys(("model_name_or_path", "model_path", "checkpoint", "pretrained"), "model"),
    **dict.fromkeys(("train_file", "train_data", "training_data"), "train"),
    **dict.fromkeys(("validation_file", "eval_file", "dev_file", "valid", "validation", "eval"), "dev"),
    **dict.fromkeys(("test", "test_file", "data_dir", "dataset", "input"), "data"),
    **dict.fromkeys(("data", "input_file"), "input"),
    **dict.fromkeys(("config", "recipe_file"), "recipe"),
    **dict.fromkeys(("continue", "resume_from_checkpoint"), "resume"),
    **dict.fromkeys(("num_workers", "processes", "jobs"), "workers"),
    **dict.fromkeys(("vocab_size",), "size"),
}


class PointingGroup(TyperGroup):
    """A group whose commands name, for a flag that is not there, the flag or recipe key that is meant.

    For a wrong value of a flag they say why, without the terms of a library, and name the nearest one.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except _EXCEPTIONS.NoSuchOption as error:
            meant = _meant(error) or error.possibilities
            raise _EXCEPTIONS.NoSuchOption(error.option_name, possibilities=meant, ctx=error.ctx) from None
        except _EXCEPTIONS.BadParameter as error:  # newer releases of typer read values by pydantic
            from maskloom.recipe_files import reason_of

            for problem in getattr(error.__cause__, "errors", list)():
                if problem["type"] != "value_error":  # which names the value already
                    error.message = f"{problem['input']!r}: {reason_of(problem)}"
            error.message = error.message.removeprefix("Value error, ")
            if found := re.fullmatch(r"'(.*)' is not one of '(.*)'\.", error.message, re.DOTALL):
                error.message = not_one_of(found[1], found[2].split("', '"))
            raise


def _meant(error: Any) -> list[str]:
    from maskloom.config import FinetuneRecipe, PretrainRecipe
    from maskloom.recipe_files import OTHER_NAMES, keys_named

    name = error.option_name.lstrip("-").replace("-", "_").lower()
    command = error.ctx.command
    flags = {flag for parameter in command.params if not getattr(parameter, "hidden", False) for flag in parameter.opts}
    names = [name, *OTHER_NAMES.get(name, ())]
    if name in _FLAGS:
        names += [_FLAGS[name], *filter(None, [_FLAGS.get(_FLAGS[name])])]
    for candidate in names:
        if (flag := f"--{candidate.replace('_', '-')}") in flags:
            return [flag]
    if "--set" not in flags:
        return []
    kind = PretrainRecipe if command.name == "pretrain" else FinetuneRecipe
    for candidate in names:
        if found := [key for key in keys_named(kind, candidate) if ".N." not in key]:
            return [f"--set {key}=VALUE" for key in found]
    return []
