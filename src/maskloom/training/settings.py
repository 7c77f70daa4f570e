"""The recipe section [training]: what steps, optimisers and schedules take (BERT paper 3.4, 3.5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from maskloom.errors import ConfigError
from maskloom.rows import row_of
from maskloom.sections import MOST_STEPS, Count, Length, Positive, Rate, Section, about
from maskloom.system.launch import DEVICE_NAMES

Minutes = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
BatchSize = Annotated[int, Field(ge=1, le=2**20)]  # the largest of the published recipes (LAMB) is 2**16
CountOrNone = Annotated[int, Field(ge=0, le=MOST_STEPS)]


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
