"""The command line: every command is a thin call of one run; heavy imports happen inside the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="maskloom",
    help="Train text encoders: raw text to a vocabulary, a corpus, a pre-trained BERT and fine-tuned tasks, offline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
vocab_app = typer.Typer(help="Train and inspect vocabularies.", no_args_is_help=True)
corpus_app = typer.Typer(help="Build, measure and check corpora.", no_args_is_help=True)
app.add_typer(vocab_app, name="vocab")
app.add_typer(corpus_app, name="corpus")

EXIT_FAILED, EXIT_USAGE, EXIT_BAD_INPUT = 1, 2, 3

Texts = Annotated[
    list[Path], typer.Argument(help="Text files or folders: .txt, .jsonl with a `text` field, .gz, .zst, .parquet.")
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Model = Annotated[Path, typer.Option("--model", help="A model folder in Hugging Face layout, or a run folder of ours.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Override a recipe key, such as training.steps=1000. Repeatable.")
]
Recipe = Annotated[Path | None, typer.Option("--recipe", help="A TOML recipe.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Number of processes.")]
BadText = Annotated[str, typer.Option("--on-bad-text", help="What to do with bytes that are not UTF-8: error or skip.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its newest whole checkpoint.")]


@vocab_app.command("train")
def vocab_train(
    texts: Texts,
    size: Annotated[int, typer.Option("--size", min=1, help="Number of pieces, special ones included.")],
    out: Out,
    cased: Annotated[bool, typer.Option("--cased", help="Keep case and accents.")] = False,
    score: Annotated[str, typer.Option("--score", help="Pair score: frequency or likelihood.")] = "frequency",
    min_frequency: Annotated[int, typer.Option("--min-frequency", min=1, help="Rarest pair that is merged.")] = 2,
    workers: Workers = 1,
    on_bad_text: BadText = "error",
    as_json: AsJson = False,
) -> None:
    """Train a WordPiece vocabulary: the same text gives the same file, byte for byte."""
    _choice("--score", score, ("frequency", "likelihood"))
    _choice("--on-bad-text", on_bad_text, ("error", "skip"))
    from maskloom.runs.vocabulary import train_vocabulary_from_files

    report = train_vocabulary_from_files(
        texts,
        size=size,
        out=out,
        cased=cased,
        score=score,
        min_frequency=min_frequency,
        num_workers=workers,
        on_bad_text=on_bad_text,
        progress=_stages(),
    )
    _show(report, as_json)


@vocab_app.command("inspect")
def vocab_inspect(
    folder: Annotated[Path, typer.Argument(help="A vocabulary folder or vocab.txt.")],
    texts: Annotated[list[Path] | None, typer.Argument(help="Text to measure coverage on.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a vocabulary holds and, given text, how well it covers it."""
    from maskloom.runs.vocabulary import inspect_vocabulary

    _show(inspect_vocabulary(folder, texts or None), as_json)


@corpus_app.command("build")
def corpus_build(
    texts: Texts,
    vocab: Annotated[Path, typer.Option("--vocab", help="Folder that `vocab train` wrote, or any with a vocab.txt.")],
    out: Out,
    workers: Workers = 1,
    sentences: Annotated[
        str, typer.Option("--sentences", help="split: find sentences; lines: each line is one.")
    ] = "split",
    on_bad_text: BadText = "error",
    as_json: AsJson = False,
) -> None:
    """Turn text into token shards, in parallel; an interrupted build continues when run again."""
    _choice("--sentences", sentences, ("split", "lines"))
    _choice("--on-bad-text", on_bad_text, ("error", "skip"))
    from maskloom.runs.corpus import build_corpus_from_files

    manifest = build_corpus_from_files(
        texts,
        vocab=vocab,
        out=out,
        num_workers=workers,
        sentences=sentences,
        on_bad_text=on_bad_text,
        progress=_stages(),
    )
    _show(manifest, as_json)


@corpus_app.command("stats")
def corpus_stats(folder: Annotated[Path, typer.Argument(help="A corpus folder.")], as_json: AsJson = False) -> None:
    """Show a corpus in figures."""
    from maskloom.runs.corpus import stats

    _show(stats(folder), as_json)


@corpus_app.command("lint")
def corpus_lint(folder: Annotated[Path, typer.Argument(help="A corpus folder.")], as_json: AsJson = False) -> None:
    """Name what would ruin a run before it starts; exits with 1 when there is an error among the findings."""
    from maskloom.runs.corpus import lint

    findings = lint(folder)
    if as_json:
        _print_json(findings)
    else:
        for finding in findings:
            typer.echo(f"{finding['level']}: {finding['code']}: {finding['message']}")
        if not findings:
            typer.echo("nothing found")
    if any(finding["level"] == "error" for finding in findings):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def pretrain(
    corpus: Annotated[Path, typer.Option("--corpus", help="A corpus folder.")],
    out: Out,
    size: Annotated[str | None, typer.Option("--size", help="tiny, mini, small, medium, base or large.")] = None,
    recipe: Recipe = None,
    init: Annotated[Path | None, typer.Option("--init", help="Start from the weights of a model folder.")] = None,
    resume: Resume = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Pre-train a BERT with masked LM and next-sentence prediction."""
    from maskloom.config import PretrainRecipe
    from maskloom.runs.pretrain import pretrain as run

    changes = [*(overrides or []), *([f'model.size="{size}"'] if size else [])]
    chosen = _recipe(PretrainRecipe, recipe, changes, out, resume)
    _show(run(chosen, corpus=corpus, out=out, resume=resume, init=init, progress=_progress()), as_json, out)


def _recipe(kind: Any, path: Path | None, changes: list[str], out: Path, resume: bool) -> Any:
    """Return the recipe asked for; a resumed run without one takes its own."""
    from maskloom.config import load_recipe
    from maskloom.runs.run_folder import RECIPE

    if resume and path is None and (out / RECIPE).exists():
        path = out / RECIPE
    return load_recipe(kind, path, changes)


def _choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=option)


def _progress() -> Any:
    from maskloom.runs.progress import terminal_progress

    return terminal_progress()


def _stages() -> Any:
    """Return a callback (stage, done, total) that drives the progress display."""
    progress, current = _progress(), [""]

    def report(stage: str, done: int, total: int) -> None:
        if stage != current[0]:
            current[0] = stage
            progress.begin(stage, total, 0)
        progress.advance(done)
        if total and done >= total:
            progress.end()

    return report


def _show(result: dict[str, Any], as_json: bool, out: Path | None = None) -> None:
    """Print a result for a person, or as one JSON object."""
    if as_json:
        _print_json(result)
        return
    from maskloom.runs.display import lines_of

    typer.echo("\n".join(lines_of(result)))
    if out is not None:
        typer.echo(f"written to {out}")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def main() -> None:
    """Run the command line; exit codes: 0 done, 1 failed, 2 usage, 3 bad data or config, 130 and 143 stopped."""
    from maskloom.config import ConfigError, DataError

    try:
        app()
    except (ConfigError, DataError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
    except Exception as error:
        code = _expected_failure(error)
        if code is None:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(code)


def _expected_failure(error: Exception) -> int | None:
    """Return the exit code of a failure that a message explains, or None for a bug, whose traceback is wanted."""
    if isinstance(error, OSError):
        return EXIT_FAILED
    if "torch" not in sys.modules:
        return None
    from maskloom.training.interruption import Interrupted
    from maskloom.training.loop import NumericalError

    if isinstance(error, Interrupted):
        typer.echo("the state is saved; continue with --resume", err=True)
        return 128 + error.signal_number
    return EXIT_FAILED if isinstance(error, NumericalError) else None
