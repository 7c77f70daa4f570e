"""Fine-tuning from one seed, and the comparison of several such runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from maskloom.checkpoints.huggingface import CONFIG, load_model, read_model_config, save_model
from maskloom.checkpoints.tensor_files import WEIGHTS
from maskloom.config import FinetuneRecipe, TrainingSection
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import load_tokenizer, tokenizer_read
from maskloom.layers.layer_mix import ScalarMix
from maskloom.models.architectures import architecture_of, config_of
from maskloom.models.assembled import EncoderWithHeads, build_model, prepare_blocks
from maskloom.models.bart import LEARNED_FIRST
from maskloom.models.heads import HEADS
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.masked_lm import WithLanguageModel
from maskloom.objectives.objective import Objective, WithMixPenalty
from maskloom.runs.display import Progress
from maskloom.runs.resuming import BEST_STEP, verify_resuming
from maskloom.runs.run_folder import METRICS, run_id, saved_sum
from maskloom.runs.task_summaries import unit_of
from maskloom.runs.word_vectors import take_word_vectors
from maskloom.system.files import copy_files, numbered_folders, replacing_folder, write_json
from maskloom.system.foreign_files import read_json_object, read_json_value, read_object_inside
from maskloom.tasks.encoding import EncodedData, ShuffledBatches
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.task import Task, evaluate_task
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.checkpointing.checkpoints import drop_old_checkpoints, fill_with_mean, step_folders, step_of
from maskloom.training.events import EventLog
from maskloom.training.faults.nonfinite import NumericalError
from maskloom.training.ranks.ranks import Ranks
from maskloom.training.session import TrainingSession
from maskloom.training.state import TrainState

_RESULT = "result.json"


@dataclass(frozen=True)
class FinetunePlan:
    """Everything that the restarts of a run in `folder` share: the task, with both data sets read and encoded.

    `config` and `tokenizer` belong to the model in `source`. `account` says what was read, dropped and truncated,
    `settings` are the recipe's with the number of steps resolved, and `verify` checks that resuming gives the same
    bits.
    """

    folder: Path
    recipe: FinetuneRecipe
    task: Task
    source: Path
    config: ModelConfig
    tokenizer: Tokenizer
    train: EncodedData
    dev: EncodedData
    takes_pairs: bool
    account: dict[str, Any]
    settings: TrainingSection
    verify: bool

    @property
    def objective(self) -> Objective:
        """The task's loss, plus a language-model loss and a mix penalty where the recipe gives them weights."""
        weight, penalty = self.recipe.auxiliary_lm, self.recipe.mix.l2
        objective = WithLanguageModel(self.task.objective, weight) if weight else self.task.objective
        return WithMixPenalty(objective, penalty) if penalty else objective

    def of_seed(self, seed: int) -> Path:
        """Return the folder of a restart."""
        return self.folder / "restarts" / f"seed-{seed}"


def run_restart(plan: FinetunePlan, seed: int, log: EventLog, progress: Progress, ranks: Ranks) -> dict[str, Any]:
    """Fine-tune from one seed and return its scores; the weights that scored best on dev are in its folder's `best`.

    A restart whose result is already in its folder is not run again; an interrupted one resumes from its newest
    checkpoint and reaches the same weights as an uninterrupted run. The last checkpoint of a finished restart is kept
    so that it can be extended. With several ranks, the first returns the scores.
    """
    folder = plan.of_seed(seed)
    if ranks.any_(ranks.is_first and (folder / _RESULT).exists()):
        read_json_value(folder / _RESULT, "best", dict)
        return read_json_object(folder / _RESULT)
    settings = plan.settings
    model, _ = initial_model(plan, seed)
    prepare_blocks(model, recompute=settings.activation_checkpointing, compile_=settings.compile)
    ranks.spread(model)
    state = TrainState.fresh(model, settings)
    rows = ranks.rows(settings)
    batches = ShuffledBatches(plan.train, settings.batch_size, seed, rows, plan.recipe.training.group_by_length)
    watch = _DevWatch(plan, state, folder, ranks)
    session = TrainingSession(
        state=state,
        objective=plan.objective,
        next_batch=batches.next_batch,
        settings=settings,
        seed=seed,
        checkpoints=folder / "checkpoints",
        log=log,
        evaluate=watch.evaluate,
        on_step=lambda report: progress.advance(report.step, loss=report.loss),
        on_metrics=lambda step, metrics: progress.say(watch.describe(step, metrics)),
        say=progress.say,
        memory=watch.memory,
        name=f"seed-{seed}",
        ranks=ranks,
        run_id=run_id(plan.folder, f"seed-{seed}"),
        is_enough=watch.is_enough if watch.patience else None,
        num_averaged=plan.recipe.training.average_checkpoints,
    )
    if plan.verify:
        verify_resuming(session)
    start = session.resume()
    watch.recall()
    progress.begin(f"fine-tuning, seed {seed}", settings.steps if settings.minutes is None else 0, start)  # 0: unknown
    started = time.perf_counter()
    session.run()
    progress.end()
    if ranks.is_first and state.step < settings.steps and watch.is_enough():
        text = f"seed {seed} stops at step {state.step}: dev {plan.task.primary} has not improved"
        progress.say(f"{text} in {watch.patience} evaluations (training.patience)")
    if session.num_averaged:
        progress.say(watch.take_average(folder / "checkpoints", session.averaged_steps()))
    result = {"seed": seed, "steps": state.step, **watch.memory}
    if not ranks.is_first:
        return result
    log.write("finished", stage=session.name, step=state.step, seconds=time.perf_counter() - started)
    # before the result is written: a restart that finds one stops there
    drop_old_checkpoints(folder / "checkpoints", state.step, 1, session.averaged_steps())
    write_json(folder / _RESULT, result)
    return result


