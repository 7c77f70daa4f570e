"""Fine-tuning a model folder on a labelled data set (BERT paper 3.5, 4.1)."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import maskloom
from maskloom.checkpoints.huggingface import CONFIG
from maskloom.config import FinetuneRecipe, TrainingSection, unread_sections
from maskloom.errors import ConfigError, UsageError, amount
from maskloom.inference.model_folder import FORMAT_VERSION, resolve_model_folder, vocabularies_of
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.model_config import ModelConfig
from maskloom.runs.corpus import tokenizer_folder
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.evaluate import check_tunable, tune_folder
from maskloom.runs.features import with_features
from maskloom.runs.finetune_restarts import (
    FinetunePlan,
    initial_model,
    reopen_restarts,
    run_restart,
    start_of,
    summarise_restarts,
)
from maskloom.runs.first_look import with_task
from maskloom.runs.model_writing import finetuning_card, write_model_folder
from maskloom.runs.resuming import changes_of, extended_recipe, extension_lines
from maskloom.runs.run_folder import (
    METRICS,
    RECIPE,
    TASK,
    described,
    input_sums,
    prepare_run_folder,
    seeds_of,
    version_lines,
)
from maskloom.runs.start_summary import finetuning_lines, model_line
from maskloom.runs.words import vectors_file
from maskloom.system.devices import describe_device, half_type
from maskloom.system.files import numbered_folders, write_json
from maskloom.system.folder_lock import alone_in_folder
from maskloom.system.foreign_files import read_json_object, read_json_value
from maskloom.system.launch import is_restarted
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.encoding import EncodedData
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.kinds import changed, task_kind
from maskloom.tasks.labels import (
    UnknownLabelError,
    balanced_weights,
    doubtful_labels,
    label_counts,
    weights_by_name,
    with_hint,
)
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.task import Task
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.events import EventLog, check_log_targets, open_run_log
from maskloom.training.faults.memory import require_room_for_batch
from maskloom.training.faults.nonfinite import NumericalError
from maskloom.training.ranks.ranks import Ranks, joined_ranks

_SHOWN_LABELS, _SHOWN_DOUBTS = 12, 5
_UNITS_FOR_UNKNOWN, _MANY_UNKNOWN = 1000, 0.05


@dataclass(frozen=True)
class LabelledFiles:
    """The files to train on and to select by, how to read both, and the score on `dev` that decides.

    The catalog or the kind sets the default score. `source_vocab` is the folder of a vocabulary for sources only.
    """

    train: str | Path
    dev: str | Path
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    metric: str | None = None
    source_vocab: str | Path | None = None

    @property
    def paths(self) -> dict[str, Path]:
        """The two files by name, and the folder of the source vocabulary and the class list if there are any."""
        more = {} if self.source_vocab is None else {"source_vocab": tokenizer_folder(Path(self.source_vocab))}
        more |= {} if self.reading.labels is None else {"labels": Path(self.reading.labels)}
        return {"train": Path(self.train), "dev": Path(self.dev), **more}

    def as_told(self, told: Mapping[str, Any], paths: Mapping[str, str | Path]) -> LabelledFiles:
        """Return the files with the inputs stored by a run and their `paths`, where this sets none of its own."""
        vocab, reading = self.source_vocab or paths.get("source_vocab"), self.reading
        if reading == ReadingOptions():
            labels = {"labels": str(paths["labels"])} if "labels" in paths else {}
            reading = ReadingOptions(**{**told.get("reading", {}), **labels})
        return replace(self, reading=reading, metric=self.metric or told.get("metric"), source_vocab=vocab)

    def reading_told(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return how to read the files, with the stored name of the class list, which is compared by content."""
        labels = self.reading.labels and told.get("reading", {}).get("labels")
        return self.reading.as_dict() | ({"labels": labels} if labels else {})


