"""The command line: each command is a thin wrapper around one run; heavy imports happen inside the command."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from typing import Annotated, NoReturn

import typer

from maskloom import __version__
from maskloom.cli import folders, training, use
from maskloom.cli.options import Commands, PointingGroup, WordsGroup
from maskloom.cli.preparing import corpus_app, recipes_app, vocab_app
from maskloom.cli.training import glue_app
from maskloom.errors import ConfigError, DataError, RunFailedError, UsageError
from maskloom.runs.display import printable, to_standard_error
from maskloom.system.files import DISK_ERRORS
from maskloom.system.foreign_files import is_utf8, shown_name
from maskloom.training.faults.interruption import RAISED, Interrupted, StopRequests

app = Commands(
    name="maskloom",
    cls=PointingGroup,
    help="Train text encoders, BERT and its relatives, from raw text to fine-tuned tasks, offline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
words_app = Commands(cls=WordsGroup, help="Train word vectors (word2vec) and query them.", no_args_is_help=True)
PREPARE, TRAIN, USE, INSPECT = "Prepare", "Train", "Use", "Inspect"  # help panels, in this order
for name, group, panel in (
    ("vocab", vocab_app, PREPARE),
    ("corpus", corpus_app, PREPARE),
    ("recipes", recipes_app, PREPARE),
    ("glue", glue_app, TRAIN),
    ("words", words_app, TRAIN),
):
    app.add_typer(group, name=name, rich_help_panel=panel)
for panel, commands in (
    (PREPARE, [folders.convert, training.plan]),
    (TRAIN, [training.quickstart, training.pretrain, training.finetune, training.search]),
    (TRAIN, [use.tune, folders.rerun, folders.export, training.reproduce]),
    (USE, [use.predict, use.answer, use.embed, use.fill_mask, use.fill_spans, use.generate, use.features]),
    (INSPECT, [use.evaluate, use.score_answers, folders.report, folders.info, folders.doctor]),
):
    for command in commands:
        app.command(rich_help_panel=panel)(command)

# 74: EX_IOERR of sysexits.h
EXIT_FAILED, EXIT_USAGE, EXIT_BAD_INPUT, EXIT_DISK = 1, 2, 3, 74

_SAVED, _NOTHING = "everything is saved, continue with", "nothing was written, start again with"
# What is on disk when a command is asked to stop, if it is not _NOTHING.
_KEPT = {
    **dict.fromkeys(("pretrain", "finetune", "search", "rerun", "glue run", "words train"), _SAVED),
    **dict.fromkeys(("quickstart", "reproduce"), _SAVED),
    "corpus build": "finished shards are kept, continue with",
    "features": "finished vectors are kept, continue with",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"maskloom {__version__}")
        raise typer.Exit


@app.callback()
def _listen(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    context.with_resource(StopRequests())


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 bad data or config, 74 disk full, read-only or broken, 75 stopped
    by SIGTERM, SIGUSR1 or SIGHUP (requeue: everything is saved, or the same command starts over; the last line says
    which), 130 the same for SIGINT.
    """
    RAISED.clear()
    try:
        _check_arguments()
        app(prog_name="maskloom")
    except Interrupted as stop:
        _leave(stop)
    except Exception as error:
        code = _expected_failure(error)
        if code is None and RAISED:
            _leave(Interrupted(RAISED[-1]))
        if code is None:
            raise
        typer.echo(_error_line(error), err=True)
        sys.exit(code)


def _leave(stop: Interrupted) -> NoReturn:
    code = stop.exit_code
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))  # a second Ctrl-C exits immediately
    with to_standard_error():
        _tell_how_to_go_on(stop)
    sys.exit(code)


def _check_arguments() -> None:
    """Raise DataError for an argument that is not UTF-8: names and texts are written to UTF-8 files."""
    for argument in sys.argv[1:]:
        if not is_utf8(argument):
            raise DataError(f"{shown_name(argument)}: the argument is not UTF-8; rename the file or type it again")


def _error_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        error = OSError(f"{error.filename}: {error.strerror}")
    text = str(error) or ("memory ran out" if isinstance(error, MemoryError) else type(error).__name__)
    return f"error: {printable(text, keep=chr(10))}"


def _tell_how_to_go_on(stop: Interrupted) -> None:
    """Print the command that continues the work, on rank 0 only."""
    if os.environ.get("RANK", "0") != "0":
        return
    if sys.stderr.isatty():
        typer.echo("\x1b[?25h", err=True, nl=False)  # an abandoned progress bar leaves the cursor hidden
    words = sys.argv[1:]
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in _KEPT), "")
    is_at_once = name == "reproduce" and bool({*words} & training.AT_ONCE.keys())
    kept = _NOTHING if is_at_once else _KEPT.get(name, _NOTHING)
    if kept == _SAVED and "--resume" not in words and name not in ("quickstart", "reproduce"):
        words = [*words, "--resume"]
    typer.echo(f"{stop}; {kept}: {shlex.join(['maskloom', *words])}", err=True)


def _expected_failure(error: Exception) -> int | None:
    """Return the exit code of a failure that its message explains, or None for a bug, which needs a traceback."""
    if isinstance(error, ConfigError | DataError):
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_BAD_INPUT
    if isinstance(error, OSError):
        return EXIT_DISK if error.errno in DISK_ERRORS else EXIT_FAILED
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # an OSError since Python 3.13
        return EXIT_FAILED
    is_explained = isinstance(error, RunFailedError | MemoryError)
    if "torch" in sys.modules and not is_explained:
        from maskloom.training.faults.memory import is_out_of_memory  # it imports torch

        is_explained = is_out_of_memory(error)
    return EXIT_FAILED if is_explained else None
