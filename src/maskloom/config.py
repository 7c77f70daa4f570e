"""Recipes as strict models, with what every key means; reading and writing them is the work of `recipe_files`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from maskloom.errors import ConfigError
from maskloom.recipe_files import load_recipe as load_recipe
from maskloom.recipe_files import reason_of as reason_of
from maskloom.recipe_files import recipe_toml as recipe_toml
from maskloom.recipe_files import validate_recipe as validate_recipe
from maskloom.rows import row_of
from maskloom.system.launch import DEVICE_NAMES

Rate = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Minutes = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
MOST_STEPS = 10**12
"""More than any run can count to, so it is also the number of steps of a run that the clock ends."""

Count = Annotated[int, Field(ge=1, le=MOST_STEPS)]
BatchSize = Annotated[int, Field(ge=1, le=2**20)]  # the largest of the published recipes (LAMB) is 2**16
CountOrNone = Annotated[int, Field(ge=0, le=MOST_STEPS)]
Length = Annotated[int, Field(le=1_000_000)]


def about(meaning: str) -> Any:
    """Say what a key of a recipe means, with its unit, for `maskloom recipes show` and docs/RECIPES.md."""
    return Field(description=meaning)


class Section(BaseModel):
    """Base of every recipe section: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSection(Section):
    """Which architecture to build; `config` overrides single keys of the size with BERT's own names."""

    architecture: Annotated[str, row_of("model.architecture"), about("Kind of encoder: bert or gpt.")] = "bert"
    size: Annotated[
        Literal["tiny", "mini", "small", "medium", "base", "large"],
        about("Published size: layers, hidden size, heads."),
    ] = "mini"
    config: Annotated[
        dict[str, Any], about("Overrides of single config keys under BERT's own names, such as num_hidden_layers = 3.")
    ] = Field(default_factory=dict)


class PretrainingData(Section):
    """Sampling and masking of pre-training instances (paper 3.3.1, 3.3.2)."""

    max_length: Annotated[Length, Field(ge=5), about("Maximum tokens per sequence, special ones included.")] = 128
    short_seq_prob: Annotated[Rate, about("Fraction of documents that are cut to a random shorter length.")] = 0.1
    next_sentence: Annotated[
        bool, about("Train next-sentence prediction on pairs of texts; false uses single segments.")
    ] = True
    sentence_order: Annotated[
        bool, about("Of a pair, tell swapped texts apart (ALBERT) instead of random ones; needs next_sentence.")
    ] = False
    masked_lm_prob: Annotated[
        float, Field(gt=0.0, lt=1.0), about("Fraction of a sequence's tokens that are predicted.")
    ] = 0.15
    max_predictions_per_seq: Annotated[
        Count | None, about("Most predictions per max_length tokens; absent, masked_lm_prob alone decides.")
    ] = None
    mask_prob: Annotated[Rate, about("Fraction of predicted tokens that become [MASK].")] = 0.8
    keep_prob: Annotated[Rate, about("Fraction of predicted tokens that stay; the rest become random tokens.")] = 0.1
    whole_word_masking: Annotated[bool, about("Predict either all pieces of a word or none.")] = False
    static_masks: Annotated[bool, about("Use the same instances and masks in every epoch.")] = False
    held_out_fraction: Annotated[
        float, Field(ge=0.0, lt=1.0), about("Fraction of documents held out from training to measure the loss.")
    ] = 0.02

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_prob + self.keep_prob > 1.0 + 1e-9:
            raise ValueError(f"mask_prob + keep_prob = {self.mask_prob + self.keep_prob}: it may not exceed 1")
        if self.sentence_order and not self.next_sentence:
            raise ValueError("sentence_order = true needs pairs: next_sentence = true")
        return self

    @property
    def pair_task(self) -> str | None:
        """What is told of a pair of texts: "nsp", "sop" for their order, or None for single segments."""
        return ("sop" if self.sentence_order else "nsp") if self.next_sentence else None

    @property
    def num_text_tokens(self) -> int:
        """The number of tokens left for text beside [CLS] and one or two [SEP]."""
        return self.max_length - (3 if self.next_sentence else 2)

    def resolved_max_predictions(self) -> int:
        """Return the cap on predictions of one sequence, `max_predictions_per_seq` unless absent.

        The default grows with length and rate, so it never cuts: 20 at length 128 and 80 at 512 for 0.15, as published.
        """
        return self.max_predictions_per_seq or max(1, round(0.15625 * self.max_length * (self.masked_lm_prob / 0.15)))


class FinetuningData(Section):
    """How examples of a task are encoded."""

    max_length: Annotated[
        Length, Field(ge=3), about("Maximum tokens; longer texts are truncated, contexts and sentences windowed.")
    ] = 128


