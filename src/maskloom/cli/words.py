"""Commands for word vectors; imported only when they are needed, because their options are the keys of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import (
    BadText,
    Commands,
    Out,
    Resume,
    Texts,
    continued,
    only_given,
    optional,
    refuse,
    show,
    with_options,
)
from maskloom.errors import UsageError
from maskloom.runs.display import lines_of, terminal_progress
from maskloom.words.settings import WordsRecipe

words_app = Commands()


def _sets(parameter: str, *names: str) -> Any:
    """Add flags for the named keys to a command, which receives in `parameter` the values of those that were given."""
    options, defaults = {}, {}
    for name in names:
        field = WordsRecipe.model_fields[name]
        switch = [f"--{name.replace('_', '-')}"] if field.annotation is bool else []
        options[name] = optional(field.annotation, field.description or "", *switch)
        defaults[name] = field.default
    return with_options(parameter, options, only_given, **defaults)


_WHAT, _THREADS = ("model", "loss"), ("workers", "deterministic")
_HOW = [name for name in WordsRecipe.model_fields if name not in ("kind", *_WHAT, *_THREADS)]

Vectors = Annotated[Path, typer.Argument(help="The folder of a run, or a file of vectors in word2vec's format.")]
Number = Annotated[int, typer.Option("--number", "-n", min=1, help="Words to show.")]


@words_app.command("train")
@_sets("what", *_WHAT)
@_sets("how", *_HOW)
@_sets("threads", *_THREADS)
def train(
    texts: Texts,
    *,
    what: Any,
    out: Out,
    how: Any,
    form: Annotated[Literal["binary", "text"], typer.Option(help="Which of word2vec's formats to write.")] = "binary",
    resume: Resume = False,
    threads: Any,
    on_bad_text: BadText = "error",
) -> None:
    """Train word vectors on text with one sentence per line."""
    from maskloom.runs.run_folder import RECIPE, check_run_folder

    check_run_folder(out, resume)
    goes_on = continued(out, resume, "words") is not None
    recipe = _recipe({**what, **how, **threads}, out / RECIPE if goes_on else None)
    from maskloom.runs.words import train_words  # heavy, so wrong options are rejected first

    shown = terminal_progress()
    result = train_words(texts, recipe, out=out, form=form, resume=resume, on_bad_text=on_bad_text, progress=shown)
    show(result)


def _recipe(given: dict[str, Any], started: Path | None = None) -> Any:
    """Return the recipe that the given options make, or make of a run's; UsageError for one that changes nothing."""
    from maskloom.recipe_files import load_recipe, overrides_of
    from maskloom.runs.recipes import shown_flag

    flags = {name: shown_flag(name, value) for name, value in given.items()}
    recipe = load_recipe(WordsRecipe, started, overrides_of(given), flags=flags)
    with_noise, is_cbow = recipe.loss == "negative", recipe.model == "cbow"
    for name, needed, is_used in (
        ("negative", "--loss negative", with_noise),
        ("noise_exponent", "--loss negative", with_noise),
        ("context", "--model cbow", is_cbow),
        ("divided_gradient", "--model cbow", is_cbow),
        ("phrase_threshold", "--phrases", recipe.phrases > 0),
        ("cased", "--tokenize words", recipe.tokenize == "words"),
    ):
        if name in given and not is_used:
            raise UsageError(f"{flags[name]}: it changes nothing without {needed}")
    return recipe


@words_app.command("pairs")
@_sets("how", "model", "window", "tokenize", "cased")
def pairs(
    sentences: Annotated[list[str], typer.Argument(help="Sentences, each in quotes.")],
    *,
    how: Any,
) -> None:
    """Show the training pairs of sentences with full windows, without random window widths or subsampling."""
    from maskloom.words.text import training_pairs

    recipe = _recipe(how)
    found = [pair for sentence in sentences for pair in training_pairs(sentence, recipe)]
    lines = [f"{' '.join(context)} -> {target}" for context, target in found]
    show([{"from": context, "to": target} for context, target in found], lines=lambda _: lines)


@words_app.command("neighbours")
def neighbours(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(help="Words.")],
    number: Number = 10,
) -> None:
    """Show the nearest words by cosine similarity."""
    from maskloom.runs.words import neighbours as run

    found = run(vectors, words, number)
    lines = [line for word, near in found.items() for line in (word, *_lines(near))]
    show(found, lines=lambda _: lines)


def _lines(near: list[tuple[str, float]]) -> list[str]:
    return [f"  {cosine:6.3f}  {other}" for other, cosine in near]


@words_app.command("analogies")
def analogies(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(help="Three words A, B and C: A is to B as C is to the answer.")],
    number: Number = 10,
) -> None:
    """Solve "A is to B as C is to ...": show the words nearest to B - A + C."""
    if len(words) != 3:
        raise typer.BadParameter(f"expected three words, got {len(words)}", param_hint="WORDS")
    from maskloom.runs.words import open_vectors

    found = open_vectors(vectors).analogy(words[0], words[1], words[2], number)
    show(found, lines=lambda _: [f"{words[0]} : {words[1]} = {words[2]} :", *_lines(found)])


@words_app.command("evaluate")
def evaluate(
    vectors: Vectors,
    pairs: Annotated[
        list[Path] | None, typer.Option(help="Pairs of words with a score: .csv, .tsv or .txt. Repeatable.")
    ] = None,
    analogies: Annotated[
        list[Path] | None,
        typer.Option(help="Questions of four words in word2vec's format (questions-words.txt), or a .csv. Repeatable."),
    ] = None,
    most: Annotated[int, typer.Option(min=2, help="Analogies: number of frequent words to search.")] = 30_000,
) -> None:
    """Score vectors on human similarity judgements (Spearman) and analogies (accuracy)."""
    if not analogies:
        refuse("it limits where the answers of --analogies are searched; leave it out", "most")
    from maskloom.runs.words import evaluate_words

    show(evaluate_words(vectors, pairs or (), analogies or (), most), lines=evaluation_lines)


def evaluation_lines(scores: dict[str, dict[str, Any]]) -> list[str]:
    """Return the scores of each file, with a line for each section of which questions were asked."""
    shown = {}
    for name, found in scores.items():
        sections = found.get("sections", {}).items()
        told = {section: f"{one['right']:,} of {one['asked']:,}" for section, one in sections if one["asked"]}
        shown[name] = {**found, "sections": told}
    return lines_of(shown)


@words_app.command("plot")
def plot(
    vectors: Vectors,
    words: Annotated[list[str], typer.Argument(help="Words.")],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")],
) -> None:
    """Plot words on the first two principal components of their vectors, in a self-contained page."""
    from maskloom.runs.words import plot_words

    show(plot_words(vectors, words, out))
