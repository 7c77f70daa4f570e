"""The command line: every command is a thin call of one run; heavy imports happen inside the command."""

from __future__ import annotations

import sys

import typer

from maskloom.cli import training, use
from maskloom.cli.answer import answer, score_answers
from maskloom.cli.corpora import corpus_app, vocab_app
from maskloom.cli.features import features
from maskloom.cli.glue import glue_app
from maskloom.cli.search import search
from maskloom.cli.tune import tune

app = typer.Typer(
    name="maskloom",
    help="Train text encoders: raw text to a vocabulary, a corpus, a pre-trained BERT and fine-tuned tasks, offline.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quickstart")(training.quickstart)
app.add_typer(vocab_app, name="vocab")
app.add_typer(corpus_app, name="corpus")
app.command("pretrain")(training.pretrain)
app.command("finetune")(training.finetune)
app.command("search")(search)
app.add_typer(glue_app, name="glue")
app.command("tune")(tune)
app.command("evaluate")(use.evaluate)
app.command("predict")(use.predict)
app.command("answer")(answer)
app.command("score-answers")(score_answers)
app.command("fill-mask")(use.fill_mask)
app.command("embed")(use.embed)
app.command("features")(features)
app.command("info")(use.info)

EXIT_FAILED, EXIT_BAD_INPUT = 1, 3


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
