"""The command that answers questions on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import (
    AsJson,
    Averaged,
    Device,
    EnsembleOf,
    MaxLength,
    Models,
    chosen_models,
    progress_display,
    show,
)


def answer(
    context: Annotated[Path, typer.Option("--context", help="A text file of any length; - for standard input.")],
    question: Annotated[list[str], typer.Option("--question", help="A question. Repeatable.")],
    model: Models = None,
    ensemble: EnsembleOf = None,
    average: Averaged = "probabilities",
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Number of candidates per question.")] = 1,
    null_threshold: Annotated[
        float | None,
        typer.Option("--null-threshold", help="Give no answer if its score leads by more than this."),
    ] = None,
    max_length: MaxLength = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions about a text."""
    from maskloom.runs.first_look import look_at_questions

    models = chosen_models(model, ensemble)
    look_at_questions(models, context, question)
    from maskloom.runs.answer import answer as run  # heavy: a wrong text is refused before it
    from maskloom.runs.answer import answer_lines

    result = run(
        models,
        context,
        question,
        top_k=top_k,
        max_length=max_length,
        null_threshold=null_threshold,
        average=average,
        progress=progress_display(),
    )
    show(result, as_json, lines=answer_lines)


def score_answers(
    data: Annotated[Path, typer.Option("--data", help="Questions with answers: SQuAD's .json, or .jsonl, .csv, .tsv.")],
    predictions: Annotated[
        Path, typer.Option("--predictions", help="A .json with texts by id, or the .jsonl that predict writes.")
    ],
    null_odds: Annotated[
        Path | None, typer.Option("--null-odds", help="A .json with the null odds by id: how far no answer leads.")
    ] = None,
    null_threshold: Annotated[
        float | None, typer.Option("--null-threshold", help="Count an answer as empty if its null odds exceed this.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a file of answers by the official rules of SQuAD v1.1 and v2.0."""
    from maskloom.tasks.span.scoring import score_files

    report = score_files(data, predictions, null_odds=null_odds, null_threshold=null_threshold)
    show(report.as_dict(), as_json)
