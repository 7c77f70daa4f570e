"""Pre-training from a corpus folder to a model folder (BERT paper 3.3, 3.4)."""

from __future__ import annotations

import math
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from maskloom.checkpoints.huggingface import CONFIG, load_model, read_model_config
from maskloom.config import PretrainRecipe, TrainingSection
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.loader import Loader
from maskloom.errors import ConfigError
from maskloom.inference.model_folder import resolve_model_folder, tokenizer_read
from maskloom.models.architectures import architecture_of
from maskloom.models.assembled import EncoderWithHeads, build_model, prepare_blocks
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.objective import Objective
from maskloom.objectives.pretraining import PRETRAINING, Pretraining, TokenFrequencies, unigram_of
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.model_writing import pretraining_card, write_best_model, write_model_folder
from maskloom.runs.pretraining_plan import (
    PhasePlan,
    check_corpus,
    check_model,
    config_for,
    heads_of,
    ignored_settings,
    phase_plans,
)
from maskloom.runs.resuming import changes_of, extended_recipe, extension_lines, verify_resuming
from maskloom.runs.run_folder import METRICS, RECIPE, input_sums, prepare_run_folder, run_id, version_lines
from maskloom.runs.start_summary import default_lines, model_line, phase_lines, precision_lines, repeated_text_lines
from maskloom.runs.task_summaries import describe_metrics
from maskloom.runs.word_vectors import take_word_vectors
from maskloom.runs.words import vectors_file
from maskloom.system.devices import describe_device, half_type
from maskloom.system.files import write_json
from maskloom.system.folder_lock import alone_in_folder
from maskloom.system.foreign_files import file_inside, read_json_object
from maskloom.system.launch import is_restarted
from maskloom.system.resources import require_memory
from maskloom.text.tokenizer import TOKEN_FILES, Tokenizer
from maskloom.text.vocabulary import first_difference
from maskloom.training.events import EventLog, check_log_targets, open_run_log, read_events
from maskloom.training.faults.memory import require_room_for_batch
from maskloom.training.loop import evaluate
from maskloom.training.ranks.ranks import Ranks, joined_ranks
from maskloom.training.session import TrainingSession
from maskloom.training.state import TrainState

_EVALUATION_BATCH = 64
_BELOW_UNIGRAM = 0.1  # nats; a smaller advantage over word frequencies does not show use of context


@alone_in_folder(ranks_share=True)
def pretrain(
    recipe: PretrainRecipe,
    *,
    corpus: str | Path,
    out: str | Path,
    resume: bool = False,
    init: str | Path | None = None,
    verify: bool = False,
    progress: Progress = SILENT,
) -> dict[str, Any]:
    """Pre-train a model on a corpus folder and return its held-out metrics; the model is in `out/model`.

    `init` starts from the weights of a model folder (continued pre-training). An interrupted run, continued with
    `resume`, ends with the same weights as an uninterrupted one; `verify` first proves this (`verify_resuming`). Of
    processes started by torchrun the first one writes, and returns the metrics. Raises ConfigError or DataError for
    wrong input before any training, Interrupted after a save when a signal asks to stop, RankLostError when another
    process is lost.
    """
    training = recipe.training
    check_log_targets(training.log_to)
    with joined_ranks(training.parallel, limit=training.rank_timeout, device=training.device) as ranks:
        half_type(training.precision, ranks.device)  # raises before any work for a type that the device lacks
        heard = progress if ranks.is_first else SILENT
        start = None if init is None else resolve_model_folder(init)
        return _pretrain(recipe, Path(corpus), Path(out), resume, start, verify, heard, ranks)


