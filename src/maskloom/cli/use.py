"""Commands that use a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskloom.cli.options import (
    Averaged,
    Device,
    MaxLength,
    Model,
    Out,
    draws,
    only_given,
    reads,
    refuse,
    show,
    takes_models,
)
from maskloom.errors import UsageError
from maskloom.rows import PoolingMode
from maskloom.runs.display import lines_of, terminal_progress
from maskloom.system.foreign_files import check_model_name, check_regular

Input = Annotated[Path, typer.Option("--input", help="Texts: .csv, .tsv, .jsonl, or .txt with one per line.")]


@takes_models
@reads("text_column", "pair_column", "label_column", "format", "on_bad_rows", "target_suffix")
def evaluate(
    models: Any,
    data: Annotated[Path, typer.Option(help="Labelled examples: .csv, .tsv, .jsonl; CoNLL columns; SQuAD .json.")],
    reading: Any,
    average: Averaged = "probabilities",
    max_length: MaxLength = None,
    device: Device = None,
) -> None:
    """Score a model, or an ensemble, on labelled examples."""
    from maskloom.runs.first_look import look_at_input

    look_at_input(models, data, reading, needs_label=True)
    from maskloom.runs.evaluate import evaluate as run  # heavy, so wrong data is rejected first
    from maskloom.runs.task_summaries import evaluation_lines

    result = run(models, data, reading=reading, max_length=max_length, average=average, progress=terminal_progress())
    show(result, lines=evaluation_lines)


@takes_models
@reads("text_column", "pair_column", "format", "on_bad_rows")
def predict(
    models: Any,
    input_file: Input,
    output: Annotated[Path, typer.Option(help="File to write: .jsonl, .csv; .json for answers, .conll for tags.")],
    reading: Any,
    average: Averaged = "probabilities",
    max_length: MaxLength = None,
    device: Device = None,
    csv_safe: Annotated[
        bool, typer.Option("--csv-safe", help="Put ' before cells of a .csv that a spreadsheet would run as a formula.")
    ] = False,
) -> None:
    """Predict every row of a file, in order, with probabilities."""
    from maskloom.runs.first_look import check_predictions, kind_of, look_at_input

    check_predictions(input_file, output, kind_of(models[0]), csv_safe=csv_safe)
    look_at_input(models, input_file, reading, needs_label=False)
    from maskloom.runs.predict import predict as run  # heavy, so wrong data is rejected first
    from maskloom.runs.task_summaries import written_lines

    how = {"reading": reading, "max_length": max_length, "average": average, "csv_safe": csv_safe}
    result = run(models, input_file, output, **how, progress=terminal_progress())
    show(result, lines=written_lines, beside=output)


def fill_mask(
    model: Model,
    text: Annotated[str, typer.Argument(help="Text with one or more [MASK].")],
    top_k: Annotated[int, typer.Option(min=1, help="Number of candidates per [MASK].")] = 5,
    device: Device = None,
) -> None:
    """Predict the tokens for each [MASK]."""
    check_model_name(model)
    masks = _opened(model).fill_mask(text, top_k=top_k)
    lines = ["  ".join(f"{found['token']} {found['probability']:.3f}" for found in mask) for mask in masks]
    show({"text": text, "masks": masks}, lines=lambda _: lines)


@reads("text_column", "pair_column", "on_bad_rows")
def embed(
    model: Model,
    input_file: Input,
    *,
    output: Annotated[Path | None, typer.Option(help="File to write: .npy or .jsonl.")] = None,
    report: Annotated[Path | None, typer.Option(help=".html page to write: attention within the first texts.")] = None,
    reading: Any,
    pooling: Annotated[
        PoolingMode | None,
        typer.Option(
            help="How token vectors are combined into one: mean, cls (the first token's) or max; by default as in a "
            "sentence-transformers folder, otherwise mean."
        ),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1; by default as modules.json says."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in 8-bit integers: faster, with vectors close to fp32.")
    ] = False,
    bf16: Annotated[
        bool, typer.Option("--bf16", help="Compute in bf16: faster on a CPU that has it, closer to fp32 than --int8.")
    ] = False,
    max_length: MaxLength = None,
    device: Device = None,
) -> None:
    """Write one vector per text to a file, or a page about the attention between the tokens of a text."""
    from maskloom.runs.first_look import check_page, check_place, look_at_texts

    if output is None and report is None:
        raise UsageError("pass --output FILE, --report PAGE or both")
    if output is None:
        refuse("only vectors depend on it; pass --output FILE", "pooling", "normalize", "int8", "bf16")
    else:
        check_place(input_file, output, ".npy", ".jsonl")
    if int8 and bf16:
        raise UsageError("use --int8 or --bf16, not both")
    if int8 and device not in (None, "auto", "cpu"):
        raise UsageError(f"--int8 with --device {device}: eight-bit inference runs only on the CPU")
    if report is not None:
        check_page(report, "--report", input_file)
    look_at_texts(model, input_file, reading)
    from maskloom.inference import Predictor  # heavy, so wrong data is rejected first
    from maskloom.runs.predict import embed as run
    from maskloom.runs.task_summaries import written_lines
    from maskloom.system.devices import half_type

    page, written, precision = {}, {}, "bf16" if bf16 else "auto"
    one = None if int8 else _opened(model, max_length=max_length, precision=precision)  # the page needs floats
    if report is not None:
        from maskloom.runs.report.generation import attention_report

        page = attention_report(one or Predictor.load(model, max_length=max_length), model, input_file, report, reading)
    if output is not None:
        predictor = one or _opened(model, max_length=max_length, int8=True)
        how = {"reading": reading, "pooling": pooling, "normalize": normalize, "progress": terminal_progress()}
        used = "int8" if int8 else "bf16" if half_type(precision, predictor.device) else "fp32"
        written = {**run(predictor, input_file, output, **how), "precision": used}
    show({**written, **page}, lines=written_lines, beside=output)


@takes_models
def answer(
    models: Any,
    context: Annotated[Path, typer.Option(help="A text file of any length; - for standard input.")],
    question: Annotated[list[str], typer.Option(help="A question. Repeatable.")],
    average: Averaged = "probabilities",
    top_k: Annotated[int, typer.Option(min=1, help="Candidates per question, at most span.num_best (20).")] = 1,
    null_threshold: Annotated[
        float | None, typer.Option(help="Give no answer if its score exceeds the best answer's by more than this.")
    ] = None,
    max_length: MaxLength = None,
    device: Device = None,
) -> None:
    """Answer questions about a text."""
    from maskloom.runs.first_look import look_at_questions

    look_at_questions(models, context, question)
    from maskloom.runs.predict import answer as run  # heavy, so a wrong text is rejected first
    from maskloom.runs.predict import answer_lines

    how = {"top_k": top_k, "max_length": max_length, "null_threshold": null_threshold, "average": average}
    result = run(models, context, question, **how, progress=terminal_progress())
    show(result, lines=answer_lines)


def score_answers(
    data: Annotated[Path, typer.Option(help="Questions with answers: SQuAD's .json, or .jsonl, .csv, .tsv.")],
    predictions: Annotated[Path, typer.Option(help="A .json file of answers by id, as written by predict.")],
    null_odds: Annotated[
        Path | None, typer.Option(help="A .json file of null odds by id: score of no answer minus best score.")
    ] = None,
    null_threshold: Annotated[
        float | None, typer.Option(help="Count an answer as empty if its null odds exceed this.")
    ] = None,
) -> None:
    """Score a file of answers with the official SQuAD v1.1 and v2.0 rules."""
    from maskloom.tasks.span.reading import score_files

    if null_odds is None:
        refuse("it applies to null odds; pass --null-odds FILE", "null_threshold")
    show(score_files(data, predictions, null_odds=null_odds, null_threshold=null_threshold))


@reads("text_column", "format", "on_bad_rows")
def features(
    model: Model,
    input_file: Annotated[
        Path, typer.Option("--input", help="Words in columns (CoNLL) or .jsonl, or a .txt file with one text per line.")
    ],
    out: Out,
    reading: Any,
    layers: Annotated[
        str | None,
        typer.Option(
            help="embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, all, or comma-separated "
            "layer numbers: -1 is the last, 0 the embeddings. By default the last four, or all if there are fewer."
        ),
    ] = None,
    units: Annotated[
        Literal["words", "tokens"] | None,
        typer.Option(help="words: one vector per word, that of its first piece; tokens: one per token of a line."),
    ] = None,
    precision: Annotated[Literal["float32", "float16"], typer.Option(help="Number format on disk.")] = "float32",
    max_length: MaxLength = None,
    device: Device = None,
) -> None:
    """Write a model's activations at any layers for every word or token of a file."""
    check_model_name(model)
    check_regular(input_file)
    from maskloom.runs.features import Activations  # heavy, so wrong paths are rejected first
    from maskloom.runs.features import features as run

    wanted, shown = Activations(layers, units, precision), terminal_progress()
    result = run(model, input_file, out, wanted=wanted, reading=reading, max_length=max_length, progress=shown)
    names = [f"layer {name}" if name.isdecimal() else name.replace("_", " ") for name in result["vectors"]]
    vectors = f"{len(names)} per row: {', '.join(names)}"
    show(result, lines=lambda result: lines_of({**result, "vectors": vectors}))


