"""maskloom: from raw text to a trained, evaluated, exported and used text encoder."""

from __future__ import annotations

from maskloom.system.resources import follow_quota, wait_briefly

TYPE_CHECKING = False  # not typing.TYPE_CHECKING: a Ctrl-C while typing is imported could not be handled yet
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any, Literal

    from maskloom.inference import Predictor

follow_quota()
wait_briefly()

__version__ = "0.1.0"
__all__ = ["__version__", "finetune", "load", "pretrain"]


def load(
    folder: str | Path,
    *,
    int8: bool = False,
    device: str = "auto",
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
) -> Predictor:
    """Open a model folder for `predict`, `encode`, `fill_mask`, `fill_spans` and `generate`; threads may share it.

    `int8` computes in 8-bit integers: faster on a CPU, and close to fp32. `device` is "cpu", "cuda", "cuda:1", "mps" or
    "auto" (a GPU if available). `batch_size` limits the number of texts per batch; by default only the number of tokens
    is limited. `precision` is that of matrix products: "auto" is bf16 on a GPU that supports it, else fp32; on a CPU
    with bf16 instructions, bf16 is 1.5 to 2.4 times as fast as fp32. fp16 needs CUDA.

    Raises ValueError if the folder is not a model folder written by maskloom, transformers or
    sentence-transformers, the device is missing or lacks the precision, or the processor does not support int8.
    """
    from maskloom.inference import Predictor

    return Predictor.load(folder, int8=int8, device=device, batch_size=batch_size, precision=precision)


def pretrain(
    corpus: str | Path,
    out: str | Path,
    *,
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    init: str | Path | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    verify: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Pre-train a BERT on a corpus folder, as `maskloom pretrain` does, and return its held-out metrics.

    `corpus` was written by `maskloom corpus build`; `out` becomes the run folder, with the model in `out/model`.
    `recipe` is a TOML file, the name of a shipped recipe, or values by key, such as `{"training.save_every": 500}`; the
    other settings are the command's flags and override it. `init` starts from the weights of a model folder. `epochs`
    is converted to a number of steps. `minutes` sets a time budget in place of `steps`. `resume` continues the run in
    `out`; a different number of `steps` extends or shortens it. `verify` first checks that resuming reproduces the same
    bits. `progress` reports to standard error. Raises ConfigError and DataError, both ValueErrors, for invalid input
    before any training, and maskloom.training.faults.interruption.Interrupted, with everything saved, when a signal
    asks the run to stop.
    """
    _check_paths(corpus=corpus, out=out, init=init)
    from maskloom.config import PretrainRecipe
    from maskloom.runs.display import SILENT, terminal_progress
    from maskloom.runs.pretrain import pretrain as run
    from maskloom.runs.pretraining_plan import check_model
    from maskloom.runs.recipes import recipe_of_run, run_to_resume, with_epochs

    flags = {"size": size, "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate}
    flags |= {"max_length": max_length, "seed": seed, "minutes": minutes}
    shown, check = terminal_progress() if progress else SILENT, (None if init else check_model)
    resumes = run_to_resume(out, resume, shown.say, verify=verify)
    chosen = recipe_of_run(PretrainRecipe, recipe, changes=[], flags=flags, resumes=resumes, check=check)
    chosen = with_epochs(chosen, epochs, steps, corpus)
    return run(chosen, corpus=corpus, out=out, init=init, resume=resume, verify=verify, progress=shown)


def finetune(
    model: str | Path,
    train: str | Path,
    dev: str | Path,
    out: str | Path,
    *,
    task: str | None = None,
    recipe: str | Path | Mapping[str, Any] | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    seed: int | None = None,
    restarts: int | None = None,
    keep_restarts: bool = False,
    metric: str | None = None,
    format: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    labels: str | Path | None = None,
    on_bad_rows: Literal["error", "skip"] = "error",
    source_vocab: str | Path | None = None,
    resume: bool = False,
    verify: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Fine-tune a model folder on labelled text, as `maskloom finetune` does, and return its scores on `dev`.

    The weights that score best on `dev` are saved in `out/model`. `train` and `dev` are files: CSV, TSV, JSONL, CoNLL
    columns, SQuAD JSON, or a data set as distributed (`format`). Columns are found by name unless given. `recipe` is a
    TOML file, the name of a shipped recipe such as "squad-v1", or values by dotted key, such as
    `{"training.warmup_ratio": 0.2}`; the other settings are the command's flags and override it. `restarts` trains with
    several seeds; `metric` selects the best weights. `minutes` is a budget in place of `epochs` or `steps`. With
    [model] in `recipe`, `model` is the vocabulary of the new model, `source_vocab` a separate one for sources. `resume`
    continues the run in `out`; different `epochs` or `steps` extend or shorten it. `progress` reports to standard
    error. Raises ConfigError and DataError for invalid input before any training, NumericalError if every seed
    diverges, and maskloom.training.faults.interruption.Interrupted, with everything saved, when a signal asks to stop.
    """
    _check_paths(model=model, train=train, dev=dev, out=out, labels=labels, source_vocab=source_vocab)
    from maskloom.config import FinetuneRecipe
    from maskloom.runs.display import SILENT, terminal_progress
    from maskloom.runs.finetune import LabelledFiles
    from maskloom.runs.finetune import finetune as run
    from maskloom.runs.recipes import recipe_of_run, run_to_resume
    from maskloom.tasks.tables import ReadingOptions

    flags = {"task": task, "epochs": epochs, "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate}
    flags |= {"max_length": max_length, "seed": seed, "minutes": minutes}
    flags |= {"restarts": restarts, "keep_restarts": keep_restarts or None}
    shown = terminal_progress() if progress else SILENT
    resumes = run_to_resume(out, resume, shown.say, verify=verify)
    chosen = recipe_of_run(FinetuneRecipe, recipe, changes=[], flags=flags, resumes=resumes)
    columns: dict[str, Any] = {"text_column": text_column, "pair_column": pair_column, "label_column": label_column}
    names = None if labels is None else str(labels)
    reading = ReadingOptions(**columns, format=format, labels=names, on_bad_rows=on_bad_rows)
    data = LabelledFiles(train, dev, reading, metric, source_vocab)
    return run(chosen, model=model, data=data, out=out, resume=resume, verify=verify, progress=shown)


def _check_paths(**given: Any) -> None:
    """Raise ConfigError for an argument that is not a path, and DataError for a path that is not UTF-8."""
    from maskloom.system.foreign_files import check_path

    for name, path in given.items():
        if path is not None or name not in ("init", "labels", "source_vocab"):
            check_path(name, path)