def _pretrain(
    recipe: PretrainRecipe,
    corpus: Path,
    out: Path,
    resume: bool,
    init: Path | None,
    verify: bool,
    progress: Progress,
    ranks: Ranks,
) -> dict[str, Any]:
    check_model(recipe, None if init is None else read_model_config(init))
    opened = Corpus.open(corpus)
    check_corpus(recipe, opened)
    resume = resume or is_restarted(out)
    if resume:
        last = phase_plans(recipe)[-1].name
        folders = {last: out / "checkpoints" / last}
        recipe = extended_recipe(recipe, out, lambda chosen: phase_plans(chosen)[-1].training, folders)
    plans = phase_plans(recipe)
    for plan in plans:
        ranks.rows(plan.training)
    _check_start(recipe, opened, init, ranks)
    for plan in () if (out / RECIPE).exists() else plans:  # a run that goes on has fitted, and must keep its recipe
        _check_batch(recipe, plan, opened, init, ranks)
    ranks.barrier()  # all ranks read the recipe before the first one writes it
    paths, inputs = _read_by(recipe, opened, init)
    if ranks.is_first:
        prepare_run_folder(out, recipe, inputs=inputs, paths=paths, resume=resume, may_change=changes_of(recipe))
    is_complete = ranks.is_first and (out / METRICS).exists() and (out / "model" / CONFIG).exists()
    if ranks.any_(is_complete and not verify):  # on a network disk, others may still see what has just been removed
        progress.say(f"{out} is complete; there is nothing left to do")
        return read_json_object(out / METRICS)
    if recipe.training.num_threads:
        torch.set_num_threads(recipe.training.num_threads)
    told = [*ignored_settings(recipe, has_init=init is not None), *extension_lines(plans[-1].training)]
    for sentence in [*told, *(version_lines(out) if ranks.is_first else ())]:
        progress.say(sentence)
    train, held_out = split_documents(opened, recipe.data.held_out_fraction, seed=recipe.seed)
    if recipe.data.held_out_fraction > 0:
        progress.say(_held_out_line(opened, held_out))
    model, new = initial_model(recipe, opened, init)
    about = model_line(model, recipe.model.size if init is None else None)
    device = f"device: {describe_device(ranks.device)}"
    for sentence in [about, *new, device, *precision_lines(recipe.training, ranks.device), *default_lines(recipe)]:
        progress.say(sentence)
    prepare_blocks(model, recompute=recipe.training.activation_checkpointing, compile_=recipe.training.compile)
    ranks.spread(model)
    row = PRETRAINING[recipe.objective]
    reference = row.reference(row.part, opened, train) if ranks.is_first and row.reference else None
    run = _Run(recipe, opened, out, train, held_out, model, reference, progress, ranks)
    before = {} if init is None else run.metrics_before(plans)
    if init is not None:
        progress.say(f"before step 1: {describe_metrics(before)}")
    metrics = run.train_phases(plans, verify=verify)
    metrics |= {"before": before} if before else {}
    whole = ranks.whole(model)
    if ranks.is_first:
        with ranks.at("save"):
            run.write_results(whole, plans[-1], init, metrics)
    return metrics


def _read_by(
    recipe: PretrainRecipe, corpus: Corpus, init: Path | None
) -> tuple[dict[str, Path], dict[str, str | None]]:
    """Return the paths of a run's inputs, and their fingerprints."""
    paths = {} if init is None else {"init": init}
    if init is None and recipe.model.word_vectors is not None:
        paths["word_vectors"] = vectors_file(recipe.model.word_vectors)
    inputs = {"corpus": corpus.fingerprint, "init": None, **input_sums(paths)}
    return {"corpus": corpus.folder, **paths}, inputs


def start_config(recipe: PretrainRecipe, tokenizer: Tokenizer, init: Path | None) -> ModelConfig:
    """Return the configuration that training starts from: the recipe's, or the initial model's."""
    return config_for(recipe, tokenizer) if init is None else read_model_config(init)