@reads("text_column", "pair_column", "label_column", "format", "on_bad_rows")
def tune(
    model: Model,
    dev: Annotated[Path, typer.Option(help="Labelled examples that the model was not trained on.")],
    reading: Any,
    max_length: MaxLength = None,
    device: Device = None,
) -> None:
    """Fit temperature and thresholds on labelled examples, and store them with the model."""
    from maskloom.runs.first_look import look_at_input

    look_at_input([model], dev, reading, needs_label=True)
    from maskloom.runs.evaluate import tune as run  # heavy, so wrong data is rejected first
    from maskloom.runs.task_summaries import tuning_lines

    result = run(model, dev, reading=reading, max_length=max_length, progress=terminal_progress())
    show(result, lines=tuning_lines)


@reads("text_column", "on_bad_rows")
@draws
def generate(
    model: Model,
    *,
    prompt: Annotated[str | None, typer.Option(help="Text to continue, or a source text.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Prompts or sources: .txt with one per line, .csv, .tsv, .jsonl.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File to write: .jsonl.")] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="HTML page to write about the first texts: attention, search steps, masks, positions."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts per batch.")] = None,
    given: Any,
    reading: Any,
    device: Device = None,
) -> None:
    """Continue texts with a left-to-right model, or generate targets with an encoder-decoder model.

    An encoder-decoder model uses its fine-tuning settings unless flags override them.
    """
    _check_one_or_file("--prompt TEXT", prompt, model, input_file, output, reading, report)
    from maskloom.runs.predict import generate as run  # heavy, so wrong data is rejected first
    from maskloom.runs.task_summaries import generated_lines, generation_line, reported_lines, written_lines

    predictor = _opened(model, batch_size=batch_size)
    written, page, found = {}, {}, list[Any]()
    if input_file is not None and output is not None:
        written = run(predictor, input_file, output, given, reading=reading, progress=terminal_progress())
    if report is not None:
        from maskloom.runs.report.generation import generation_report

        page, found = generation_report(predictor, model, input_file or [prompt or ""], report, given, reading)
    elif input_file is None:
        found = [{predictor.input_name: prompt, **predictor.generate([prompt or ""], **given)[0]}]
        found[0] |= predictor.truncation if predictor.num_truncated else {}
    if input_file is None:
        show({**found[0], **page}, lines=generated_lines, account=generation_line)
    elif written:
        show({**written, **page}, lines=written_lines, beside=output)
    else:
        show({**page, "texts": found}, lines=reported_lines)


