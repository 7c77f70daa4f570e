"""The recipe section [training]: settings of steps, optimisers and schedules (BERT paper 3.4, 3.5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from maskloom.errors import ConfigError
from maskloom.rows import row_of
from maskloom.sections import MOST_STEPS, Count, Length, Positive, Rate, Section, key
from maskloom.system.launch import DEVICE_NAMES

Minutes = Annotated[float, Field(ge=0.001)]
NotNegative = Annotated[float, Field(ge=0.0)]
BatchSize = Annotated[int, Field(ge=1, le=2**20)]  # the largest in published recipes (LAMB) is 2**16
CountOrNone = Annotated[int, Field(ge=0, le=MOST_STEPS)]


class Extension(Section):
    """A change to a run's planned number of steps, made at one of its steps."""

    at: Count = Field(description="Step from which the new number of steps applies.")
    steps: Count = Field(description="Number of steps planned until then.")


class TrainingSection(Section):
    """Optimisation (paper 3.4, 3.5).

    The schedule scales the learning rates of heads and of all other parameters alike. After a loss or gradient that is
    not finite, "skip" continues with the next batch; "rewind" returns to the last checkpoint and continues with the
    batches after the bad one. With `minutes`, the learning rate follows the fraction of the time used, and steps and
    epochs are ignored. `extensions` are written by `--resume --steps N` or `--epochs N`, so that the recipe records the
    whole schedule; they apply to the last phase.
    """

    steps: Count = key(10_000, "Optimiser steps.")
    batch_size: BatchSize = key(32, "Sequences per step, over all processes.")
    micro_batch_size: Count | Literal["auto"] | None = key(
        None, "Sequences per forward and backward pass, accumulating gradients; auto: as many as fit into memory."
    )
    learning_rate: Positive = key(1e-4, "Peak learning rate.")
    head_learning_rate: Positive | None = key(None, "Peak learning rate of the heads; defaults to learning_rate.")
    warmup_ratio: Rate = key(0.1, "Fraction of the steps over which the learning rate rises from 0.")
    warmup_steps: CountOrNone | None = key(None, "Number of warm-up steps; overrides warmup_ratio.")
    schedule: Annotated[str, row_of("training.schedule")] = key(
        "linear",
        "Learning rate after warm-up: linear or cosine decay to 0, google as in BERT's published code, inverse_sqrt "
        "of the step (the Transformer's, also called noam), or constant.",
    )
    optimizer: Annotated[str, row_of("training.optimizer")] = key(
        "adamw", "adamw (with bias correction), or bert_adam (without it, as in BERT's published code)."
    )
    adam_beta1: float = key(0.9, "Decay rate of the running mean of gradients.", ge=0.0, lt=1.0)
    adam_beta2: float = key(0.999, "Decay rate of the running mean of squared gradients.", ge=0.0, lt=1.0)
    adam_epsilon: Positive = key(1e-6, "Added to the square root of the running mean of squared gradients.")
    weight_decay: NotNegative = key(0.01, "Decoupled weight decay; not applied to biases and norms.")
    max_grad_norm: NotNegative = key(1.0, "Maximum global L2 norm of the gradient; 0 for no maximum.")
    on_nonfinite: Literal["stop", "skip", "rewind"] = key("stop", "What to do after a non-finite loss or gradient.")
    max_skips: Count = key(3, "Maximum batches skipped in a row, or rewinds in total; beyond that, the run ends.")
    save_every: Count | None = key(
        None, "Steps between checkpoints; by default a tenth of a phase's first plan or, in fine-tuning, an evaluation."
    )
    evaluate_every: Count | None = key(
        None, "Steps between evaluations; by default a tenth of a phase's first plan or, in fine-tuning, an epoch."
    )
    log_every: Count = key(10, "Steps between log lines in events.jsonl.")
    log_to: list[Literal["tensorboard"]] = key(
        [],
        "Additional logs of steps and evaluations: tensorboard writes RUN/tensorboard (needs the tensorboard extra).",
    )
    keep_checkpoints: Count = key(2, "Number of most recent checkpoints to keep.")
    keep_best: bool = key(
        False, "Also keep the checkpoint best on held-out text, and write best-model/; pre-training only."
    )
    max_evaluation_instances: Count | None = key(
        None, "Maximum held-out sequences per evaluation; defaults to all; pre-training only."
    )
    num_threads: int | None = key(None, "Threads per process; defaults to PyTorch's choice.", ge=1, le=1024)
    device: str = key(
        "auto",
        "Device to train on: auto (a GPU if there is one), cpu, cuda, cuda:N or mps.",
        pattern=f"^({DEVICE_NAMES})$",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "fastest"] = key(
        "auto",
        "Precision of matrix products; weights and losses stay fp32. auto: bf16 on a GPU that supports it, else fp32. "
        "fastest: the same, but bf16 on a CPU too if it measures faster at the start.",
    )
    activation_checkpointing: bool = key(
        False, "Recompute blocks in the backward pass: less memory, about a third more time."
    )
    compile: bool = key(False, "Compile blocks with torch.compile, which takes minutes; requires a C compiler.")
    parallel: Literal["ddp", "fsdp", "hsdp"] = key(
        "ddp", "What each process holds: the whole model, a shard, or a shard of its machine's copy."
    )
    rank_timeout: float = key(
        30.0, "Seconds that one process may keep the others waiting before the run ends.", ge=3.0, le=86_400.0
    )
    minutes: Minutes | None = key(
        None,
        "Minutes to train instead of steps or epochs, divided among phases or seeds; the schedule follows the clock.",
    )
    extensions: list[Extension] = Field(default_factory=list)

    def resolved_warmup_steps(self) -> int:
        """Return the warm-up steps: `warmup_steps`, or `warmup_ratio` of the first planned steps, rounded down."""
        return int(self.warmup_ratio * self.first_planned_steps()) if self.warmup_steps is None else self.warmup_steps

    def first_planned_steps(self) -> int:
        """Return the number of steps that was planned before any extension."""
        return self.extensions[0].steps if self.extensions else self.steps

    def refuse_contradictions(self, phase: Phase | None = None, place: str = "training") -> None:
        """Raise ValueError for counts that contradict each other, in this section or in a phase of it."""
        own = set() if phase is None else phase.model_fields_set
        both = self if phase is None else self.model_copy(update=phase.model_dump(exclude_none=True))

        def told(name: str) -> str:
            return f"{place if name in own else 'training'}.{name}"

        for part, whole, share in (("warmup_steps", "steps", 10), ("micro_batch_size", "batch_size", 1)):
            count, limit = getattr(both, part), getattr(both, whole)
            if isinstance(count, int) and limit is not None and count > limit:
                less = f"lower it with --set {told(part)}={max(1, limit // share)}"
                raise ValueError(f"{told(part)} = {count}: it may not exceed {told(whole)} = {limit}; {less}")
        if self.minutes is not None and both.warmup_steps is not None:
            given = f"{told('warmup_steps')} = {both.warmup_steps}"
            raise ValueError(f"{given}: with training.minutes, give training.warmup_ratio instead")
        if self.minutes is not None and self.schedule == "inverse_sqrt" and self.warmup_ratio == 0.0:
            raise ValueError(
                f"training.warmup_ratio = 0 with training.minutes = {self.minutes:g}: training.schedule = "
                "'inverse_sqrt' falls from the end of the warm-up on, so the rate would be near 0 at once; give a "
                "ratio above 0 or another schedule"
            )
        starts = [extension.at for extension in self.extensions]
        if self.minutes is not None and starts:
            raise ValueError(
                f"training.minutes = {self.minutes:g}: this run was extended with --steps, so its length is in "
                "steps; omit --minutes"
            )
        if starts != sorted(set(starts)) or (starts and starts[-1] >= (both.steps or MOST_STEPS)):
            raise ValueError(
                f"training.extensions at {starts}: each must begin after the previous one and before {told('steps')}"
            )


