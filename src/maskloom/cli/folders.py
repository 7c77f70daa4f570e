"""Commands that work on model and run folders."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from maskloom.cli.options import Device, Out, Resume, below_no_file, refuse, show
from maskloom.errors import ConfigError
from maskloom.rows import PoolingMode
from maskloom.runs.display import terminal_progress


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with Google's BERT (bert_config.json, vocab.txt, bert_model.ckpt.*), pytorch_model.bin, "
            "safetensors or an ELMo (options.json, HDF5); or a single checkpoint, such as uncased/bert_model.ckpt."
        ),
    ],
    out: Out,
    uncased: Annotated[
        bool | None,
        typer.Option("--uncased/--cased", help="Whether text is lower-cased; by default, the files decide."),
    ] = None,
) -> None:
    """Convert published weights to a model folder and report which were mapped, dropped and added."""
    from maskloom.runs.convert import conversion_lines
    from maskloom.runs.convert import convert as run

    show(run(source, out, lowercase=uncased), lines=conversion_lines)


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run (running or ended), a finished search, or a model.")],
    out: Out,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step to export; by default, the finished model or the newest checkpoint.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="A phase of pre-training (phase-1) or a seed of fine-tuning (seed-0).")
    ] = None,
    for_vectors: Annotated[
        PoolingMode | None,
        typer.Option(help="Also write the files that sentence-transformers reads, with this pooling."),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="With --for-vectors: scale vectors to length 1.")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx (pip install 'maskloom\\[onnx]').")
    ] = False,
) -> None:
    """Create a model folder from a checkpoint, even if the run is still running or ended early."""
    if for_vectors is None:
        refuse("it needs --for-vectors", "normalize")
    if onnx and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise ConfigError("--onnx needs onnx and onnxscript: pip install 'maskloom[onnx]'")
    from maskloom.runs.export import check_exportable, describe_vectors, write_onnx
    from maskloom.runs.export import export as make

    check_exportable(run, for_vectors, onnx=onnx)
    result = make(run, out, step=step, stage=stage)
    try:
        if for_vectors is not None:
            describe_vectors(out, for_vectors, normalize=normalize)
        if onnx:
            result["onnx_outputs"] = write_onnx(out)
    except BaseException:
        shutil.rmtree(out.resolve(), ignore_errors=True)  # without what was asked for, it must not look complete
        raise
    show(result)


def rerun(
    run: Annotated[Path, typer.Argument(help="The folder of a finished pre-training, fine-tuning or search run.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write; by default, RUN-rerun next to the run.", callback=below_no_file),
    ] = None,
    allow_version_change: Annotated[
        bool, typer.Option("--allow-version-change", help="Repeat the run even if versions have changed.")
    ] = False,
    resume: Resume = False,
) -> None:
    """Repeat a run from its folder and check that the result is bit-identical (exit code 1 if not)."""
    from maskloom.system.folder_lock import refuse_if_in_use

    if out is None:
        whole = run.resolve()
        out = whole.with_name(f"{whole.name}-rerun")
    refuse_if_in_use(out)
    from maskloom.runs.rerun import rerun as repeat

    result = repeat(
        run, out=out, resume=resume, allow_version_change=allow_version_change, progress=terminal_progress()
    )
    show(result)
    if not result["identical"]:
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders: pre-training, fine-tuning, search or GLUE.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; by default, report.html in the first run's folder.")
    ] = None,
    examples: Annotated[
        int,
        typer.Option(min=0, help="Dev examples to predict for the lists of right and wrong predictions; 0 for none."),
    ] = 500,
) -> None:
    """Write an HTML page about one or more runs: curves, scores, differences, data, examples."""
    from maskloom.runs.report.page import report as run

    result = run(runs, out, num_examples=examples, progress=terminal_progress())
    show(result, lines=lambda result: [f"written to {result['page']}"])


def info(folder: Annotated[Path, typer.Argument(help="A model, run, corpus or vocabulary folder.")]) -> None:
    """Describe the contents of a folder."""
    from maskloom.runs.info import describe_folder
    from maskloom.runs.task_summaries import info_lines

    show(describe_folder(folder), lines=info_lines)


def doctor(
    seconds: Annotated[float, typer.Option(min=0.1, help="Total time for the speed checks.")] = 10.0,
    device: Device = None,
) -> None:
    """Show versions, devices, threads, memory and disk, check each device, and report the defaults."""
    from maskloom.runs.doctor import doctor as run
    from maskloom.runs.doctor import doctor_lines

    result = run(seconds=seconds, progress=terminal_progress())
    show(result, lines=doctor_lines)
    if not result["is_sound"]:
        raise typer.Exit(1)
