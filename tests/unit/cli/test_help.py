"""The help: every command and option explains itself, in its panel and in a consistent style."""

import functools
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from maskloom.cli import INSPECT, PREPARE, TRAIN, USE, app
from maskloom.reproduce import probes
from maskloom.tasks.catalog import CATALOG
from maskloom.tasks.kinds import KINDS


def all_commands(command: Any, name: str = "maskloom") -> dict[str, Any]:
    found = {name: command}
    for part, inner in getattr(command, "commands", {}).items():
        found |= all_commands(inner, f"{name} {part}")
    return found


COMMANDS = all_commands(typer.main.get_command(app))


@functools.cache
def printed(name: str, columns: int = 200) -> str:
    """Return the help of a command as it is printed on a screen of so many columns."""
    return CliRunner().invoke(app, [*name.split()[1:], "--help"], env={"COLUMNS": str(columns)}).output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_says_what_it_does(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.help.strip().splitlines()[0][0].isupper()
    helps = {parameter.name: getattr(parameter, "help", "") for parameter in command.params}
    assert [option for option, text in helps.items() if not text] == []
    assert [text for text in helps.values() if not text.rstrip().endswith((".", ")"))] == []


def test_the_help_of_formats_names_the_data_sets_of_the_catalog() -> None:
    options = {option.name: option for option in COMMANDS["maskloom finetune"].params}
    named = set(re.findall(r"[a-z][\w-]+", options["format"].help))
    assert {name for name in CATALOG if not name.startswith("glue:")} <= named


def test_the_help_of_predict_names_a_form_of_every_kind_that_has_its_own() -> None:
    (told,) = (option.help for option in COMMANDS["maskloom predict"].params if option.name == "output")
    forms = {kind.output_suffixes[0] for kind in KINDS.values() if kind.output_suffixes}
    assert forms <= set(re.findall(r"\.\w+", told))


def test_the_help_of_reproduce_names_the_folders_of_tasks() -> None:
    (told,) = (option.help for option in COMMANDS["maskloom reproduce"].params if option.name == "tasks")
    assert [name for name in probes._OTHERS if f" {name}/" not in told] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_printed_as_it_is_written(name: str) -> None:
    """Markup would interpret [words] in brackets as styles and drop them."""
    shown = "".join(printed(name).replace("│", "").split())
    helps = [getattr(parameter, "help", "") for parameter in COMMANDS[name].params]
    for text in [COMMANDS[name].help, *helps]:
        assert "".join(text.replace("\\[", "[").split()) in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_shown_as_they_are_typed(name: str) -> None:
    shown = printed(name)
    assert "[default: (" not in shown
    if name == "maskloom words train":
        sizes = next(line for line in shown.splitlines() if " --size " in line)
        assert "[default: 100]" in sizes


@pytest.mark.parametrize("name", COMMANDS)
def test_no_name_of_an_option_is_cut_on_a_narrow_screen(name: str) -> None:
    shown = printed(name, 80).replace("│", " ").split()
    names = {name for option in COMMANDS[name].params for name in (option.opts[0], *option.secondary_opts)}
    assert {name for name in names if name.startswith("-")} <= set(shown)


def test_reproduce_says_which_options_an_experiment_does_not_take() -> None:
    shown = printed("maskloom reproduce", 80)
    refused = shown.partition(" Not for figure1, transformer-table1, rnn-gradients and rnn-attention ")[2]
    assert [
        name for name in ("--corpus", "--tasks", "--set", "--jobs", "--scale", "--seeds") if name not in refused
    ] == []
    assert [name for name in ("--out", "--device", "--json") if name in refused] == []


ORDER = (
    "--model", "--ensemble", "--train", "--dev", "--data", "--input", "--out", "--output", "--task", "--epochs",
    "--batch-size", "--seed", "--restarts", "--recipe", "--grid", "--metric", "--text-column", "--format",
    "--average", "--max-length", "--resume", "--verify", "--set", "--workers", "--json", "--help",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_options_stand_in_one_order(name: str) -> None:
    shown = [parameter.opts[0] for parameter in COMMANDS[name].params]
    before = ("finetune", "search", "pretrain", "run", "plan")  # there --max-length is the length of training sequences
    known = [option for option in shown if option in ORDER and not (option == "--max-length" and name.endswith(before))]
    assert known == sorted(known, key=ORDER.index)


def test_every_command_stands_in_a_panel() -> None:
    root = COMMANDS["maskloom"]
    panels = {name: command.rich_help_panel for name, command in root.commands.items()}
    assert {name for name, panel in panels.items() if panel not in (PREPARE, TRAIN, USE, INSPECT)} == set()
    shown = [panels[name] for name in root.list_commands(typer.Context(root))]
    assert list(dict.fromkeys(shown)) == [PREPARE, TRAIN, USE, INSPECT]


def test_the_completion_script_names_the_command_also_as_a_module() -> None:
    command = [sys.executable, "-m", "maskloom", "--show-completion", "bash"]
    named = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=named)
    assert "_MASKLOOM_COMPLETE=complete_bash" in done.stdout
