"""Commands for vocabularies, corpora and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import (
    AsJson,
    BadText,
    Commands,
    Model,
    Out,
    Texts,
    Workers,
    optional,
    refuse,
    show,
    with_options,
)
from maskloom.errors import UsageError
from maskloom.runs.display import aligned, lines_of, stage_callback, terminal_progress, wrapped
from maskloom.system.foreign_files import check_model_name


def _work(workers: int, engine: Literal["local", "ray"], ray_address: str | None) -> Any:
    from maskloom.runs.ray_tasks import chosen_engine
    from maskloom.system.worker_processes import Work

    return Work(workers, chosen_engine(engine, ray_address))


_ENGINES = {
    "workers": Workers,
    "engine": Annotated[
        Literal["local", "ray"], typer.Option(help="Where the work runs: local processes, or a Ray cluster.")
    ],
    "ray_address": optional(str, "Address of a running Ray cluster; by default, a local one is started."),
}
_works = with_options("work", _ENGINES, _work, workers=1, engine="local")

vocab_app = Commands(help="Train, extend and inspect vocabularies.", no_args_is_help=True)
corpus_app = Commands(help="Build and check corpora, and show their statistics.", no_args_is_help=True)


@vocab_app.command("train")
@_works
def vocab_train(
    texts: Texts,
    *,
    model: Annotated[
        Literal["wordpiece", "bpe", "byte-bpe", "words"],
        typer.Option(
            help="wordpiece: for BERT; bpe: byte pairs, for GPT; byte-bpe: the same on bytes, for GPT-2 and BART; "
            "words: whole words, for ELMo to predict."
        ),
    ] = "wordpiece",
    out: Out,
    size: Annotated[
        int, typer.Option(min=1, help="Number of pieces, including special tokens; 30,000 in the BERT paper.")
    ],
    cased: Annotated[bool, typer.Option("--cased", help="Keep case and accents, as byte-bpe always does.")] = False,
    score: Annotated[
        Literal["frequency", "likelihood"],
        typer.Option(
            help="Which pair to merge: the most frequent, or the one that adds most to the likelihood of the text."
        ),
    ] = "frequency",
    min_frequency: Annotated[
        int, typer.Option(min=1, help="Minimum frequency of a merged pair, or of a whole word.")
    ] = 2,
    max_distinct_words: Annotated[
        int,
        typer.Option(
            min=1,
            help="Distinct words to keep in memory, at about 150 bytes each; the rarest beyond that are dropped.",
        ),
    ] = 2_000_000,
    alphabet_limit: Annotated[
        int, typer.Option(min=1, help="Characters to keep, for wordpiece and bpe; words with rarer ones are unknown.")
    ] = 1000,
    sentinels: Annotated[
        int, typer.Option(min=0, help="Sentinel pieces for missing spans, for objective = span_corruption; T5 has 100.")
    ] = 0,
    work: Any,
    on_bad_text: BadText = "error",
) -> None:
    """Train a vocabulary; the same text always gives the same file, byte for byte."""
    from maskloom.runs.corpus import train_vocabulary_from_files
    from maskloom.text.vocabulary_training import VocabularySettings

    limits = {"alphabet_limit": alphabet_limit, "max_distinct_words": max_distinct_words, "sentinels": sentinels}
    if model in ("byte-bpe", "words"):
        refuse(f"a vocabulary of {model} does not limit its characters; leave it out", "alphabet_limit")
    lowercase = not cased and model != "byte-bpe"
    settings = VocabularySettings(size, lowercase, score, min_frequency, model=model, **limits)
    how = {"on_bad_text": on_bad_text, "work": work, "progress": stage_callback(terminal_progress())}
    show(train_vocabulary_from_files(texts, settings=settings, out=out, **how), lines=_vocabulary_lines)


def _vocabulary_lines(report: dict[str, Any]) -> list[str]:
    """Return lines for what matters at first sight, without zero counts; the file and --json have all of it."""
    counts = {name: number for name, number in report["reading"].items() if number}
    left = {name: value for name, value in report.items() if value != 0 or name == "unknown_rate"}
    return lines_of({name: left[name] for name in left if name not in ("made_from", "sha256")} | {"reading": counts})


@vocab_app.command("extend")
def vocab_extend(
    texts: Texts,
    model: Model,
    add: Annotated[int, typer.Option(min=1, help="Number of new pieces.")],
    out: Out,
    min_frequency: Annotated[int, typer.Option(min=1, help="Minimum frequency of a new piece.")] = 5,
    workers: Workers = 1,
    on_bad_text: BadText = "error",
) -> None:
    """Add pieces from your text to a model's vocabulary, with embeddings initialised to means of existing ones."""
    from maskloom.data.corpus.documents import source_files

    check_model_name(model)
    source_files(texts)
    from maskloom.runs.vocabulary_extension import extend_vocabulary  # heavy, so invalid paths are rejected first
    from maskloom.system.worker_processes import Work

    how = {"work": Work(workers), "on_bad_text": on_bad_text, "progress": stage_callback(terminal_progress())}
    report = extend_vocabulary(texts, add, min_frequency=min_frequency, model=model, out=out, **how)
    pieces = " ".join(report["pieces"][:20]) + (" ..." if len(report["pieces"]) > 20 else "")
    show(report, lines=lambda report: lines_of({**report, "pieces": pieces}))