def reopen_restarts(out: Path, recipe: FinetuneRecipe) -> None:
    """Reopen finished seeds for more steps, restoring the best weights of a finished run from its model folders.

    A kill midway is harmless. Before changing anything, raises ConfigError if patience ended all seeds, as more steps
    would change nothing, or if a model is gone, and DataError for a model that is not as the run wrote it.
    """
    seeds = numbered_folders(out / "restarts", "seed")
    results = [path for seed in seeds if (path := seed / _RESULT).exists()]
    planned = recipe.training.extensions[-1].steps if recipe.training.extensions else 0
    ended = [read_json_value(path, "steps", int) for path in results]
    if len(ended) == recipe.restarts and all(step < planned for step in ended):
        raise ConfigError(
            f"{out}: dev did not improve in {recipe.training.patience} evaluations (training.patience), and more "
            "steps would not change that; start a new run with more patience and another --out"
        )
    best_seed = read_json_value(out / METRICS, "best_seed", int) if (out / METRICS).exists() else None
    models = {}
    for folder in seeds:
        is_best = folder.name == f"seed-{best_seed}"
        model = out / "model" if is_best else folder / "model"
        if all((folder / "best" / name).exists() for name in (CONFIG, WEIGHTS)):
            continue
        if model.exists():
            if read_object_inside(folder, BEST_STEP).get("sha256") not in (None, saved_sum(model)):
                raise DataError(
                    f"{model}: {CONFIG} or {WEIGHTS} has changed since the run wrote it, so the run cannot be "
                    "extended; restore the file, or start a new run with another --out"
                )
            models[folder / "best"] = model
        elif is_best or (recipe.keep_restarts and folder / _RESULT in results):
            raise ConfigError(f"{model}, the best weights so far, no longer exists; start a new run with another --out")
    for best, model in models.items():
        with replacing_folder(best) as kept:
            copy_files(model, kept)
    (out / METRICS).unlink(missing_ok=True)  # metrics first: a finished run has all results
    for path in results:
        path.unlink()


def heads_of(recipe: FinetuneRecipe, task: Task, config: ModelConfig) -> tuple[str, ...]:
    """Return the heads of the model that a recipe trains for a task."""
    return (*task.heads, architecture_of(config).vocabulary_head) if recipe.auxiliary_lm else task.heads


