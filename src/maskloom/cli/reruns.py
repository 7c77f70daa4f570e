"""The command that does a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import AsJson, Resume, progress_display, show


def rerun(
    run: Annotated[Path, typer.Argument(help="The folder of a finished pre-training, fine-tuning, search or corpus.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write; RUN-rerun next to the run by default.")
    ] = None,
    allow_version_change: Annotated[
        bool,
        typer.Option("--allow-version-change", help="Repeat the run even if versions have changed."),
    ] = False,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a run from its folder and check that the result is the same bit for bit (else exit code 1)."""
    from maskloom.folder_lock import refuse_if_in_use

    if out is None:
        whole = run.resolve()
        out = whole.with_name(f"{whole.name}-rerun")
    refuse_if_in_use(out)
    from maskloom.runs.rerun import rerun as repeat

    result = repeat(run, out=out, resume=resume, allow_version_change=allow_version_change, progress=progress_display())
    show(result, as_json)
    if not result["identical"]:
        raise typer.Exit(1)
