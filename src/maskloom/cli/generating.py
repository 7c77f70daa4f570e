"""The command that continues texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from maskloom.cli.options import AsJson, Device, Model, print_json, progress_display, reads, say, show


@reads("text_column", "on_bad_rows")
def generate(
    model: Model,
    *,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to continue.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Prompts: .txt with one per line, .csv, .tsv, .jsonl.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="File to write: .jsonl.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Most tokens to add.")] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1 likelier tokens come more often; 0 takes the likeliest.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw among this many of the likeliest tokens.")] = None,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw among the fewest tokens that have this probability together.")
    ] = 1.0,
    beam: Annotated[
        int | None, typer.Option("--beam", help="Search with this many candidates instead of drawing.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Texts at once.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    reading: Any,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text, or every text of a file, with a left-to-right model."""
    from maskloom.errors import UsageError
    from maskloom.foreign_files import check_model_name

    if (prompt is None) == (input_file is None):
        raise UsageError("give either --prompt TEXT or --input FILE")
    if (input_file is None) != (output is None):
        raise UsageError("--input FILE and --output FILE go together")
    check_model_name(model)
    if input_file is not None and output is not None:
        from maskloom.runs.first_look import check_place, look_at_texts

        check_place(input_file, output)
        look_at_texts(model, input_file, reading)
    from maskloom.generation.search import Generation  # heavy: wrong data is refused before it
    from maskloom.inference import Predictor
    from maskloom.inference.generation import generate as run
    from maskloom.runs.predict import generate as run_file

    how = Generation(max_tokens, temperature, top_k, top_p, beam, seed)
    if input_file is not None and output is not None:
        shown = progress_display()
        result = run_file(model, input_file, output, how, reading=reading, batch_size=batch_size, progress=shown)
        show(result, as_json, beside=output)
        return
    (found,) = run(Predictor.load(model, batch_size=batch_size), [prompt or ""], how)
    print_json({"prompt": prompt, **found}) if as_json else say(found["text"])