def start_of(recipe: FinetuneRecipe, source: Path, source_vocab: Path | None) -> tuple[Tokenizer, ModelConfig]:
    """Return the tokenizer and configuration of the model that a recipe trains, from a model or vocabulary folder.

    With `source_vocab`, they read sources in that vocabulary, and the folder's own vocabulary is for targets only.
    Raises ConfigError where that does not suit the task or the model.
    """
    section, kind = recipe.model, KINDS[recipe.task]
    if section is not None:
        own = Tokenizer.load(source).with_task_tokens()
        template, ids, pad = own.template, own.vocabulary.ids, own.vocabulary.special.pad
        begin, end = (next(iter(marks), None) for marks in (template.begin, template.end))
        config = config_of(section, vocab_size=len(ids)).with_marks(None if pad is None else ids[pad], begin, end)
        own = tokenizer_read(config, own)
    else:
        own, config = load_tokenizer(source), read_model_config(source)
        own = own if recipe.features else own.with_task_tokens()  # a frozen encoder learns no new marks
        added = {key: value for key, value in _added(recipe).items() if hasattr(config, key)}
        config = config.with_keys(added, f"{source}: ")
    settings = recipe.task_settings(kind.settings)
    num_layers = getattr(settings, "source_layers", None)
    if source_vocab is not None:
        if not kind.has_decoder or getattr(config, "source_vocab_size", None) is not None:
            why = f"{source} already has one" if kind.has_decoder else f"task = {recipe.task!r}"
            raise ConfigError(f"a source vocabulary ({source_vocab}) is only for seq2seq with a new encoder: {why}")
        sources = Tokenizer.load(source_vocab).with_task_tokens()
        config = config.with_sources(len(sources.vocabulary), num_layers)
        own = replace(sources, targets=own, max_length=own.max_length)
    elif num_layers is not None:
        raise ConfigError(f"{recipe.task}.source_layers needs a new encoder of sources (--source-vocab)")
    if getattr(settings, "source_first", False) and not getattr(config, "num_source_layers", None):
        raise ConfigError(f"{recipe.task}.source_first needs a BART with an encoder of sources (--source-vocab)")
    return own, config


def _added(recipe: FinetuneRecipe) -> dict[str, Any]:
    """Return the keys that a recipe adds to the configuration of the model in a folder."""
    mix = {} if recipe.features else recipe.mix.of_encoder
    return {**mix, **({"bilstm": True} if recipe.bilstm else {})}


def initial_model(plan: FinetunePlan, seed: int) -> tuple[EncoderWithHeads, list[str]]:
    """Return the source's encoder, or a new one of its sizes or the recipe's, with heads drawn from `seed`.

    The second value has a sentence on word vectors if embeddings start from them.
    """
    tokenizer = plan.tokenizer.of_targets
    task, num_tokens = plan.task, len(tokenizer.vocabulary)
    heads, num_outputs, options = heads_of(plan.recipe, task, plan.config), task.num_outputs, task.head_options
    build = partial(build_model, heads=heads, num_labels=num_outputs, seed=seed, head_options=options)
    if plan.recipe.model is not None:
        model = _learning(plan, build(plan.config))
        return model, take_word_vectors(model, plan.recipe.model, tokenizer)
    model, _report = load_model(
        plan.source,
        heads=heads,
        num_labels=num_outputs,
        seed=seed,
        replace_heads=[name for name in task.heads if not HEADS[name].is_tied],  # a decoder is trained further
        head_options=options,
        added=_added(plan.recipe),
    )
    if num_tokens > model.config.vocab_size:  # the special tokens of tasks, which a published GPT lacks
        model.resize_vocabulary(num_tokens, seed=seed)
    if getattr(plan.config, "source_vocab_size", None) != getattr(model.config, "source_vocab_size", None):
        known = dict(model.named_parameters())
        model = build(plan.config, leave=known.keys())
        model.load_state_dict(known, strict=False)
    if plan.recipe.from_scratch:
        model = build(model.config)
    return _learning(plan, model), []


def _learning(plan: FinetunePlan, model: EncoderWithHeads) -> EncoderWithHeads:
    """Freeze what the plan does not train, and return the model; raises ConfigError for a penalty on a missing mix."""
    if (penalty := plan.recipe.mix.l2) and not any(isinstance(part, ScalarMix) for part in model.modules()):
        raise ConfigError(f"mix.l2 = {penalty:g}: this model does not mix its layers")
    if plan.task.freezes_encoder:
        model.encoder.requires_grad_(False)
    if plan.recipe.frozen:
        model.encoder.freeze()
    if getattr(plan.task.settings, "source_first", False):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(LEARNED_FIRST))
    return model


def summarise_restarts(results: list[dict[str, Any]], primary: str, failures: dict[int, str]) -> dict[str, Any]:
    """Return the mean and standard deviation (n - 1) of the best dev scores, and degenerate runs by seed.

    The standard deviation of a single score is None. `mean_of_sound` excludes degenerate runs, and is None if all are
    degenerate. `failures` are runs that were given up: they count as degenerate and have no score.
    """
    scores = {str(result["seed"]): result["best"]["scores"][primary] for result in results}
    degenerate = {str(result["seed"]): reason for result in results if (reason := result["best"]["degenerate"])}
    degenerate |= {str(seed): f"given up: {reason}" for seed, reason in failures.items()}
    sound = [score for seed, score in scores.items() if seed not in degenerate]
    return {
        "num_restarts": len(results) + len(failures),
        "scores": scores,
        "mean": statistics.fmean(scores.values()),
        "standard_deviation": statistics.stdev(scores.values()) if len(scores) > 1 else None,
        "mean_of_sound": statistics.fmean(sound) if sound else None,
        "degenerate": degenerate,
    }


