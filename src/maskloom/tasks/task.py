"""A task: how its data is read and encoded, which head and loss it takes, how outputs are decoded and scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from maskloom.config import Section
from maskloom.metrics import Metric
from maskloom.objectives.task_objective import TaskObjective
from maskloom.tasks.catalog import Kind
from maskloom.tasks.columns import ReadingOptions
from maskloom.tasks.encoding import EncodedData
from maskloom.tasks.examples import ReadExamples

# One array (rows, width) a unit: the rows that the objective gives for it.
Outputs = Sequence[np.ndarray]


@dataclass(frozen=True)
class Task:
    """A kind of task with its labels, as plain functions.

    `heads` names the heads of its models. `encode(data, tokenizer, max_length, for_training=)` turns examples into
    token ids; for training, what cannot be learned from is left out, counted and listed. `decide(encoded, outputs)`
    gives what the metric takes beside `targets(encoded)`, or None where the data has no labels; `decode(encoded,
    outputs)` one dictionary an example, in order. `settings` are the kind's own, plain values that are kept beside the
    model; `published_config` are the keys of config.json that say what its outputs mean.

    `tune(encoded, outputs, leave_out)` returns settings fitted to labelled data by name, plain values, but those left
    out; it is None for a kind that has none to fit. `scored_logits(encoded, outputs)` gives what becomes the
    probabilities of the targets, (examples, classes) for softmax where targets are (examples,) ids, (examples, labels)
    for the logistic function where they are 0/1, without any temperature; None for a kind whose probabilities are not
    calibrated.

    `forms` are further forms of files of predictions: by suffix, the lines for an example and what was decoded for it.
    `frames` say what stands before, between and after the examples in a form that needs it.

    `example_of` is the kind's where its settings do not change how an example is made in Python.

    `head_options` has what heads take beside sizes and labels, by the name of the head. With `freezes_encoder` the
    heads alone are trained, on vectors that the encoder gives once.
    """

    kind: Kind
    labels: tuple[str, ...]
    primary: str
    heads: tuple[str, ...]
    objective: TaskObjective
    encode: Callable[..., EncodedData]
    decide: Callable[[EncodedData, Outputs], Any]
    decode: Callable[[EncodedData, Outputs], list[dict[str, Any]]]
    metric: Callable[[], Metric]
    targets: Callable[[EncodedData], Any] = attrgetter("labels")
    published_config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    tune: Callable[..., dict[str, Any]] | None = None
    scored_logits: Callable[[EncodedData, Outputs], np.ndarray] | None = None
    forms: Mapping[str, Callable[[Any, dict[str, Any]], list[str]]] = field(default_factory=dict)
    frames: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    example_of: Callable[[Any, int], Any] | None = None
    head_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    freezes_encoder: bool = False

    @property
    def temperature(self) -> float:
        """What its logits are divided by before they become probabilities."""
        return float(self.settings.get("temperature", 1.0))

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head: one a label, and one for a score."""
        return max(len(self.labels), 1)


@dataclass(frozen=True)
class TaskKind:
    """One kind of task: how its files are read, what labels they have, and how the task is made.

    `iterate(path, options, settings, needs_label=, report=)` yields examples; `label_names(train, options, settings)`
    gives the labels in the order of their ids; `check(train, dev)` raises DataError for data that cannot be learned
    from; `make(labels, primary, settings)` returns the task and raises ValueError for a score that it does not have.
    `settings` are the kind's own: its recipe section as plain values, and what `data_settings(train)` adds: what the
    training data says of every task like it. `examples_at_once` bounds how many are encoded and held at a time.
    `example_of(item, number)` makes an example of what is handed over in Python.

    `takes` says to a person what it reads, `pipeline_tag` what a model hub calls it, and `section` is its section of
    the recipe. Models of a kind that `names_labels` have names for their outputs. `softmax_over` is what the
    probabilities of a unit add up to 1 over: the labels of each row, or its rows; None for scores and for labels that
    are independent. With `is_windowed` the units of one example compete by their logits. Ensembles of kinds that are
    `per_text` may mix tokenizers, as a text has one row whatever its tokens.
    """

    name: Kind
    iterate: Callable[..., Iterator[Any]]
    check: Callable[[ReadExamples, ReadExamples], None]
    make: Callable[[tuple[str, ...], str | None, Mapping[str, Any]], Task]
    example_of: Callable[[Any, int], Any]
    label_names: Callable[[ReadExamples, ReadingOptions, Mapping[str, Any]], tuple[str, ...]] = lambda *_: ()
    data_settings: Callable[[ReadExamples], dict[str, Any]] = lambda _: {}
    examples_at_once: int = 4096
    takes: str = "sentences"
    pipeline_tag: str = "text-classification"
    section: type[Section] | None = None
    names_labels: bool = True
    softmax_over: Literal["labels", "rows"] | None = "labels"
    is_windowed: bool = False
    per_text: bool = False

    def read(
        self,
        path: str | Path,
        options: ReadingOptions | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        needs_label: bool = True,
    ) -> ReadExamples:
        """Read a whole file. Raises DataError, with file and line, for wrong data and a file without usable rows."""
        how = (path, options or ReadingOptions(), settings or {})
        return ReadExamples.of(path, lambda report: self.iterate(*how, needs_label=needs_label, report=report))