class Extension(Section):
    """A run that was given another number of steps when it had come to one of them."""

    at: Annotated[Count, about("Step from which the new number of steps applies.")]
    steps: Annotated[Count, about("Number of steps planned until then.")]


class TrainingSection(Section):
    """Optimisation (paper 3.4, 3.5).

    The schedule scales the learning rates of the heads and of all else alike. After a loss or gradient that is not
    finite, "skip" goes on with the next batch; "rewind" goes back to the last checkpoint and on with the batches after
    the bad one. With `minutes` the learning rate follows the fraction of the time that is used, and steps and epochs do
    not count. `extensions` are written by `--resume --steps N` or `--epochs N`, so that the recipe tells the whole
    schedule; they are those of the last phase.
    """

    steps: Annotated[Count, about("Optimiser steps.")] = 10_000
    batch_size: Annotated[BatchSize, about("Sequences per step, over all processes.")] = 32
    micro_batch_size: Annotated[
        Count | Literal["auto"] | None,
        about("Sequences computed at once, accumulating gradients; auto: as many as fit into memory."),
    ] = None
    learning_rate: Annotated[Positive, about("Peak learning rate.")] = 1e-4
    head_learning_rate: Annotated[Positive | None, about("Peak learning rate of the heads; absent, learning_rate.")] = (
        None
    )
    warmup_ratio: Annotated[Rate, about("Fraction of the steps in which the learning rate rises from 0.")] = 0.1
    warmup_steps: Annotated[CountOrNone | None, about("Number of warm-up steps; overrides warmup_ratio.")] = None
    schedule: Annotated[
        str,
        row_of("training.schedule"),
        about(
            "Learning rate after its peak: linear or cosine to 0, google as in BERT's published code, inverse_sqrt of "
            "the step, constant."
        ),
    ] = "linear"
    optimizer: Annotated[
        str,
        row_of("training.optimizer"),
        about("adamw, with bias correction, or bert_adam, the published code's without it."),
    ] = "adamw"
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0), about("Decay rate of the mean of gradients.")] = 0.9
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0), about("Decay rate of the mean of squared gradients.")] = 0.999
    adam_epsilon: Annotated[Positive, about("Added to the square root of the mean of squared gradients.")] = 1e-6
    weight_decay: Annotated[NotNegative, about("Decoupled weight decay; biases and norms have none.")] = 0.01
    max_grad_norm: Annotated[Positive | None, about("Maximum global L2 norm of the gradient.")] = 1.0
    on_nonfinite: Annotated[
        Literal["stop", "skip", "rewind"], about("What to do after a loss or gradient that is not finite.")
    ] = "stop"
    max_skips: Annotated[Count, about("Batches skipped in a row, or rewinds in all, before the run ends.")] = 3
    save_every: Annotated[
        Count | None, about("Steps between checkpoints; absent, ten per phase, or at each evaluation of fine-tuning.")
    ] = None
    evaluate_every: Annotated[
        Count | None, about("Steps between evaluations; absent, ten per phase, or once per epoch of fine-tuning.")
    ] = None
    log_every: Annotated[Count, about("Steps between lines of events.jsonl.")] = 10
    log_to: Annotated[
        list[Literal["tensorboard"]], about("Other logs of steps and evaluations: RUN/tensorboard (extra tensorboard).")
    ] = Field(default_factory=list)
    keep_checkpoints: Annotated[Count, about("Number of newest checkpoints to keep.")] = 2
    keep_best: Annotated[bool, about("Keep the checkpoint that is best on held-out text, and write best-model/.")] = (
        False
    )
    max_evaluation_instances: Annotated[
        Count | None, about("Maximum held-out sequences per evaluation; absent, all.")
    ] = None
    num_threads: Annotated[int | None, Field(ge=1, le=1024), about("Threads per process; absent, torch's choice.")] = (
        None
    )
    device: Annotated[
        str,
        Field(pattern=f"^({DEVICE_NAMES})$"),
        about("What computes: auto (a GPU if there is one), cpu, cuda, cuda:N, mps."),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "fp32", "bf16", "fp16", "fastest"],
        about(
            "Of matrix products; weights and losses stay fp32. auto: bf16 on a GPU that has it, else fp32. "
            "fastest: on a CPU too, if a measurement at the start says so."
        ),
    ] = "auto"
    activation_checkpointing: Annotated[
        bool, about("Compute blocks again in the backward pass: less memory, about a third more time.")
    ] = False
    compile: Annotated[bool, about("Compile blocks with torch.compile; needs a C compiler.")] = False
    parallel: Annotated[
        Literal["ddp", "fsdp", "hsdp"],
        about("With several processes: each holds the whole model, a shard, or a shard of its machine's copy."),
    ] = "ddp"
    rank_timeout: Annotated[
        float,
        Field(ge=3.0, le=86_400.0),
        about("Seconds after which a process that keeps the others waiting ends the run."),
    ] = 30.0
    minutes: Annotated[
        Minutes | None,
        about("Minutes to train, in place of steps or epochs, divided among phases or seeds; the schedule follows."),
    ] = None
    extensions: list[Extension] = Field(default_factory=list)

    def resolved_warmup_steps(self) -> int:
        """Return the warm-up steps: `warmup_steps`, or `warmup_ratio` of all that were first planned, rounded down."""
        return int(self.warmup_ratio * self.first_planned_steps()) if self.warmup_steps is None else self.warmup_steps

    def first_planned_steps(self) -> int:
        """Return the steps that were planned before any extension."""
        return self.extensions[0].steps if self.extensions else self.steps

    def refuse_contradictions(self, phase: Phase | None = None, place: str = "training") -> None:
        """Raise ValueError for counts that do not go together, in this section or in a phase of it."""
        own = set() if phase is None else phase.model_fields_set
        both = self if phase is None else self.model_copy(update=phase.model_dump(exclude_none=True))

        def key(name: str) -> str:
            return f"{place if name in own else 'training'}.{name}"

        for part, whole in (("warmup_steps", "steps"), ("micro_batch_size", "batch_size")):
            count, limit = getattr(both, part), getattr(both, whole)
            if isinstance(count, int) and limit is not None and count > limit:
                raise ValueError(f"{key(part)} = {count}: it may not exceed {key(whole)} = {limit}")
        if self.minutes is not None and both.warmup_steps is not None:
            given = f"{key('warmup_steps')} = {both.warmup_steps}"
            raise ValueError(f"{given}: with training.minutes give training.warmup_ratio")
        starts = [extension.at for extension in self.extensions]
        if self.minutes is not None and starts:
            raise ValueError(
                f"training.minutes = {self.minutes:g}: this run was extended with --steps and goes by steps; leave "
                "--minutes out"
            )
        if starts != sorted(set(starts)) or (starts and starts[-1] >= (both.steps or MOST_STEPS)):
            raise ValueError(
                f"training.extensions at {starts}: each begins after the one before and ends before {key('steps')}"
            )


