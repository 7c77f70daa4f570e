"""Commands that make model folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from maskloom.cli.options import AsJson, Out, show


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder with Google's BERT (bert_config.json, vocab.txt, bert_model.ckpt.*), pytorch_model.bin or "
            "safetensors; or one checkpoint in it, such as uncased/bert_model.ckpt."
        ),
    ],
    out: Out,
    uncased: Annotated[
        bool | None,
        typer.Option("--uncased/--cased", help="Whether text is lower-cased; by default as the files say."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn published weights into a model folder, and report what was mapped, dropped and added."""
    from maskloom.runs.convert import conversion_lines
    from maskloom.runs.convert import convert as run

    show(run(source, out, lowercase=uncased), as_json, lines=conversion_lines)


def export(
    run: Annotated[
        Path, typer.Argument(help="The folder of a run, still running or ended, of a finished search, or of a model.")
    ],
    out: Out,
    step: Annotated[int | None, typer.Option("--step", min=0, help="A step; by default the newest checkpoint.")] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="A phase of pre-training (phase-1) or a seed of fine-tuning (seed-0).")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best weights: on dev, or kept by training.keep_best.")
    ] = False,
    for_vectors: Annotated[
        Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean"] | None,
        typer.Option("--for-vectors", help="Write the files that sentence-transformers reads, with this pooling."),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="With --for-vectors: vectors of length 1.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Add model.onnx (pip install 'maskloom[onnx]').")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a model folder from a checkpoint, also of a run that is still running or ended early."""
    if best and step is not None:
        raise typer.BadParameter("--best and --step are two different checkpoints", param_hint="--best")
    if normalize and for_vectors is None:
        raise typer.BadParameter("it goes with --for-vectors", param_hint="--normalize")
    from maskloom.runs.export import describe_vectors, export_lines
    from maskloom.runs.export import export as make

    result = make(run, out, step=step, stage=stage, best=best)
    if for_vectors is not None:
        describe_vectors(out, for_vectors, normalize=normalize)
    if onnx:
        from maskloom.runs.onnx_export import write_onnx

        result["onnx_outputs"] = write_onnx(out)
    show(result, as_json, lines=export_lines)