def initial_model(recipe: PretrainRecipe, corpus: Corpus, init: Path | None) -> tuple[EncoderWithHeads, list[str]]:
    """Return the model that training starts from, and messages on its new parts, word vectors or text read before."""
    config = start_config(recipe, corpus.tokenizer, init)
    if init is None:
        model = build_model(config, heads=heads_of(recipe, config), seed=recipe.seed)
        return model, take_word_vectors(model, recipe.model, corpus.tokenizer)
    model, report = load_model(init, heads=heads_of(recipe, config), seed=recipe.seed)
    new = dict.fromkeys(".".join(name.split(".")[:2]) for name in report.new_parameters)
    said = [f"random weights, missing from the initial model: {', '.join(new)}"] if new else []
    return model, [*said, *repeated_text_lines(init, corpus.fingerprint)]


def _check_vocabulary(init: Path, config: ModelConfig, corpus: Corpus) -> None:
    """Raise ConfigError if a corpus and the model to continue have different vocabularies."""
    pieces, num_embedded, spells = corpus.vocabulary, config.vocab_size, architecture_of(config).reads_spelling
    words = Tokenizer.load(init).targets if spells else None
    if spells and words is None:
        raise ConfigError(f"{init}: the words that it predicts are not in the folder, so its training cannot continue")
    hint = f"build the corpus with --vocab {shlex.quote(str(init))}"
    if any(file_inside(init, name) for name in TOKEN_FILES):
        tokenizer = words or Tokenizer.load(init)
        if tokenizer.targets is not None:
            raise ConfigError(f"{init}: its sources have a separate vocabulary; it cannot be trained to restore text")
        if tokenizer.identity()["vocabulary_sha256"] != corpus.tokenizer.identity()["vocabulary_sha256"]:
            counts = f"{len(tokenizer.vocabulary)} pieces differs from the corpus's vocabulary of {len(pieces)}"
            where = first_difference(tokenizer.vocabulary, pieces)
            raise ConfigError(f"{init}: its vocabulary of {counts} {where}; {hint}")
    if len(pieces) > num_embedded:
        raise ConfigError(f"{init}: it embeds {num_embedded} pieces, the corpus was built with {len(pieces)}; {hint}")


def _check_start(recipe: PretrainRecipe, corpus: Corpus, init: Path | None, ranks: Ranks) -> None:
    """Raise ConfigError for an initial model with another vocabulary, and if too little memory is free to train."""
    config = start_config(recipe, corpus.tokenizer, init)
    if init is not None:
        _check_vocabulary(init, config, corpus)
    num_bytes = bytes_of_weights(config, recipe)
    # each of several processes may hold only a part of the gradients and moments, or keep them elsewhere
    what = f"a model of {num_bytes // 4:,} parameters, in training with gradients and moments,"
    require_memory(num_bytes * (4 if ranks.world_size == 1 else 1), what)


def _check_batch(recipe: PretrainRecipe, plan: PhasePlan, corpus: Corpus, init: Path | None, ranks: Ranks) -> None:
    """Raise ConfigError if a step of a phase takes more memory than is available."""
    settings, row, config = plan.training, PRETRAINING[recipe.objective], start_config(recipe, corpus.tokenizer, init)
    data = plan.data_for(config)

    def units(number: int) -> Any:
        return row.loader(corpus, None, data, batch_size=number, seed=recipe.seed).next_batch({})[0]

    def start() -> tuple[EncoderWithHeads, Objective]:
        return initial_model(recipe, corpus, init)[0], row.objective(row.part, data)

    require_room_for_batch(plan.name, settings, ranks, config, data.max_length, units, start)


def bytes_of_weights(config: ModelConfig, recipe: PretrainRecipe) -> int:
    """Return the bytes of the weights of a new model; in training, gradients and both moments take three times more."""
    with torch.device("meta"):
        return sum(parameter.nbytes for parameter in build_model(config, heads_of(recipe, config)).parameters())