class Phase(Section):
    """One phase of pre-training at one sequence length; what is absent comes from [data] and [training]."""

    max_length: Annotated[Length, Field(ge=5), about("Maximum sequence length of the phase in tokens.")]
    steps: Annotated[Count, about("Steps of the phase.")]
    batch_size: Annotated[BatchSize | None, about("Sequences per step; absent, training.batch_size.")] = None
    learning_rate: Annotated[Positive | None, about("Peak learning rate; absent, training.learning_rate.")] = None
    warmup_steps: Annotated[CountOrNone | None, about("Number of warm-up steps; absent, as in [training].")] = None


_Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")]


class CardSection(Section):
    """What only a person knows of a model, for its card, in the words of model hubs."""

    license: Annotated[
        str | None, Field(pattern=r"^[a-z0-9][a-z0-9.+-]{0,60}$"), about("Licence of the model, such as apache-2.0.")
    ] = None
    language: Annotated[
        _Language | list[_Language] | None, about("Language of the text as a code such as en, or several.")
    ] = None
    base_model: Annotated[
        str | None,
        Field(pattern=r"^[\w.-]+(/[\w.-]+)?$"),
        about("Published name of the model that training starts from; absent, what its files say."),
    ] = None


class PretrainRecipe(Section):
    """A pre-training run: model, data, training and, optionally, phases of sequence length."""

    kind: Annotated[Literal["pretrain"], about("Kind of run.")] = "pretrain"
    seed: Annotated[int, Field(ge=0, lt=2**32), about("Seed of weights, sampling, masks and dropout.")] = 0
    objective: Annotated[
        str,
        row_of("objective"),
        about("What is predicted: masked_lm, masked tokens; causal_lm, each token from those before it."),
    ] = "masked_lm"
    model: ModelSection = ModelSection()
    data: PretrainingData = PretrainingData()
    training: TrainingSection = TrainingSection()
    card: CardSection | None = None
    phases: list[Phase] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _causal_has_single_segments(cls, values: Any) -> Any:
        """Leave next-sentence prediction out where it is not asked for and a left-to-right model has none."""
        if not isinstance(values, dict) or values.get("objective") != "causal_lm":
            return values
        data = values.get("data", {})
        return {**values, "data": {"next_sentence": False, **data}} if isinstance(data, dict) else values

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.objective == "causal_lm":
            self._refuse_masks()
        for number, phase in enumerate(self.phases):
            is_last = number == len(self.phases) - 1
            training = self.training if is_last else self.training.model_copy(update={"extensions": []})
            training.refuse_contradictions(phase, f"phases.{number}")
        if not self.phases:
            self.training.refuse_contradictions()
        if self.training.keep_best and self.data.held_out_fraction == 0.0:
            raise ValueError("training.keep_best = true: with data.held_out_fraction = 0 nothing is there to choose by")
        return self

    def _refuse_masks(self) -> None:
        if self.data.next_sentence:
            raise ValueError("objective = 'causal_lm': data.next_sentence = true needs a model that reads both ways")
        masks = ("masked_lm_prob", "max_predictions_per_seq", "mask_prob", "keep_prob", "whole_word_masking")
        defaults = PretrainingData()
        if given := [name for name in masks if getattr(self.data, name) != getattr(defaults, name)]:
            raise ValueError(f"objective = 'causal_lm' masks nothing: leave out data.{', data.'.join(given)}")