class Phase(Section):
    """One phase of pre-training at one sequence length; absent keys come from [data] and [training]."""

    max_length: Length = Field(ge=5, description="Maximum sequence length of the phase in tokens.")
    steps: Count = Field(
        description="Steps. After one of the same max_length, a phase continues in its text unless state is carried."
    )
    batch_size: BatchSize | None = key(None, "Sequences per step; defaults to training.batch_size.")
    learning_rate: Positive | None = key(None, "Peak learning rate; defaults to training.learning_rate.")
    warmup_steps: CountOrNone | None = key(None, "Number of warm-up steps; defaults to the warm-up of [training].")


class FinetuneTraining(TrainingSection):
    """Fine-tuning counts epochs unless steps are given (paper 3.5: batch 16 or 32, 2e-5 to 5e-5, 3 or 4 epochs).

    `group_by_length` batches examples of similar length; as padding is never computed, it gains little speed.
    """

    steps: Count | None = key(None, "Optimiser steps; by default, epochs decide.")  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    epochs: float = key(3.0, "Passes over the training data; the number of steps is rounded down.", gt=0.0, le=1e6)
    learning_rate: Positive = key(5e-5, "Peak learning rate; by default 1e-3 for a new model ([model]).")
    group_by_length: bool = key(False, "Group examples of similar length into batches.")
    patience: Count | None = key(
        None, "Stop a seed after this many evaluations without a better dev score; by default, no early stopping."
    )
    average_checkpoints: int = key(
        0, "Make the model the mean of this many last checkpoints; 0 uses the best on dev.", ge=0, le=1000
    )

    def with_steps(self, num_examples: int) -> TrainingSection:
        """Return the section with its steps, at least 1; raises ConfigError if warm-up or an extension exceeds them."""
        steps = self.steps or max(1, int(num_examples / self.batch_size * self.epochs))
        if self.minutes is not None:
            steps = MOST_STEPS
        own = FinetuneTraining.model_fields.keys() - TrainingSection.model_fields.keys()
        counted = TrainingSection(steps=steps, **self.model_dump(exclude={"steps", *own}))
        if (warmup := counted.resolved_warmup_steps()) > steps:
            rule = f"{num_examples} examples give only {steps} steps; lower it with --set"
            raise ConfigError(f"training.warmup_steps = {warmup}: {rule} training.warmup_steps={max(1, steps // 10)}")
        if self.extensions and (at := self.extensions[-1].at) >= steps:
            raise ConfigError(f"training.extensions at {at}: {num_examples} examples give only {steps} steps")
        return counted