@vocab_app.command("inspect")
def vocab_inspect(
    folder: Annotated[Path, typer.Argument(help="A vocabulary, model, corpus or run folder, or a vocab.txt.")],
    texts: Annotated[list[Path] | None, typer.Argument(help="Text to measure coverage on.")] = None,
) -> None:
    """Describe a vocabulary and, if given text, how well the vocabulary covers it."""
    from maskloom.runs.corpus import inspect_vocabulary

    show(inspect_vocabulary(folder, texts or None))


@corpus_app.command("build")
@_works
def corpus_build(
    texts: Texts,
    vocab: Annotated[Path, typer.Option(help="A vocabulary, model, corpus or run folder.")],
    out: Out,
    work: Any,
    sentences: Annotated[
        Literal["split", "lines"], typer.Option(help="split: find the sentences; lines: every line is a sentence.")
    ] = "split",
    documents: Annotated[
        Literal["blank-line", "file"],
        typer.Option(help="What ends a document in a .txt file: a blank line, or the end of the file."),
    ] = "blank-line",
    language: Annotated[
        str | None, typer.Option(help="Language for sentence splitting: en (default), de, fr … (ISO 639).")
    ] = None,
    on_bad_text: BadText = "error",
) -> None:
    """Turn text into token shards, in parallel; an interrupted build continues when run again."""
    from maskloom.data.corpus.building import CorpusSettings
    from maskloom.runs.corpus import build_corpus_from_files

    settings = CorpusSettings(sentences, language, on_bad_text, documents=documents)
    display = terminal_progress()
    how = {"work": work, "progress": stage_callback(display), "say": display.say}
    show(build_corpus_from_files(texts, vocab=vocab, out=out, settings=settings, **how))


@corpus_app.command("stats")
def corpus_stats(folder: Annotated[Path, typer.Argument(help="A corpus folder.")]) -> None:
    """Show the statistics of a corpus."""
    from maskloom.data.corpus.opening import Corpus
    from maskloom.data.corpus.statistics import corpus_statistics

    show(corpus_statistics(Corpus.open(folder)))


@corpus_app.command("lint")
def corpus_lint(folder: Annotated[Path, typer.Argument(help="A corpus folder.")]) -> None:
    """Find problems in a corpus before training (exit code 1 if there are errors)."""
    from maskloom.data.corpus.lint import lint_corpus
    from maskloom.data.corpus.opening import Corpus

    findings = lint_corpus(Corpus.open(folder))
    lines = [f"{finding.level}: {finding.code}: {finding.message}" for finding in findings]
    show([vars(finding) for finding in findings], lines=lambda _: lines or ["nothing found"])
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


recipes_app = Commands(help="List the shipped recipes, and explain every key.")


@recipes_app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context, as_json: AsJson = False) -> None:
    """List the shipped recipes, for use with `--recipe NAME`."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise UsageError(f"--json: give it after the command: maskloom recipes {context.invoked_subcommand} --json")
        return
    from maskloom.runs.recipes import listed_recipes

    recipes = listed_recipes()
    hint = "use one with --recipe NAME; maskloom recipes show NAME explains it, key by key"
    show(recipes, lines=lambda recipes: wrapped([*aligned(list(recipes.items())), "", hint]))


@recipes_app.command("show")
def show_recipe(
    name: Annotated[
        str,
        typer.Argument(help="A shipped recipe, a TOML file, or pretrain or finetune for the defaults."),
    ],
) -> None:
    """Explain a recipe: each key with its value, default and meaning."""
    from maskloom.runs.recipes import explained, explained_lines

    show(explained(name), lines=lambda content: wrapped(explained_lines(content)))
