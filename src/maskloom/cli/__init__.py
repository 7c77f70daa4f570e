"""The command line: each command is a thin wrapper around one run; heavy imports happen inside the command."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from maskloom import __version__
from maskloom.cli import experiments, folders, training, use
from maskloom.cli.options import PointingGroup
from maskloom.cli.preparing import corpus_app, recipes_app, vocab_app
from maskloom.cli.training import glue_app
from maskloom.cli.words import words_app
from maskloom.errors import ConfigError, DataError, UsageError
from maskloom.runs.display import printable
from maskloom.training.faults.interruption import RAISED, Interrupted, StopRequests

app = typer.Typer(
    name="maskloom",
    cls=PointingGroup,
    help="Train text encoders, BERT and its relatives, from raw text to fine-tuned tasks, offline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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
    (PREPARE, [folders.convert, experiments.plan]),
    (TRAIN, [training.quickstart, training.pretrain, training.finetune, training.search]),
    (TRAIN, [use.tune, folders.rerun, folders.export, experiments.reproduce]),
    (USE, [use.predict, use.answer, use.embed, use.fill_mask, use.fill_spans, use.generate, use.features]),
    (INSPECT, [use.evaluate, use.score_answers, folders.report, folders.info, folders.doctor]),
):
    for command in commands:
        app.command(rich_help_panel=panel)(command)

# 74: EX_IOERR of sysexits.h
EXIT_FAILED, EXIT_USAGE, EXIT_BAD_INPUT, EXIT_DISK, EXIT_INTERRUPTED = 1, 2, 3, 74, 130

# Commands whose progress is on disk whenever they are asked to stop.
_RESUMABLE = frozenset({"quickstart", "reproduce", "pretrain", "finetune", "rerun", "search", "glue", "words"})
# Commands that leave nothing or finished pieces; running the same command again does the rest.
_REPEATABLE = frozenset({"vocab", "corpus", "embed"})


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
    if context.invoked_subcommand in _RESUMABLE | _REPEATABLE:
        context.with_resource(StopRequests())


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 bad data or config, 74 disk full, read-only or broken, 75 stopped
    by SIGTERM, SIGUSR1 or SIGHUP (requeue: everything is saved, or the same command starts over; the last line says
    which), 130 the same for SIGINT. Commands that take seconds or minutes die from SIGTERM directly (143 in a shell),
    and exit with 130 on SIGINT.
    """
    RAISED.clear()
    try:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # the startup handler would leave half-written files
            signal.signal(signal.SIGINT, _interrupt)
        _check_arguments()
        app(prog_name="maskloom")
    except (ConfigError, DataError) as error:
        _end(EXIT_USAGE if isinstance(error, UsageError) else EXIT_BAD_INPUT, _error_line(error))
    except Interrupted as stop:
        _leave(stop)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != EXIT_INTERRUPTED:  # 130 is typer's own exit code for Ctrl-C
            raise
        _end(EXIT_INTERRUPTED, "stopped")
    except Exception as error:
        if _interruptions:
            _end(EXIT_INTERRUPTED, "stopped")
        code = _expected_failure(error)
        if code is None and RAISED:
            _leave(Interrupted(RAISED[-1]))
        if code is None:
            raise
        _end(code, _error_line(error))


# SIGINTs received: some libraries turn the KeyboardInterrupt into an error of their own.
_interruptions: list[int] = []


def _interrupt(number: int, frame: FrameType | None) -> None:
    _interruptions.append(number)
    signal.default_int_handler(number, frame)


def _leave(stop: Interrupted) -> NoReturn:
    code = stop.exit_code
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))  # a second Ctrl-C exits immediately
    _tell_how_to_go_on(stop)
    sys.exit(code)


def _end(code: int, line: str) -> NoReturn:
    """Print the last line and exit; Ctrl-C in the meantime ends the process silently."""
    if signal.getsignal(signal.SIGINT) == _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    typer.echo(line, err=True)
    sys.exit(code)


def _check_arguments() -> None:
    """Raise DataError for an argument that is not UTF-8: names and texts are written to UTF-8 files."""
    from maskloom.system.foreign_files import is_utf8, shown_name

    for argument in sys.argv[1:]:
        if not is_utf8(argument):
            raise DataError(f"{shown_name(argument)}: the argument is not UTF-8; rename the file or type it again")


def _error_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        error = OSError(f"{error.filename}: {error.strerror}")
    return f"error: {printable(str(error), keep=chr(10))}"


def _tell_how_to_go_on(stop: Interrupted) -> None:
    """Print the command that continues the work, on rank 0 only."""
    if os.environ.get("RANK", "0") != "0":
        return
    if sys.stderr.isatty():
        typer.echo("\x1b[?25h", err=True, nl=False)  # an abandoned progress bar leaves the cursor hidden
    words = ["maskloom", *sys.argv[1:]]
    is_at_once = words[1:2] == ["reproduce"] and bool({*words[2:]} & {*experiments.MADE_AT_ONCE})
    if (words[1:2] and words[1] in _REPEATABLE) or is_at_once:
        is_build = words[1:3] == ["corpus", "build"]
        kept = "finished shards are kept, continue with" if is_build else "nothing was written, start again with"
        typer.echo(f"{stop}; {kept}: {shlex.join(words)}", err=True)
        return
    words += [] if "--resume" in words or words[1] in ("quickstart", "reproduce") else ["--resume"]
    typer.echo(f"{stop}; everything is saved, continue with: {shlex.join(words)}", err=True)


def _expected_failure(error: Exception) -> int | None:
    """Return the exit code of a failure that its message explains, or None for a bug, which needs a traceback."""
    if isinstance(error, OSError):
        from maskloom.system.files import DISK_ERRORS

        return EXIT_DISK if error.errno in DISK_ERRORS else EXIT_FAILED
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # an OSError since Python 3.13
        return EXIT_FAILED
    if "torch" not in sys.modules:
        return None
    from maskloom.training.faults.memory import MemoryExhaustedError
    from maskloom.training.faults.nonfinite import NumericalError
    from maskloom.training.ranks.ranks import RankLostError

    return EXIT_FAILED if isinstance(error, (NumericalError, MemoryExhaustedError, RankLostError)) else None