@reads("text_column", "on_bad_rows")
def fill_spans(
    model: Model,
    text: Annotated[str | None, typer.Argument(help="Text with blanks, written <X>, <Y>, <Z> or <extra_id_0>.")] = None,
    *,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Texts with blanks: .txt with one per line, .csv, .tsv, .jsonl.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File to write: .jsonl.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens for all fillings of a text together.")] = 64,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 takes the most likely tokens.")] = 0.0,
    beam: Annotated[int | None, typer.Option(help="Beam search with this many candidates instead of sampling.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Texts per batch.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed for sampling.")] = 0,
    reading: Any,
    device: Device = None,
) -> None:
    """Fill the blanks in a text, or in every text of a file, with a model trained for it (T5)."""
    _check_one_or_file("TEXT", text, model, input_file, output, reading)
    from maskloom.generation.search import Generation  # heavy, so wrong data is rejected first
    from maskloom.runs.predict import generate as run
    from maskloom.runs.task_summaries import generated_lines, generation_line, written_lines

    given = only_given(max_tokens=max_tokens, temperature=temperature, beam=beam, seed=seed)
    how = Generation(temperature=0.0 if beam is None else 1.0).changed(given)
    predictor = _opened(model, batch_size=batch_size)
    if input_file is not None and output is not None:
        result = run(predictor, input_file, output, {}, fills=how, reading=reading, progress=terminal_progress())
        show(result, lines=written_lines, beside=output)
        return
    (found,) = predictor.fill_spans([text or ""], how)
    show({"source": text, **found}, lines=generated_lines, account=generation_line)


def _opened(model: Path, **how: Any) -> Any:
    """Return a Predictor of a model, and name its device on standard error."""
    from maskloom.inference import Predictor  # heavy, so commands check what they are given first
    from maskloom.system.devices import describe_device

    predictor = Predictor.load(model, **how)
    terminal_progress().say(f"device: {describe_device(predictor.device)}")
    return predictor


def _check_one_or_file(
    name: str,
    text: str | None,
    model: Path,
    input_file: Path | None,
    output: Path | None,
    reading: Any,
    page: Path | None = None,
) -> None:
    """Raise UsageError unless given either a text or an input and an output file; check the input's first rows.

    Options of reading are for a file only. A page may take the place of the output file.
    """
    from maskloom.runs.first_look import check_page, check_place, look_at_sources

    if (text is None) == (input_file is None):
        raise UsageError(f"pass either {name} or --input FILE")
    if (input_file is None) != (output is None) and not (input_file and page):
        raise UsageError("--input FILE and --output FILE go together")
    if input_file is None:
        refuse(f"it is for --input FILE, not for {name}", "text_column", "on_bad_rows")
    check_model_name(model)
    if page is not None:
        check_page(page, "--report", input_file)
    if input_file is not None and output is not None:
        check_place(input_file, output, ".jsonl")
    if input_file is not None:
        look_at_sources(model, input_file, reading)
