"""The exit codes and final messages of the command line."""

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
import typer

from maskloom import cli
from maskloom.errors import ConfigError, DataError, UsageError
from maskloom.system.files import DISK_ERRORS
from maskloom.training.faults.interruption import Interrupted, StopRequests
from maskloom.training.faults.memory import MemoryExhaustedError
from maskloom.training.faults.nonfinite import NumericalError


def _ended(monkeypatch: pytest.MonkeyPatch, error: BaseException | Callable[[], None], *arguments: str) -> int:
    def fail(**_: object) -> None:
        if isinstance(error, BaseException):
            raise error
        error()

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr("sys.argv", ["maskloom", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("number", sorted(DISK_ERRORS))
def test_trouble_with_the_disk_is_74_and_one_line(monkeypatch, capsys, number: int) -> None:
    assert _ended(monkeypatch, OSError(number, os.strerror(number), "run/checkpoints")) == 74
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "error", [FileNotFoundError("a"), NumericalError("loss nan"), MemoryExhaustedError("one sequence")]
)
def test_other_failures_that_a_message_explains_are_1(monkeypatch, capsys, error: Exception) -> None:
    assert _ended(monkeypatch, error) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_failure_without_a_message_is_named_by_its_kind(monkeypatch, capsys) -> None:
    """Regression: every error without a message was said to be a lack of memory."""
    assert _ended(monkeypatch, OSError()) == 1
    assert capsys.readouterr().err == "error: OSError\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "CUDA out of memory. Tried to"),
        (MemoryError(), "memory ran out"),
    ],
)
def test_memory_that_runs_out_is_1_and_one_line(monkeypatch, capsys, error: Exception, said: str) -> None:
    """A run halves its micro-batches; other commands end."""
    assert _ended(monkeypatch, error) == 1
    line = capsys.readouterr().err
    assert line.startswith(f"error: {said}")
    assert line.count("\n") == 1


def test_wrong_usage_is_2_and_what_a_file_holds_is_3(monkeypatch, capsys) -> None:
    for error, code in ((UsageError("wrong"), 2), (ConfigError("wrong"), 3), (DataError("wrong"), 3)):
        assert _ended(monkeypatch, error) == code
        assert capsys.readouterr().err == "error: wrong\n"


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGHUP", 75), ("SIGINT", 130)])
def test_a_run_that_was_asked_to_stop_says_how_to_go_on(monkeypatch, capsys, name: str, code: int) -> None:
    stop = Interrupted(getattr(signal, name))
    assert _ended(monkeypatch, stop, "pretrain", "--out", "my run") == code
    expected = f"stopped by {name}; everything is saved, continue with: maskloom pretrain --out 'my run' --resume\n"
    assert capsys.readouterr().err == expected


def test_a_stop_that_a_library_made_an_error_of_is_told_as_one(monkeypatch, capsys) -> None:
    def built() -> None:
        requests = StopRequests()
        try:
            requests._handle(signal.SIGTERM, None)
        except Interrupted as stop:
            raise ValueError(f"Error building 'literal' serializer: {stop}") from None

    assert _ended(monkeypatch, built, "pretrain", "--out", "run") == 75
    assert capsys.readouterr().err.startswith(
        "stopped by SIGTERM; everything is saved, continue with: maskloom pretrain"
    )
    assert _ended(monkeypatch, ConfigError("wrong"), "pretrain") == 3  # the next command in the same process


def test_a_failure_of_the_system_names_the_file_first(monkeypatch, capsys) -> None:
    assert _ended(monkeypatch, NotADirectoryError(20, "Not a directory", "a.csv/x")) == 1
    assert capsys.readouterr().err == "error: a.csv/x: Not a directory\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("finetune", "--model", "m", "--train", "t.csv", "--dev", "caf\udce9.csv", "--out", "r"),
        ("pretrain", "--corpus", "c", "--out=caf\udce9.csv"),
        ("predict", "--model", "m", "--input", "caf\udce9.csv\x1b[2J", "--output", "o.csv"),
    ],
)
def test_an_argument_that_is_not_utf8_is_one_line(monkeypatch, capsys, arguments) -> None:
    assert _ended(monkeypatch, AssertionError("nothing is begun"), *arguments) == 3
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: [^ ]*caf\\xe9\.csv[^ ]*: the argument is not UTF-8; rename the file or .*\n", said)
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("corpus", "build", "a b"), "finished shards are kept, continue with: maskloom corpus build 'a b'"),
        (("vocab", "train", "a"), "nothing was written, start again with: maskloom vocab train a"),
        (("embed", "--int8"), "nothing was written, start again with: maskloom embed --int8"),
        (("predict", "--model", "m"), "nothing was written, start again with: maskloom predict --model m"),
        (("words", "plot", "v"), "nothing was written, start again with: maskloom words plot v"),
        (("glue", "submit"), "nothing was written, start again with: maskloom glue submit"),
        (("features", "--out", "f"), "finished vectors are kept, continue with: maskloom features --out f"),
        (("export", "run", "--onnx"), "nothing was written, start again with: maskloom export run --onnx"),
        (
            ("reproduce", "rnn-attention", "--out", "a"),
            "nothing was written, start again with: maskloom reproduce rnn-attention --out a",
        ),
    ],
)
def test_a_command_without_resume_says_what_the_same_command_does(monkeypatch, capsys, arguments, expected) -> None:
    assert _ended(monkeypatch, Interrupted(signal.SIGTERM), *arguments) == 75
    assert capsys.readouterr().err == f"stopped by SIGTERM; {expected}\n"


def test_the_commands_that_resume_are_those_that_say_so() -> None:
    """Regression: a stopped `words plot` or `glue submit` was to be continued with --resume, which they do not have."""

    def resuming(command: Any, name: str) -> list[str]:
        own = [name] if any("--resume" in parameter.opts for parameter in command.params) else []
        return own + [
            found
            for part, one in getattr(command, "commands", {}).items()
            for found in resuming(one, f"{name} {part}".strip())
        ]

    saved = {name for name, kept in cli._KEPT.items() if kept == cli._SAVED}
    assert saved == {*resuming(typer.main.get_command(cli.app), ""), "quickstart", "reproduce"}


def test_only_the_first_rank_speaks_and_resume_is_not_said_twice(monkeypatch, capsys) -> None:
    assert _ended(monkeypatch, Interrupted(signal.SIGTERM), "pretrain", "--resume") == 75
    assert capsys.readouterr().err.count("--resume") == 1
    monkeypatch.setenv("RANK", "1")
    assert _ended(monkeypatch, Interrupted(signal.SIGTERM), "pretrain") == 75
    assert capsys.readouterr().err == ""


def test_a_bug_keeps_its_traceback(monkeypatch) -> None:
    def fail(**_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(KeyError):
        cli.main()
