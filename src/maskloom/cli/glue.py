"""Commands for the GLUE benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from maskloom.cli.options import (
    AsJson,
    Grid,
    Model,
    Out,
    Overrides,
    Recipe,
    Resume,
    chosen_recipe,
    continues,
    print_json,
    progress_display,
    say,
    show,
    space_beside,
    trains,
)

glue_app = typer.Typer(help="The nine tasks of GLUE: train, score, submit.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", help="Folder with CoLA/, SST-2/, MRPC/ ... as distributed by GLUE.")]
AllowPartial = Annotated[bool, typer.Option("--allow-partial", help="Accept missing files; the leaderboard does not.")]


@glue_app.command("run")
@trains("epochs", "steps", "batch_size", "learning_rate", "max_length", "seed", "device", "restarts")
def run(
    model: Model,
    data: Data,
    out: Out,
    *,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks joined by commas, such as cola,mrpc; by default all in --data.")
    ] = None,
    flags: Any,
    recipe: Recipe = None,
    grid: Grid = None,
    resume: Resume = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Search settings for each task (by default the paper's grid) and show the official dev scores."""
    from maskloom.config import FinetuneRecipe

    if grid is None and not continues(out, resume):
        grid = ["paper"]
    chosen = chosen_recipe(FinetuneRecipe, recipe, overrides or [], out, resume, flags=flags)
    from maskloom.foreign_files import check_model_name
    from maskloom.runs.glue.files import chosen_tasks

    check_model_name(model)
    names = None if tasks is None else tasks.split(",")
    chosen_tasks(data, names)
    from maskloom.runs.glue.run import glue_run  # heavy: a wrong recipe, model or folder is refused before it
    from maskloom.runs.search_table import glue_rows, notes_of, print_table

    result = glue_run(
        chosen,
        data=data,
        model=model,
        out=out,
        tasks=names,
        space=space_beside(grid, flags),
        resume=resume,
        progress=progress_display(),
    )
    if as_json:
        print_json(result)
    else:
        print_table(*glue_rows(result), title="GLUE, dev")
        say("", *notes_of(result))
        say(f"written to {out} (glue.md, glue.json); next: maskloom glue submit --run {out} --data {data}")
    if result["failed"]:
        raise typer.Exit(1)


@glue_app.command("submit")
def submit(
    run_folder: Annotated[Path, typer.Option("--run", help="The folder of a GLUE run.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The zip to write.")] = Path("submission.zip"),
    allow_partial: AllowPartial = False,
    as_json: AsJson = False,
) -> None:
    """Predict the test files and write a checked zip for the leaderboard."""
    from maskloom.runs.glue.run import submission_lines, submit_glue

    result = submit_glue(run_folder, data=data, out=out, allow_partial=allow_partial, progress=progress_display())
    show(result, as_json, lines=submission_lines, beside=out)


@glue_app.command("check")
def check(
    submission: Annotated[Path, typer.Argument(help="A zip for the leaderboard.")],
    allow_partial: AllowPartial = False,
    as_json: AsJson = False,
) -> None:
    """Check a submission: names, headers, indices, line counts and labels."""
    from maskloom.runs.glue.files import check_submission

    problems = check_submission(submission, allow_partial=allow_partial)
    if as_json:
        print_json({"path": str(submission), "problems": problems})
    elif problems:
        say(*(f"error: {submission}: {problem}" for problem in problems), err=True)
    else:
        say(f"{submission}: sound")
    if problems:
        raise typer.Exit(3)
