"""Both sides of the speed comparison: individual fine-tuning steps, and prediction from texts to decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import finetuning_mixture
import numpy as np
import torch
from finetuning_peer import Features, decay_groups, peer_kind
from finetuning_peer_span import NUM_BEST, SpanPeer, best_texts, read_questions
from finetuning_tasks import TASKS as PARITY_TASKS

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.config import FinetuneRecipe
from maskloom.inference import Predictor
from maskloom.system.freed_memory import kept_memory
from maskloom.tasks.encoding import ShuffledBatches
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.loop import train_steps
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

TASKS = {**PARITY_TASKS, finetuning_mixture.NAME: finetuning_mixture.TASK}
LEARNING_RATE, SEED = 5e-5, 0
_KEYS = ("input_ids", "token_type_ids", "attention_mask")


class Ours:
    """maskloom with its own data, batches, training loop and predictor."""

    def __init__(self, name: str, source: Path, train: Path, *, max_length: int, batch_size: int, data: Path) -> None:
        self.kind = task_kind(TASKS[name].kind)
        self.reading = _reading(name, data)
        self._settings = FinetuneRecipe(task=self.kind.name).task_settings(self.kind.settings)
        examples = self.kind.read(train, self.reading, self._settings)
        labels = self.kind.label_names(examples, self.reading, self._settings)
        self.task = self.kind.make(labels, None, self._settings)
        self.tokenizer, self.max_length = Tokenizer.load(source), max_length
        self.model, _ = load_model(source, heads=self.task.heads, num_labels=self.task.num_outputs, seed=SEED)
        self.data = self.task.encode(examples, self.tokenizer, max_length, for_training=True)
        self.batches = ShuffledBatches(self.data, batch_size, SEED)
        settings = TrainingSection(steps=1_000_000, batch_size=batch_size, learning_rate=LEARNING_RATE, warmup_steps=0)
        state = TrainState.fresh(self.model, settings)
        self._steps = train_steps(state, self.task.objective, self.batches.next_batch, settings=settings, seed=SEED)

    def save(self, folder: Path) -> None:
        """Write the model in Hugging Face format."""
        save_model(self.model, folder, extra_config=self.task.published_config)
        self.tokenizer.save(folder)

    def round(self, number: int, num_batches: int) -> list[np.ndarray]:
        """Return the row indices of each batch in a round; these are the next batches that the loop reads."""
        return [self.batches.indices(number * num_batches + batch) for batch in range(num_batches)]

    def train(self, batches: list[np.ndarray]) -> None:
        """Run the loop's next steps; `batches` are the rows that it must read for them, as a check."""
        for indices in batches:
            with kept_memory():  # as in a run
                report = next(self._steps)
            assert report.num_tokens == int(self.data.lengths[indices].sum()), "the sides do not see the same rows"

    @torch.inference_mode()
    def loss_and_logits(self, indices: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean loss and the logits of some rows without dropout."""
        self.model.eval()
        batch = self.data.batch(indices)
        found = self.task.objective.outputs(self.model, batch)
        assert found.loss_sum is not None
        return float(found.loss_sum) / sum(self.task.objective.target_counts(batch).values()), found.rows.numpy()

    def read(self, path: Path) -> ReadExamples:
        """Read a file for prediction."""
        return self.kind.read(path, self.reading, self._settings)

    def predictor(self) -> Predictor:
        """Return a predictor with the current weights."""
        return Predictor(self.model, self.tokenizer, task=self.task, max_length=self.max_length)


class Peer:
    """transformers: precomputed features, then the work of the Trainer in each step."""

    def __init__(self, name: str, folder: Path, train: Path, *, max_length: int, batch_size: int) -> None:
        self.kind = peer_kind(TASKS[name], folder, max_length)
        self.model = self.kind.saved_model(folder)
        self.features = self.kind.training_features(train)
        self._max_length, self._batch_size = max_length, batch_size
        self._optimizer = torch.optim.AdamW(decay_groups(self.model, 0.01), lr=LEARNING_RATE, fused=True)

    def train(self, batches: list[np.ndarray], *, is_padded: bool) -> None:
        """Take a step on each batch."""
        for indices in batches:
            batch = self._collate([self.features[index] for index in indices], is_padded=is_padded)
            self.model.train()
            self.model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad()

    @torch.inference_mode()
    def loss_and_logits(self, indices: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean loss and the logits of some rows without dropout, row by row and thus without padding."""
        self.model.eval()
        losses, logits = [], []
        for index in indices:
            output = self.model(**self._collate([self.features[index]], is_padded=False))
            losses.append(float(output.loss))
            is_span = isinstance(self.kind, SpanPeer)
            rows = torch.stack([output.start_logits[0], output.end_logits[0]], -1) if is_span else output.logits
            logits.append(rows.numpy())
        return float(np.mean(losses)), np.concatenate(logits)

    @torch.inference_mode()
    def predict(self, inputs: Any, *, is_sorted: bool, batch_size: int, is_padded: bool) -> Any:
        """Return predictions for rows or questions: probabilities (rows, labels), or the texts of answers."""
        self.model.eval()
        encoded = self._encoded(inputs)
        rows = [{key: encoded[key][i] for key in _KEYS} for i in range(len(encoded["input_ids"]))]
        order = list(range(len(rows)))
        if is_sorted:
            order.sort(key=lambda index: -len(rows[index]["input_ids"]))
        found: list[Any] = [None] * len(rows)
        for first in range(0, len(rows), batch_size):
            chosen = order[first : first + batch_size]
            output = self.model(**self._collate([rows[index] for index in chosen], is_padded=is_padded))
            if isinstance(self.kind, SpanPeer):
                parts: Any = list(zip(output.start_logits.numpy(), output.end_logits.numpy(), strict=True))
            else:
                is_multilabel = self.kind.task.kind == "multilabel"
                parts = (output.logits.sigmoid() if is_multilabel else output.logits.softmax(-1)).numpy()
            for index, part in zip(chosen, parts, strict=True):
                found[index] = part
        return best_texts(inputs, encoded, found) if isinstance(self.kind, SpanPeer) else np.stack(found)

    def _encoded(self, inputs: Any) -> Any:
        if isinstance(self.kind, SpanPeer):
            return self.kind.encoded(inputs)
        texts, pairs = zip(*inputs, strict=True)
        return self.kind.tokenizer(
            list(texts), None if pairs[0] is None else list(pairs), truncation=True, max_length=self._max_length
        )

    def num_slots(self, batches: list[np.ndarray], *, is_padded: bool) -> int:
        """Return the number of positions that the model computes for batches, including padding."""
        lengths = [[len(self.features[index]["input_ids"]) for index in indices] for indices in batches]
        return sum(len(each) * (self._max_length if is_padded else max(each)) for each in lengths)

    def _collate(self, rows: Features, *, is_padded: bool) -> dict[str, torch.Tensor]:
        if is_padded:
            padded = self.kind.tokenizer.pad(
                rows, padding="max_length", max_length=self._max_length, return_tensors="pt"
            )
            return dict(padded)
        return self.kind.collate(rows)


def is_same(ours: Ours, index: int, row: dict[str, Any]) -> bool:
    """Tell whether one of our examples has the tokens and the label of a peer's feature."""
    batch = ours.data.batch(np.array([index]))
    theirs = row["labels"] if "labels" in row else [row["start_positions"], row["end_positions"]]
    assert batch.labels is not None
    return batch.token_ids.tolist() == row["input_ids"] and batch.labels[0].tolist() == theirs


def peer_inputs(name: str, examples: ReadExamples, path: Path) -> Any:
    """Return the peer's inputs: pairs of texts, or the questions of a file."""
    if TASKS[name].kind == "span":
        return read_questions(path)
    return [(example.text, example.pair) for example in examples.examples]


def decisions(predictions: list[dict[str, Any]]) -> Any:
    """Return our predictions in the peer's format."""
    if "answer" in predictions[0]:
        return [row["answer"] for row in predictions]
    return np.array([list(row["probabilities"].values()) for row in predictions])


def _reading(name: str, data: Path) -> ReadingOptions:
    if TASKS[name].kind == "multilabel":
        return ReadingOptions(text_column="1", label_column="2", labels=str(data / "goemotions" / "labels.txt"))
    return ReadingOptions(format=TASKS[name].format)


assert FinetuneRecipe().span.num_best == NUM_BEST, "both sides weigh the same number of starts and ends"