class FinetuneTraining(TrainingSection):
    """Fine-tuning counts epochs unless steps are given (paper 3.5: batch 16 or 32, 2e-5 to 5e-5, 3 or 4 epochs).

    `group_by_length` puts examples of like length into a batch; no padding is computed with, so it gains little speed.
    """

    steps: Annotated[Count | None, about("Optimiser steps; absent, epochs decide.")] = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    epochs: Annotated[float, Field(gt=0.0, le=1e6), about("Passes over the training data.")] = 3.0
    learning_rate: Annotated[Positive, about("Peak learning rate.")] = 5e-5
    group_by_length: Annotated[bool, about("Group examples of similar length into batches.")] = False
    patience: Annotated[
        Count | None, about("Evaluations without a better dev score that end a seed; absent, no early stopping.")
    ] = None

    def with_steps(self, num_examples: int) -> TrainingSection:
        """Return the section with its steps counted: `int(num_examples / batch_size * epochs)`, at least one.

        Raises ConfigError when `warmup_steps` are more than that, or an extension begins later.
        """
        steps = self.steps or max(1, int(num_examples / self.batch_size * self.epochs))
        if self.minutes is not None:
            steps = MOST_STEPS
        own = FinetuneTraining.model_fields.keys() - TrainingSection.model_fields.keys()
        counted = TrainingSection(steps=steps, **self.model_dump(exclude={"steps", *own}))
        if (warmup := counted.resolved_warmup_steps()) > steps:
            raise ConfigError(f"training.warmup_steps = {warmup}: {num_examples} examples give {steps} steps")
        if self.extensions and (at := self.extensions[-1].at) >= steps:
            raise ConfigError(f"training.extensions at {at}: {num_examples} examples give {steps} steps")
        return counted


class PairSection(Section):
    """Pairs of texts, with one label or a score."""

    both_orders: Annotated[
        bool, about("Read A B and B A and add their vectors, as GPT does where neither text comes first.")
    ] = False


class SpanSection(Section):
    """Answers as spans of a context (paper 4.2, 4.3), in the terms of the published code.

    `stride` is the step from one window to the next; an answer is kept empty when the null answer scores more than
    `null_threshold` above it, in data with questions that have none.
    """

    stride: Annotated[Count, about("Tokens from the start of one window of a context to the next.")] = 128
    max_question_length: Annotated[Count, about("Tokens after which a question is truncated.")] = 64
    max_answer_length: Annotated[Count, about("Maximum answer length in tokens.")] = 30
    num_best: Annotated[Count, about("Candidate answers kept per question.")] = 20
    null_threshold: Annotated[
        float, Field(allow_inf_nan=False), about("Margin by which no answer must score above the best answer.")
    ] = 0.0


class TaggingSection(Section):
    """Tags of words (paper 5.3): how they are written in files, and how much of a document a word sees.

    `scheme` "plain" is for tags that stand for single words, such as parts of speech; "auto" tells them from entities.
    """

    scheme: Annotated[
        Literal["auto", "iob1", "iob2", "bioes", "bilou", "io", "plain"],
        about("How tags mark entities; auto detects it, plain is for tags of single words."),
    ] = "auto"
    context: Annotated[
        Literal["sentence", "document"], about("What a word attends to: its sentence, or also the sentences around it.")
    ] = "sentence"
    crf: Annotated[bool, about("Add a linear-chain conditional random field.")] = False


