"""Options and output that commands share."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Texts = Annotated[
    list[Path], typer.Argument(help="Text files or folders: .txt, .jsonl with a `text` field, .gz, .zst, .parquet.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Model = Annotated[Path, typer.Option("--model", help="A model folder in Hugging Face layout, or a run folder.")]
Models = Annotated[list[Path] | None, typer.Option("--model", help="A model or run folder. Repeat it for an ensemble.")]
EnsembleOf = Annotated[
    Path | None, typer.Option("--ensemble", help="A run made with --keep-restarts, as an ensemble of its restarts.")
]
Averaged = Annotated[Literal["probabilities", "logits"], typer.Option("--average", help="What an ensemble averages.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Recipe = Annotated[
    Path | None, typer.Option("--recipe", help="A TOML recipe, or the name of a shipped one: maskloom recipes.")
]
Workers = Annotated[int, typer.Option("--workers", min=1, max=1024, help="Number of processes.")]
BadText = Annotated[
    Literal["error", "skip"], typer.Option("--on-bad-text", help="What to do with bytes that are not UTF-8.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its newest whole checkpoint.")]
Verify = Annotated[
    bool,
    typer.Option("--verify", help="With --resume: first check that repeating the last steps gives the same bits."),
]


def _take_device(name: str | None) -> None:
    """Let everything in this process compute on a device; an unknown name is refused before anything heavy."""
    from maskloom.config import DEVICE_NAMES

    if name is not None and not re.fullmatch(DEVICE_NAMES, name):
        raise typer.BadParameter(f"{name!r} is not known; known: auto, cpu, cuda, cuda:0 and so on, mps")
    if name is not None:
        os.environ["MASKLOOM_DEVICE"] = name


Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="What computes: auto (a GPU where there is one), cpu, cuda, cuda:N, mps.",
        callback=_take_device,
    ),
]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", min=3, help="Maximum tokens; longer sequences are truncated and counted.")
]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="Column of the text: its name or number from 1.")]
PairColumn = Annotated[str | None, typer.Option("--pair-column", help="Column of the second text.")]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="Column of the label or score.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="A data set's file as distributed: cola, sst-2, mrpc …, goemotions, conll2003."),
]
BadRows = Annotated[
    Literal["error", "skip"], typer.Option("--on-bad-rows", help="Stop at an invalid row, or skip and count such rows.")
]


def chosen_recipe(
    kind: Any,
    path: Path | None,
    changes: list[str],
    out: Path,
    resume: bool,
    *,
    flags: dict[str, Any] | None = None,
    check: Callable[[Any], object] | None = None,
) -> Any:
    """Return the recipe asked for, with `changes` and then `flags`; a resumed run without one takes its own.

    Raises FolderInUseError where one works.
    """
    from maskloom.folder_lock import refuse_if_in_use
    from maskloom.runs.training_flags import recipe_of_run, run_to_resume

    refuse_if_in_use(out)  # before the heavy imports
    resumes = run_to_resume(out, resume, lambda line: say(line, err=True))
    return recipe_of_run(kind, path, changes=changes, flags=flags or {}, resumes=resumes, check=check)


def continues(out: Path, resume: bool) -> bool:
    """Tell whether there is a run to go on with; its folder knows how its files are read."""
    return resume and (out / "recipe.toml").exists()


@contextmanager
def verification(verify: bool, resume: bool) -> Iterator[None]:
    """Refuse --verify without --resume, and end with exit code 1 when training again gives other bits."""
    from maskloom.config import ConfigError

    if verify and not resume:
        raise ConfigError("--verify trains a stretch of an earlier run again; it goes with --resume")
    from maskloom.runs.verification import ReplayDiffersError

    try:
        yield
    except ReplayDiffersError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def reading_options(
    text_column: str | None,
    pair_column: str | None,
    label_column: str | None,
    format_name: str | None,
    labels: Path | None,
    on_bad_rows: Literal["error", "skip"],
) -> Any:
    """Return how a person said that a file is to be read."""
    from maskloom.tasks.columns import ReadingOptions

    return ReadingOptions(
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        format=format_name,
        labels=str(labels) if labels else None,
        on_bad_rows=on_bad_rows,
    )


def look_first(model: Path, files: list[Path], task: str, reading: Any) -> None:
    """Refuse a model that is not there and files whose first rows are wrong, before anything heavy is imported."""
    from maskloom.runs.first_look import look_at_training_data

    look_at_training_data(model, files, task, reading)


def chosen_models(models: list[Path] | None, ensemble: Path | None) -> list[Path]:
    """Return the model folders asked for; raises ConfigError when there are none."""
    from maskloom.config import ConfigError
    from maskloom.foreign_files import check_model_name

    chosen = [*(models or [])]
    if ensemble is not None:
        check_model_name(ensemble)
        from maskloom.inference import restart_models  # heavy

        chosen += restart_models(ensemble)
    if not chosen:
        raise ConfigError("no model: give --model (several times for an ensemble) or --ensemble")
    return chosen


def progress_display() -> Any:
    """Return a bar on a terminal, plain lines elsewhere."""
    from maskloom.runs.progress import terminal_progress

    return terminal_progress()


def stage_display() -> Any:
    """Return a callback (stage, done, total) that drives the progress display."""
    from maskloom.runs.progress import stage_callback

    return stage_callback(progress_display())


def show(
    result: dict[str, Any],
    as_json: bool,
    out: Path | None = None,
    *,
    lines: Callable[[dict[str, Any]], list[str]] | None = None,
    beside: Path | None = None,
) -> None:
    """Print a result as one JSON object or for a person: as `lines` words it, or every key of it.

    Of several processes that train together the first one prints. A result that stands `beside` rows that were written
    to standard output goes to standard error.
    """
    from maskloom.launch import is_first_process

    if not is_first_process():
        return
    from maskloom.files import open_file_number

    to_stderr = beside is not None and open_file_number(beside) == 1
    if as_json:
        print_json(result, err=to_stderr)
        return
    from maskloom.runs.display import lines_of

    say(*(lines or lines_of)(result), err=to_stderr)
    if out is not None:
        say(f"written to {out}")


def say(*lines: str, err: bool = False) -> None:
    """Print lines for a person, control characters as escapes."""
    from maskloom.runs.display import printable

    typer.echo("\n".join(map(printable, lines)), err=err)


def print_json(value: Any, *, err: bool = False) -> None:
    """Print a value as one line of JSON."""
    from maskloom.runs.display import printable_json

    typer.echo(printable_json(json.dumps(value, ensure_ascii=False)), err=err)