@dataclass(frozen=True)
class _Run:
    """State shared by the phases: `train` and `held_out` documents; on the first rank the `reference`, if any."""

    recipe: PretrainRecipe
    corpus: Corpus
    out: Path
    train: np.ndarray
    held_out: np.ndarray
    model: EncoderWithHeads
    reference: TokenFrequencies | None
    progress: Progress
    ranks: Ranks

    @property
    def row(self) -> Pretraining:
        return PRETRAINING[self.recipe.objective]

    def loader(self, documents: np.ndarray, plan: PhasePlan, batch_size: int, rows: slice = slice(None)) -> Loader:
        seed, data = self.recipe.seed, plan.data_for(self.model.config)
        return self.row.loader(self.corpus, documents, data, batch_size=batch_size, seed=seed, rows=rows)

    def metrics_before(self, plans: list[PhasePlan]) -> dict[str, float]:
        """Return the initial weights' held-out metrics for the last phase, logged as step 0; {} on other ranks."""
        whole, stage = self.ranks.whole(self.model), plans[0].name
        if not self.ranks.is_first:
            return {}
        if logged := logged_metrics(self.out, "evaluation", stage, 0):
            return logged
        metrics = self.held_out_metrics(plans[-1], whole)
        if metrics:
            with EventLog(self.out / "events.jsonl") as log:
                log.write("evaluation", stage=stage, step=0, metrics=metrics)
        return metrics

    def held_out_metrics(self, plan: PhasePlan, whole: EncoderWithHeads) -> dict[str, float]:
        """Return metrics on a phase's held-out instances; {} if nothing is held out, and on other ranks."""
        if len(self.held_out) == 0 or not self.ranks.is_first:
            return {}
        limit = plan.training.max_evaluation_instances
        batch_size = min(_EVALUATION_BATCH, limit or _EVALUATION_BATCH)
        loader = self.loader(self.held_out, plan, batch_size)
        batches = islice(loader.epoch_batches(0), limit // batch_size if limit else None)
        sums: defaultdict[str, float] = defaultdict(float)
        objective, counted = self.row.objective(self.row.part, plan.data), self.counted(batches, sums)
        metrics = evaluate(whole, objective, counted, plan.training.precision)
        return metrics if self.reference is None else metrics | self.reference.metrics(sums, metrics)

    def counted(self, batches: Iterable[Any], sums: defaultdict[str, float]) -> Iterator[Any]:
        """Yield batches, adding up in `sums` what the reference needs."""
        for batch in batches:
            for name, value in self.reference.sums(batch).items() if self.reference else ():
                sums[name] += value
            yield batch

    def train_phases(self, plans: list[PhasePlan], *, verify: bool) -> dict[str, Any]:
        """Train the phases in turn; after one with the same data settings, a phase reads on where that one stopped."""
        metrics: dict[str, Any] = {}
        position: dict[str, int] = {}
        for number, plan in enumerate(plans):
            is_newest = not any((self.out / "checkpoints" / later.name).exists() for later in plans[number + 1 :])
            reads_on = number > 0 and not self.row.has_state and dict(plans[number - 1].data) == dict(plan.data)
            metrics, position = self.train_phase(plan, position if reads_on else {}, verify=verify and is_newest)
        return metrics

    def train_phase(
        self, plan: PhasePlan, position: dict[str, int], *, verify: bool
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Train one phase from the previous phase's weights with a fresh optimiser, reading from a position.

        Return metrics on held-out text, and the position at the end.
        """
        settings, progress, ranks = plan.training, self.progress, self.ranks
        loader = self.loader(self.train, plan, settings.batch_size, rows=ranks.rows(settings))
        state = replace(TrainState.fresh(self.model, settings), position=position)
        evaluated: dict[int, dict[str, float]] = {}  # by step: the newest metrics

        def measure() -> dict[str, float]:
            evaluated.clear()
            return evaluated.setdefault(state.step, self.held_out_metrics(plan, ranks.whole(self.model)))

        with open_run_log(self.out / "events.jsonl", is_first=ranks.is_first, log_to=settings.log_to) as log:
            session = TrainingSession(
                state=state,
                objective=self.row.objective(self.row.part, plan.data),
                next_batch=loader.next_batch,
                settings=_with_defaults(settings),
                seed=self.recipe.seed,
                checkpoints=self.out / "checkpoints" / plan.name,
                log=log,
                evaluate=measure,
                on_step=lambda report: progress.advance(
                    report.step, **report.losses, tokens_per_s=report.num_tokens / report.seconds
                ),
                on_metrics=lambda step, metrics: progress.say(f"step {step}: {describe_metrics(metrics)}"),
                say=progress.say,
                name=plan.name,
                ranks=ranks,
                run_id=run_id(self.out, plan.name),
                score=lambda metrics: -metrics.get(f"{self.row.part}_loss", math.nan),
            )
            if verify:
                verify_resuming(session)
            start = session.resume()
            finished = logged_metrics(self.out, "finished", plan.name, start) if ranks.is_first else None
            if session.is_over() and ranks.any_(finished is not None):
                return finished or {}, state.position
            if start == 0 and ranks.is_first:
                account = loader.account()  # it may take minutes
                log.write("data", stage=plan.name, **asdict(account))
                for sentence in phase_lines(plan, account):
                    progress.say(sentence)
            started = time.perf_counter()
            steps = settings.steps if settings.minutes is None else 0  # unknown
            progress.begin(f"{plan.name}, length {plan.data.max_length}", steps, start)
            session.run()
            progress.end()
            metrics = evaluated[state.step] if state.step in evaluated else measure()
            seconds = time.perf_counter() - started
            log.write("finished", stage=plan.name, step=state.step, seconds=seconds, metrics=metrics)
        return metrics, state.position

    def write_results(
        self, whole: EncoderWithHeads, last: PhasePlan, init: Path | None, metrics: dict[str, Any]
    ) -> None:
        """Write the model folders, and last the metrics, which mark the run as finished."""
        out, tokenizer = self.out, tokenizer_read(whole.config, Tokenizer.load(self.corpus.folder))
        card = pretraining_card(self.recipe, metrics, init, config=whole.config)
        write_model_folder(out / "model", whole, tokenizer, card)
        if self.recipe.training.keep_best:
            step = write_best_model(whole, out / "checkpoints" / last.name, tokenizer, out / "best-model")
            absent = "not written, as no evaluation was compared or its checkpoint no longer exists"
            self.progress.say(f"{out / 'best-model'}: {absent if step is None else f'the model of step {step}'}")
        if (unigram := unigram_of(metrics)) and (loss := metrics[f"{self.row.part}_loss"]) > unigram - _BELOW_UNIGRAM:
            self.progress.say(
                f"note: the model uses no context yet: its loss, {loss:.2f} nats, is not clearly below the "
                f"unigram loss, {unigram:.2f}; train longer, or try other values of training.learning_rate"
            )
        write_json(out / METRICS, metrics)


def _with_defaults(settings: TrainingSection) -> TrainingSection:
    """Evaluate and save ten times in the first planned steps by default; a time budget sets its own intervals."""
    if settings.minutes is not None:
        return settings
    every = max(1, settings.first_planned_steps() // 10)
    update = {"save_every": settings.save_every or every, "evaluate_every": settings.evaluate_every or every}
    return settings.model_copy(update=update)


def logged_metrics(out: Path, event: str, stage: str, step: int) -> dict[str, float] | None:
    """Return the metrics of the last event of that name at a stage's step, from the run's log; None without one."""
    path, wanted = out / "events.jsonl", (event, stage, step)
    events = reversed(read_events(path)) if path.exists() else ()
    return next((one["metrics"] for one in events if (one["event"], one.get("stage"), one.get("step")) == wanted), None)


def _held_out_line(corpus: Corpus, held_out: np.ndarray) -> str:
    """Report the held-out fraction of a corpus; documents are not split, so with few of them it may be large."""
    if len(held_out) == 0:
        return "the corpus has one document, so none is held out and no held-out loss can be shown"
    starts = corpus.sentence_offsets[corpus.document_offsets]
    share = int(np.diff(starts)[held_out].sum()) / max(1, corpus.num_tokens)
    return f"held out: {len(held_out):,} of {corpus.num_documents:,} documents, {100 * share:.3g}% of the tokens"