# How LayerCombination names layers; whether the encoder has so many is known when it is there.
_LAYERS = "^(embeddings|last|second_to_last|(sum|concat)_last_four|sum_all|scalar_mix|all|[-0-9, ]+)$"


class FeaturesSection(Section):
    """Tagging on vectors of a frozen encoder (paper 5.3, Table 7): which layers, and the BiLSTM that reads them.

    `layers` is embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all, scalar_mix, or numbers of
    layers joined by commas, 0 for the embeddings.
    """

    layers: Annotated[
        str,
        Field(pattern=_LAYERS),
        about("Layers of the frozen encoder, by name (concat_last_four ...) or number (0 for the embeddings)."),
    ] = "concat_last_four"
    lstm_size: Annotated[
        int, Field(ge=2, le=65_536, multiple_of=2), about("Width of the BiLSTM, both directions together.")
    ] = 768
    lstm_layers: Annotated[int, Field(ge=1, le=4), about("Layers of the BiLSTM.")] = 2
    dropout: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False), about("Dropout of the BiLSTM.")] = 0.1
    precision: Annotated[Literal["float32", "float16"], about("Number format of the vectors on disk.")] = "float32"


class FinetuneRecipe(Section):
    """A fine-tuning run: task, data, training; the sections of kinds of task are read by those kinds alone.

    `class_weights` weigh the classes in the loss, the tags of words, or the positives of each of several labels: by
    name, or "balanced" by their counts in train. `tune_on_dev` fits temperature and thresholds to dev at the end, the
    thresholds to the deciding score. `keep_restarts` keeps the best model of every seed, the members of an ensemble.
    """

    kind: Annotated[Literal["finetune"], about("Kind of run.")] = "finetune"
    seed: Annotated[int, Field(ge=0, lt=2**32), about("Seed of the new head, data order and dropout.")] = 0
    restarts: Annotated[Count, about("Runs with seeds seed, seed + 1 ...; the best on dev is kept.")] = 1
    keep_restarts: Annotated[bool, about("Keep the best model of every seed, for an ensemble.")] = False
    tune_on_dev: Annotated[bool, about("Fit temperature and thresholds on the dev set at the end.")] = False
    task: Annotated[
        str, row_of("task"), about("Kind of task: single, pair, regression, multilabel, span, tagging or choice.")
    ] = "single"
    class_weights: Annotated[
        Literal["none", "balanced"] | dict[str, Positive],
        about("Class weights in the loss: none, balanced, or one per label."),
    ] = "none"
    auxiliary_lm: Annotated[
        float,
        Field(ge=0.0, le=100.0, allow_inf_nan=False),
        about("Weight of a language-model loss beside the task's (lambda of GPT); for left-to-right models."),
    ] = 0.0
    from_scratch: Annotated[bool, about("Start from random weights instead of the model's.")] = False
    data: FinetuningData = FinetuningData()
    training: FinetuneTraining = FinetuneTraining()
    pair: PairSection = PairSection()
    span: SpanSection = SpanSection()
    tagging: TaggingSection = TaggingSection()
    features: FeaturesSection | None = None
    card: CardSection | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.features is not None and (self.task != "tagging" or self.from_scratch):
            raise ValueError("[features] is for task = 'tagging' with the weights of a trained model")
        if self.class_weights != "none" and self.task in ("regression", "span", "choice"):
            raise ValueError(f"class_weights: task = {self.task!r} has no labels to weigh; leave it at 'none'")
        if self.class_weights != "none" and self.task == "tagging" and self.tagging.crf:
            raise ValueError(
                "class_weights: tagging.crf = true scores whole sentences, not single tags; use one of them"
            )
        if self.tune_on_dev and self.task == "regression":
            raise ValueError("tune_on_dev = true: task = 'regression' has neither a temperature nor thresholds to fit")
        is_named = "task" in self.model_fields_set  # else a --format names it
        if is_named and self.pair.both_orders and self.task not in ("pair", "regression"):
            raise ValueError(f"pair.both_orders = true: task = {self.task!r} does not read pairs of texts")
        if self.auxiliary_lm and self.task in ("span", "tagging"):
            raise ValueError(f"auxiliary_lm = {self.auxiliary_lm:g}: task = {self.task!r} reads tokens, not sequences")
        self.training.refuse_contradictions()
        return self

    def task_settings(self) -> dict[str, Any]:
        """Return the section of the kind of task as plain values; {} for a kind that has none."""
        if self.pair.both_orders:
            return self.pair.model_dump()
        section = getattr(self, self.task, None)
        settings = section.model_dump() if isinstance(section, Section) else {}
        return settings if self.features is None else {**settings, "features": self.features.model_dump()}
