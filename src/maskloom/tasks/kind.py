"""A kind of task: what everything else is told of it. Its rows are read without torch, which only `make` imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maskloom.sections import Section
from maskloom.tasks.catalog import Kind
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.judging import Verdict, judge_first_value
from maskloom.tasks.settings import KindSettings
from maskloom.tasks.tables import ReadingOptions

if TYPE_CHECKING:
    from maskloom.tasks.task import Task


@dataclass(frozen=True)
class TaskKind:
    """One kind of task: how its files are read, what labels they have, and how the task is made.

    `iterate(path, options, settings, needs_label=, report=)` yields examples; `label_names(train, options, settings)`
    gives the labels in the order of their ids; `check(train, dev)` raises DataError for data that cannot be learned
    from; `make(labels, primary, settings)` returns the task and raises ValueError for a score that it does not have.
    These settings are an object of the row's `settings`, which has the keys of `section`, the recipe's section under
    the name of the kind, and of `data_settings(train)`: what the training data says of every task like it.
    `examples_at_once` bounds how many are encoded and held at a time. `example_of(item, number)` makes an example of
    what is handed over in Python.

    `takes` says to a person what it reads, `pipeline_tag` what a model hub calls it. Models of a kind that
    `names_labels` have names for their outputs. `softmax_over` is what the probabilities of a unit add up to 1 over:
    the labels of each row, or its rows; None for scores and for labels that are independent. With `is_windowed` the
    units of one example compete by their logits. One that `reads_tokens` predicts lists of what it finds in a text,
    and needs the marks of BERT around it. Without our settings, a model is of the kind if it has the head `known_by`.

    `judge(example, prediction, target, labels)` compares a prediction with the truth, for people; the targets of a task
    become one for each example by `targets_by_example(encoded, targets)`. `label_ids(data, names)` gives the targets
    themselves where that needs no more than the examples, and raises DataError for an unknown label: files of such
    kinds are checked before torch is imported. `first_settings` are those with which a file is read before more is
    known.

    A kind that `has_both_orders` reads pairs of texts that may be swapped; models of a kind `with_pairs` may have been
    trained on files of that other kind, of pairs. One that `reads_folders` takes a folder for a file, and one that
    `predicts_on_text` takes raw text where the files with labels have a format.
    """

    name: Kind
    iterate: Callable[..., Iterator[Any]]
    check: Callable[[ReadExamples, ReadExamples], None]
    make: Callable[[tuple[str, ...], str | None, Any], Task]
    example_of: Callable[[Any, int], Any]
    label_names: Callable[[ReadExamples, ReadingOptions, Any], tuple[str, ...]] = lambda *_: ()
    data_settings: Callable[[ReadExamples], dict[str, Any]] = lambda _: {}
    examples_at_once: int = 4096
    takes: str = "sentences"
    pipeline_tag: str = "text-classification"
    section: type[Section] | None = None
    settings: type[KindSettings] = KindSettings
    names_labels: bool = True
    softmax_over: Literal["labels", "rows"] | None = "labels"
    is_windowed: bool = False
    reads_tokens: bool = False
    known_by: str = ""
    judge: Callable[[Any, dict[str, Any], Any, tuple[str, ...]], Verdict] = judge_first_value
    targets_by_example: Callable[[Any, Any], Any] = lambda _, targets: targets
    label_ids: Callable[[ReadExamples, tuple[str, ...]], Any] | None = None
    first_settings: Mapping[str, Any] = field(default_factory=dict)
    has_both_orders: bool = False
    with_pairs: Kind | None = None
    reads_folders: bool = False
    predicts_on_text: bool = False

    @property
    def is_scale(self) -> bool:
        """Whether outputs are values on a scale, without probabilities."""
        return not (self.softmax_over or self.names_labels)

    def read(
        self,
        path: str | Path,
        options: ReadingOptions | None = None,
        settings: KindSettings | None = None,
        *,
        needs_label: bool = True,
    ) -> ReadExamples:
        """Read a whole file. Raises DataError, with file and line, for wrong data and a file without usable rows."""
        how = (path, options or ReadingOptions(), settings or self.settings())
        return ReadExamples.of(path, lambda report: self.iterate(*how, needs_label=needs_label, report=report))