class _DevWatch:
    """Scores the weights on dev on request and saves the best ones; `memory` is stored in checkpoints."""

    def __init__(self, plan: FinetunePlan, state: TrainState, folder: Path, ranks: Ranks) -> None:
        self._plan, self._state, self._folder, self._ranks = plan, state, folder, ranks
        self.patience = plan.recipe.training.patience
        self.memory: dict[str, Any] = {}

    def evaluate(self) -> dict[str, float]:
        model = self._ranks.whole(self._state.model)
        if not self._ranks.is_first:
            return {}
        entry = self._scored(model)
        best, primary = self.memory.get("best"), self._plan.task.primary
        if best is None or entry["scores"][primary] > best["scores"][primary]:
            self._keep(model, entry)
        self.memory["last"] = entry
        # a run that went back evaluates steps again
        earlier = [known for known in self.memory.get("evaluations", []) if known["step"] < entry["step"]]
        self.memory["evaluations"] = [*earlier, entry]
        return entry["scores"]

    def take_average(self, checkpoints: Path, steps: Collection[int]) -> str:
        """Save the mean of these checkpoints' weights in place of the best, and return a line about it."""
        model = self._ranks.whole(self._state.model)
        if not self._ranks.is_first:
            return ""
        averaged = [path for path in step_folders(checkpoints) if step_of(path) in steps]
        fill_with_mean(model, averaged)
        entry = {**self._scored(model), "averaged": sorted(map(step_of, averaged))}
        self._keep(model, entry)
        told = ", ".join(map(str, entry["averaged"]))
        return f"the model is the mean of the checkpoints at steps {told}: {self.shown(entry['scores'])}"

    def _scored(self, model: EncoderWithHeads) -> dict[str, Any]:
        plan, step = self._plan, self._state.step
        try:
            outcome = evaluate_task(model, plan.task, plan.dev, plan.settings.precision)
        except ValueError as error:
            rate = plan.settings.learning_rate
            raise NumericalError(
                f"step {step}, on dev: {error}; a smaller training.learning_rate (now {rate}) may help"
            ) from None
        return {
            "step": step,
            "epoch": round(step * plan.settings.batch_size / len(plan.train), 2),
            "scores": outcome.scores,
            **outcome.as_dict(),
        }

    def _keep(self, model: EncoderWithHeads, entry: dict[str, Any]) -> None:
        kept, path = self._folder / "best", self._folder / BEST_STEP
        former = read_object_inside(self._folder, BEST_STEP)  # still true if a kill comes before the weights
        write_json(path, {**former, "step": entry["step"]})  # first: an extension must not start earlier
        save_model(model, kept, extra_config=self._plan.task.published_config)
        write_json(path, {"step": entry["step"], "sha256": saved_sum(kept), "entry": entry})
        self.memory["best"] = entry

    def recall(self) -> None:
        """After a resume, remember the scores of the weights in `best`, which may be newer than the checkpoint's.

        If a kill left weights there whose scores are unknown, no weights count as the best.
        """
        kept = self._folder / "best"
        if self._ranks.is_first and kept.exists():  # a finished run has removed it
            known = read_object_inside(self._folder, BEST_STEP)
            self.memory.pop("best", None)
            is_whole = all((kept / name).exists() for name in (CONFIG, WEIGHTS))
            if is_whole and known.get("sha256") == saved_sum(kept):
                self.memory["best"] = known["entry"]

    def is_enough(self) -> bool:
        """Return whether the last `patience` evaluations brought no improvement."""
        best = self.memory["best"]["step"] if "best" in self.memory else 0
        later = sum(entry["step"] > best for entry in self.memory.get("evaluations", []))
        return self.patience is not None and later >= self.patience

    def describe(self, step: int, metrics: dict[str, float]) -> str:
        is_best = self.memory["best"]["step"] == step and not self._plan.recipe.training.average_checkpoints
        text = f"step {step}, epoch {self.memory['last']['epoch']}: {self.shown(metrics)}"
        return f"{text}{' (best so far, kept)' if is_best else ''}"

    def shown(self, metrics: dict[str, float]) -> str:
        primary = self._plan.task.primary
        return f"dev {primary} {metrics[primary]:.4f}{unit_of(primary, metrics)}, loss {metrics['loss']:.4f}"