@alone_in_folder(ranks_share=True)
def finetune(
    recipe: FinetuneRecipe,
    *,
    model: str | Path,
    data: LabelledFiles,
    out: str | Path,
    resume: bool = False,
    verify: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Fine-tune a model, keep the weights that score best on `data.dev`, and return the scores.

    `recipe.restarts` runs with the seeds `seed`, `seed` + 1 ... differ in the new classifier, the order of the data and
    dropout. The best run's model is in `out/model`; with `recipe.keep_restarts` each is in `out/restarts/seed-K/model`.
    An interrupted run, continued with `resume`, ends as if uninterrupted; `verify` first proves it (`verify_resuming`).
    Of processes started by torchrun the first one writes, and returns the scores. Raises ConfigError or DataError for
    wrong input before any training, NumericalError if no seed ends in finite numbers, Interrupted after a save when a
    signal asks to stop.
    """
    training = recipe.training
    check_log_targets(training.log_to)
    with joined_ranks(training.parallel, limit=training.rank_timeout, device=training.device) as ranks:
        half_type(training.precision, ranks.device)  # raises before any work for a type that the device lacks
        return _finetune(recipe, model, data, Path(out), resume, verify, progress if ranks.is_first else SILENT, ranks)


def _finetune(
    recipe: FinetuneRecipe,
    model: str | Path,
    data: LabelledFiles,
    out: Path,
    resume: bool,
    verify: bool,
    progress: Progress,
    ranks: Ranks,
) -> dict[str, Any]:
    resume, known = resume or is_restarted(out), {}
    if resume and (out / RECIPE).exists():
        content = described(out)
        known = content["inputs"]
        data = data.as_told(known, content["paths"])
    source, reading = source_of(recipe, model), data.reading
    plan = _prepare(with_task(recipe, reading), source, data, out, resume=resume, verify=verify)
    recipe, settings = plan.recipe, plan.settings
    paths = {"model": source, **data.paths}
    section = recipe.model or recipe.features  # word vectors initialise embeddings, or are joined to features
    if section is not None and section.word_vectors is not None:
        paths["word_vectors"] = vectors_file(section.word_vectors)
    sums = input_sums(paths)
    inputs = {**sums, "reading": data.reading_told(known), "metric": plan.task.primary}
    start, told = initial_model(plan, recipe.seed)  # raises here, in time, if they do not fit
    about = model_line(start)
    ranks.rows(settings)
    if not ((out / RECIPE).exists() or plan.task.freezes_encoder):  # a run that goes on has fitted
        _check_batch(plan, start, ranks)
    del start
    if ranks.world_size > 1 and plan.task.freezes_encoder:
        raise ConfigError("[features] trains a small model on vectors stored on disk; run it in one process")
    ranks.barrier()  # all ranks read the recipe before the first one writes it
    continues = ranks.is_first and _begin(plan, reading, inputs, paths, resume)
    if ranks.any_(continues and (out / METRICS).exists()):
        result = _result_of_finished(out, tidies=ranks.is_first)
        about_verify = "; --verify is for unfinished runs, `maskloom rerun` repeats a whole run" if verify else ""
        progress.say(f"{out} is complete; there is nothing left to do{about_verify}")
        return result
    if recipe.training.num_threads:
        torch.set_num_threads(recipe.training.num_threads)
    about_task = finetuning_lines(recipe, settings, plan.train)
    told = [about, *told, *(version_lines(out) if ranks.is_first else ()), f"device: {describe_device(ranks.device)}"]
    for line in [*told, *about_task, *extension_lines(settings), *plan.account["notes"]]:
        progress.say(line)
    if plan.task.freezes_encoder:
        plan = with_features(plan, out / "features", sums["model"], progress)
    with open_run_log(out / "events.jsonl", is_first=ranks.is_first, log_to=recipe.training.log_to) as log:
        log.write("data", **plan.account)
        results, failures = _run_restarts(plan, log, progress, ranks)
    if not ranks.is_first:
        return {}
    result = _result(plan, results, failures)
    with ranks.at("save"):
        _write_models(plan, results, result)
    if recipe.tune_on_dev:
        result["tuned"] = {"fitted_on": str(data.dev), **tune_folder(out / "model", plan.dev)}
    write_json(out / METRICS, result)
    _remove_best_weights(out)
    return result


def source_of(recipe: FinetuneRecipe, model: str | Path) -> Path:
    """Return the folder of the model, or of the vocabulary if the recipe creates a new model."""
    return resolve_model_folder(model) if recipe.model is None else tokenizer_folder(Path(model))


def _check_batch(plan: FinetunePlan, start: EncoderWithHeads, ranks: Ranks) -> None:
    """Raise ConfigError if a step takes more memory than is available."""
    train, settings = plan.train, plan.settings

    def units(number: int) -> Any:
        return train.batch(np.linspace(0, len(train) - 1, number).astype(np.int64))

    longest = int(train.lengths.max())
    require_room_for_batch("training", settings, ranks, plan.config, longest, units, lambda: (start, plan.objective))


def _begin(
    plan: FinetunePlan, reading: ReadingOptions, inputs: dict[str, Any], paths: dict[str, Path], resume: bool
) -> bool:
    """Create the run's folder, or check that it holds this run, and return whether the run is continued."""
    out, recipe = plan.folder, plan.recipe
    continues = prepare_run_folder(
        out,
        recipe,
        inputs=inputs,
        paths=paths,
        resume=resume,
        may_change=changes_of(recipe),
        before_change=lambda: reopen_restarts(out, recipe),
    )
    write_json(out / TASK, _model_settings(plan, reading))
    return continues


def _result_of_finished(out: Path, *, tidies: bool) -> dict[str, Any]:
    seed = read_json_value(out / METRICS, "best_seed", int)
    if not (out / "model" / CONFIG).exists():
        command = shlex.join(["maskloom", "export", str(out), "--stage", f"seed-{seed}", "--out", "DIR"])
        raise ConfigError(
            f"{out} is complete, but {out / 'model'} no longer exists; export its last checkpoint with: {command}"
        )
    if tidies:
        _remove_best_weights(out)
    return {**read_json_object(out / METRICS), "model": str(out / "model")}


def _remove_best_weights(out: Path) -> None:
    """Remove the weights from which `model` was made, which an interrupted run may not have removed."""
    for restart in numbered_folders(out / "restarts", "seed"):
        shutil.rmtree(restart / "best", ignore_errors=True)


def _run_restarts(
    plan: FinetunePlan, log: EventLog, progress: Progress, ranks: Ranks
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return the results of all seeds, and why any were given up; raises NumericalError if none is left."""
    results, failures = [], {}
    for seed in seeds_of(plan.recipe):
        try:
            results.append(run_restart(plan, seed, log, progress, ranks))
        except NumericalError as error:
            if not results and len(failures) == plan.recipe.restarts - 1:
                raise
            failures[seed] = str(error)
            progress.end()
            progress.say(f"gave up on seed {seed}: {error}")
    return results, failures


def _check_model(recipe: FinetuneRecipe, source: Path, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for a loss or a length that the model does not support."""
    if recipe.auxiliary_lm and not config.is_causal:
        weight = f"auxiliary_lm = {recipe.auxiliary_lm:g}"
        raise ConfigError(f"{weight}: {source} is bidirectional, so it would see the tokens that it has to predict")
    positions, max_length = config.max_position_embeddings, recipe.data.max_length
    owner, key = (source, "") if recipe.model is None else ("the new model", " (model.config.max_position_embeddings)")
    if max_length > (limit := min(positions, tokenizer.max_length)):
        raise ConfigError(f"data.max_length {max_length} exceeds the {limit} tokens that {owner} takes{key}")
    most_written = getattr(recipe.task_settings(task_kind(recipe.task).settings), "max_target_length", 0)
    if most_written > positions:
        what = f"{recipe.task}.max_target_length {most_written}"
        raise ConfigError(f"{what} exceeds the {positions} positions of the decoder in {owner}{key}")


def _prepare(
    recipe: FinetuneRecipe, source: Path, data: LabelledFiles, out: Path, *, resume: bool, verify: bool
) -> FinetunePlan:
    """Check the model, then read, check and encode both files; nothing is written before this succeeds."""
    kind, reading, paths = task_kind(recipe.task), data.reading, data.paths
    tokenizer, config = start_of(recipe, source, paths.get("source_vocab"))
    _check_model(recipe, source, config, tokenizer)
    settings = recipe.task_settings(kind.settings)
    if (features := recipe.features) and features.word_vectors is not None:
        place = str(vectors_file(features.word_vectors).resolve())
        features = features.model_copy(update={"word_vectors": place})
        settings = settings.model_copy(update={"features": features})
    train_data = kind.read(paths["train"], reading, settings)
    settings = settings.model_copy(update={**kind.data_settings(train_data), **kind.model_settings(config)})
    dev_data = kind.read(paths["dev"], reading, settings)
    kind.check(train_data, dev_data)
    names = kind.label_names(train_data, reading, settings)
    is_named = reading.format is not None and bool(catalog_row(reading.format).labels)
    if reading.labels is not None and (is_named or not names):
        why = f"format {reading.format} defines its own labels" if names else f"a {recipe.task} task has no label names"
        raise ConfigError(f"--labels {reading.labels}: {why}; leave out --labels")
    primary = data.metric or (None if reading.format is None else catalog_row(reading.format).primary)
    try:
        task = kind.make(names, primary, settings)
    except UsageError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    task.metric()  # raises before training if a library for the scores is missing
    if recipe.tune_on_dev:
        check_tunable(task)
    encoded = task.encode(train_data, tokenizer, recipe.data.max_length, for_training=True)
    try:
        dev_encoded = task.encode(dev_data, tokenizer, recipe.data.max_length)
    except UnknownLabelError as error:
        raise with_hint(error, reading) from None
    learned = {} if task.learned is None else task.learned(encoded)
    if isinstance(recipe.class_weights, dict):
        learned["class_weights"] = weights_by_name(recipe.class_weights, task.labels)
    elif recipe.class_weights == "balanced":
        learned["class_weights"] = balanced_weights(task.targets(encoded), len(task.labels))
    task = changed(task, **learned) if learned else task
    account = _account(recipe, task, (train_data, encoded), (dev_data, dev_encoded))
    account["notes"] += [*_unknown_note(encoded, tokenizer), *unread_sections(recipe)]
    takes_pairs = getattr(train_data.examples[0], "pair", None) is not None
    if resume:
        folders = {f"seed-{seed}": out / "restarts" / f"seed-{seed}" / "checkpoints" for seed in seeds_of(recipe)}
        recipe = extended_recipe(recipe, out, lambda chosen: _settings(chosen, len(encoded)), folders)
    settings = _settings(recipe, len(encoded))
    return FinetunePlan(
        out, recipe, task, source, config, tokenizer, encoded, dev_encoded, takes_pairs, account, settings, verify
    )


def _account(
    recipe: FinetuneRecipe, task: Task, train: tuple[ReadExamples, EncodedData], dev: tuple[ReadExamples, EncodedData]
) -> dict[str, Any]:
    """Return what was read, dropped and truncated, with notes on what to know before trusting a score."""
    seen: dict[Any, set[Any]] = {}
    for example in train[0].examples:
        seen.setdefault(example.inputs(), set()).add(getattr(example, "label", None))
    shared = [example for example in dev[0].examples if example.inputs() in seen]
    num_other = sum(getattr(example, "label", None) not in seen[example.inputs()] for example in shared)
    notes = []
    for data, encoded in (train, dev):
        notes += [f"{data.report.path}: {note}" for note in data.report.notes] + encoded.notes(data.report.path)
    if shared:
        other = f", {num_other} of them with a different label" if num_other else ""
        notes.append(f"{len(shared):,} of {len(dev[0].examples):,} dev examples are also in train{other}")
    if task.labels and getattr(task.settings, "scheme", None) in (None, "plain"):
        counts, of_dev = ([*label_counts(task.targets(side), len(task.labels))] for side in (train[1], dev[1]))
        if doubts := doubtful_labels(task.labels, counts, of_dev):
            more = f"; {len(doubts) - _SHOWN_DOUBTS} more" if len(doubts) > _SHOWN_DOUBTS else ""
            notes.append(f"labels to check: {'; '.join(doubts[:_SHOWN_DOUBTS])}{more}")
        if unseen := [name for name, count in zip(task.labels, counts, strict=True) if not count]:
            shown = ", ".join(unseen[:_SHOWN_LABELS]) + (" ..." if len(unseen) > _SHOWN_LABELS else "")
            told = f"{len(unseen)} of {len(task.labels)} labels do not occur in train and cannot be learned"
            notes.append(f"{told}: {shown}")
    if len(train[1]) < recipe.training.batch_size:
        notes.append(f"batch_size {recipe.training.batch_size} lowered to {len(train[1])}, the number of examples")
    return {
        "kind": task.kind,
        "labels": list(task.labels),
        "class_weights": getattr(task.settings, "class_weights", None),
        "train": {**train[0].report.as_dict(), **train[1].account()},
        "dev": {**dev[0].report.as_dict(), **dev[1].account(), "num_also_in_train": len(shared)},
        "notes": notes,
    }


def _unknown_note(train: EncodedData, tokenizer: Tokenizer) -> list[str]:
    """Return a note if many tokens of train, of up to a thousand units, are not in the vocabulary."""
    if tokenizer.vocabulary.special.unknown is None:
        return []
    units = np.unique(np.linspace(0, len(train) - 1, _UNITS_FOR_UNKNOWN).astype(np.int64))
    fraction = np.mean(train.batch(units).token_ids == tokenizer.vocabulary.unk_id)
    note = f"{fraction:.1%} of the tokens in train are not in the vocabulary: the model sees them as unknown"
    return [note] if fraction >= _MANY_UNKNOWN else []


def _settings(recipe: FinetuneRecipe, num_units: int) -> TrainingSection:
    """Resolve the steps; evaluate after each epoch and save when evaluating unless the recipe says otherwise.

    An epoch is a pass over all units: examples, or windows of questions, sentences and documents. A time budget is
    divided evenly among the seeds, and decides when to evaluate and save.
    """
    batch_size = min(recipe.training.batch_size, num_units)
    settings = recipe.training.model_copy(update={"batch_size": batch_size}).with_steps(num_units)
    if settings.minutes is not None:
        return settings.model_copy(update={"minutes": settings.minutes / recipe.restarts})
    every = settings.evaluate_every or min(math.ceil(num_units / batch_size), settings.steps)
    save_every, asked = settings.save_every or every, recipe.training.average_checkpoints
    if asked > (saved := math.ceil(settings.steps / save_every)):
        raise ConfigError(
            f"training.average_checkpoints = {asked}: {settings.steps} steps give {amount(saved, 'checkpoint')}, one "
            f"every {save_every} steps (training.save_every)"
        )
    return settings.model_copy(update={"evaluate_every": every, "save_every": save_every})


def _result(plan: FinetunePlan, results: list[dict[str, Any]], failures: dict[int, str]) -> dict[str, Any]:
    primary = plan.task.primary
    best = max(results, key=lambda result: (result["best"]["scores"][primary], -result["seed"]))
    return {
        "task": plan.task.kind,
        "takes_pairs": plan.takes_pairs,
        "metric": primary,
        "best": best["best"],
        "best_seed": best["seed"],
        "last": best["last"],
        "restarts": summarise_restarts(results, primary, failures),
        "data": plan.account,
        "model": str(plan.folder / "model"),
    }


def _model_settings(plan: FinetunePlan, reading: ReadingOptions) -> dict[str, Any]:
    """Return what is stored with a model of this run: everything about its task except the weights."""
    return {
        "format_version": FORMAT_VERSION,
        "maskloom": maskloom.__version__,
        "kind": plan.task.kind,
        "takes_pairs": plan.takes_pairs,
        "labels": list(plan.task.labels),
        "primary": plan.task.primary,
        "max_length": plan.recipe.data.max_length,
        "reading": {**reading.as_dict(), "labels": None},
        "settings": plan.task.settings.as_stored(),
        **vocabularies_of(plan.tokenizer),
    }


def _write_models(plan: FinetunePlan, results: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Write the model of the best restart, and with `keep_restarts` the models of all restarts."""
    recipe, settings = plan.recipe, read_json_object(plan.folder / TASK)
    dev = plan.account["dev"]["path"]
    for restart in results:
        folder, seed = plan.of_seed(restart["seed"]), restart["seed"]
        averaged, best = restart["best"].get("averaged"), f"the best on dev by {plan.task.primary}"
        chosen = f"the mean of {len(averaged)} checkpoints" if averaged else best
        what = f"seed {seed}, epoch {restart['best']['epoch']}: {chosen}"
        scores = restart["best"]["scores"]
        card = finetuning_card(recipe, what=what, scores=scores, base=plan.source, dev=dev, config=plan.config)
        wanted = {plan.folder / "model": seed == result["best_seed"], folder / "model": recipe.keep_restarts}
        for final in (path for path, is_wanted in wanted.items() if is_wanted):
            write_model_folder(final, folder / "best", plan.tokenizer, card, settings=settings)
        if recipe.keep_restarts and recipe.tune_on_dev:
            tune_folder(folder / "model", plan.dev)
