"""The transformers side of the comparison: fine-tuning as by its Trainer, in a plain loop, for every kind of task.

No code of maskloom is used here: readers, features, batches, decoding and scores follow transformers' example scripts
(run_glue, run_ner, run_swag, run_qa), in plain form. A `PeerKind` holds the parts that are specific to a kind of task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from finetuning_tasks import ParityTask

Features = list[dict[str, Any]]
EVALUATION_BATCH = 64
HEADS = ("classifier.", "qa_outputs.")


class PeerKind(ABC):
    """One kind of task, handled as in its example script."""

    def __init__(self, task: ParityTask, folder: Path, max_length: int) -> None:
        from transformers import AutoTokenizer

        self.task = task
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.max_length = max_length

    @abstractmethod
    def new_model(self, folder: Path, train: Path) -> Any:
        """Return the encoder of a folder with a newly initialised head."""

    @abstractmethod
    def saved_model(self, folder: Path) -> Any:
        """Return a fine-tuned model with its saved head."""

    @abstractmethod
    def training_features(self, path: Path) -> Features:
        """Return the features of a training file, with labels."""

    @abstractmethod
    def score(self, model: Any, path: Path) -> dict[str, float]:
        """Return the scores of a model on a labelled file."""

    def collate(self, rows: Features) -> dict[str, torch.Tensor]:
        """Pad a batch to its longest row."""
        return dict(self.tokenizer.pad(rows, return_tensors="pt"))

    @torch.inference_mode()
    def outputs(self, model: Any, features: Features, keys: tuple[str, ...]) -> list[Any]:
        """Return the named outputs of the model, batch by batch, in the given order."""
        model.eval()
        results = []
        for first in range(0, len(features), EVALUATION_BATCH):
            rows = [
                {key: row[key] for key in ("input_ids", "token_type_ids", "attention_mask")}
                for row in features[first : first + EVALUATION_BATCH]
            ]
            output = model(**self.collate(rows))
            results.append(tuple(output[key] for key in keys))
        return results


def peer_kind(task: ParityTask, folder: Path, max_length: int) -> PeerKind:
    """Return the `PeerKind` of a task."""
    from finetuning_peer_choice import ChoicePeer
    from finetuning_peer_span import SpanPeer
    from finetuning_peer_tagging import TaggingPeer
    from finetuning_peer_text import TextPeer

    kinds = {"span": SpanPeer, "tagging": TaggingPeer, "choice": ChoicePeer}
    return kinds.get(task.kind, TextPeer)(task, folder, max_length)


class BatchesOfLikeLength:
    """Batch sampler in the style of the Trainer's group_by_length, with windows of 16 batches."""

    def __init__(self, features: Features, batch_size: int) -> None:
        self._lengths = [len(row["input_ids"]) for row in features]
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield an epoch of batches: sort shuffled rows by length within each window, cut, and shuffle the batches."""
        order, window = torch.randperm(len(self._lengths)).tolist(), 16 * self._batch_size
        for first in range(0, len(order), window):
            rows = sorted(order[first : first + window], key=lambda row: self._lengths[row])
            batches = [rows[at : at + self._batch_size] for at in range(0, len(rows), self._batch_size)]
            yield from (batches[place] for place in torch.randperm(len(batches)).tolist())


def train_with_transformers(
    task: ParityTask,
    seed: int,
    folder: Path,
    train: Path,
    dev: Path,
    recipe: dict[str, Any],
    num_rows: int,
    *,
    is_grouped: bool = False,
    only_last_score: bool = False,
) -> list[dict[str, float]]:
    """Fine-tune like the Trainer and return the dev scores after each epoch, or only after the last step.

    An epoch has `num_rows` // batch size steps; a recipe may specify the total number of steps instead of epochs.
    `is_grouped` groups rows of similar length into batches instead of arbitrary rows.
    """
    from transformers import get_linear_schedule_with_warmup, set_seed

    set_seed(seed)
    training = recipe["training"]
    kind = peer_kind(task, folder, recipe["data"]["max_length"])
    model = kind.new_model(folder, train)
    optimizer = torch.optim.AdamW(
        decay_groups(model, training["weight_decay"], training.get("head_learning_rate")),
        lr=training["learning_rate"],
        betas=(training["adam_beta1"], training["adam_beta2"]),
        eps=training["adam_epsilon"],
    )
    epoch = num_rows // training["batch_size"]
    steps = training.get("steps") or int(num_rows / training["batch_size"] * training["epochs"])
    schedule = get_linear_schedule_with_warmup(optimizer, int(training["warmup_ratio"] * steps), steps)
    features = kind.training_features(train)
    how: dict[str, Any] = {"batch_size": training["batch_size"], "shuffle": True}
    if is_grouped:
        how = {"batch_sampler": BatchesOfLikeLength(features, training["batch_size"])}
    loader = torch.utils.data.DataLoader(features, collate_fn=kind.collate, **how)
    scores: list[dict[str, float]] = []
    taken = 0
    while taken < steps:
        for batch in loader:
            model.train()
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            taken += 1
            if taken == steps or (taken % epoch == 0 and not only_last_score):
                scores.append(kind.score(model, dev))
            if taken == steps:
                break
    return scores


def decay_groups(
    model: torch.nn.Module, weight_decay: float, head_learning_rate: float | None = None
) -> list[dict[str, Any]]:
    """Group parameters like the Trainer: no decay for biases and LayerNorm; a new head may have its own rate."""
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = "bias" not in name and "LayerNorm" not in name
        is_head = head_learning_rate is not None and name.startswith(HEADS)
        groups.setdefault((is_head, decays), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if decays else 0.0}
        | ({"lr": head_learning_rate} if is_head else {})
        for (is_head, decays), parameters in groups.items()
    ]
