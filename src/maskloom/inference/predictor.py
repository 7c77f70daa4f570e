"""A model folder opened for use: vectors, predictions and filled masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from maskloom.checkpoints.huggingface import load_model, read_config
from maskloom.config import ConfigError, DataError
from maskloom.data.batch import ClassificationBatch
from maskloom.inference.model_folder import load_tokenizer, read_settings, resolve_model_folder
from maskloom.layers.int8 import quantize_dense_layers
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.models.assembled import EncoderWithHeads
from maskloom.tasks.catalog.row import Kind
from maskloom.tasks.classification import kind_of_problem
from maskloom.tasks.encoding import EncodedData, batches_by_length, encode_examples
from maskloom.tasks.evaluation import ModelOutputs, model_outputs, tokens_at_once
from maskloom.tasks.examples import ReadExamples, ReadingReport
from maskloom.tasks.inputs import checked_text, text_example
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.labels import check_distinct
from maskloom.tasks.task import Task
from maskloom.text.tokenizer import Tokenizer

Pooling = Literal["mean", "cls"]
_MOST_LABELS = 1_000_000
TextOrPair = str | tuple[str, str]


class Predictor:
    """Texts in, numpy arrays and dictionaries out; batches are sorted by length and bounded in tokens.

    `task` is None for a model without the head of a task. Texts longer than `max_length` tokens are cut, and the number
    of texts cut so far stands in `num_truncated`. `max_tokens` bounds a batch; by default it is what suits the device.
    """

    def __init__(
        self,
        model: EncoderWithHeads,
        tokenizer: Tokenizer,
        *,
        task: Task | None = None,
        max_length: int = 512,
        settings: dict[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.task = task
        self.max_length = max_length
        self.settings = settings or {}
        self.max_tokens = max_tokens
        self.num_truncated = 0

    @classmethod
    def load(cls, folder: str | Path, *, max_length: int | None = None, int8: bool = False) -> Predictor:
        """Open a model folder in Hugging Face layout, or a run folder.

        `max_length` defaults to the length of fine-tuning, else to what the model can take. `int8` computes the
        encoder's dense layers in eight-bit integers, quantised as they are read: faster, and close to fp32. Raises
        DataError for a folder that is not a model, ConfigError for a length that the model cannot take, or for `int8`
        on a processor that lacks it.
        """
        path = resolve_model_folder(folder)
        model, _report = load_model(path)
        tokenizer = load_tokenizer(path)
        settings = read_settings(path)
        limit = min(model.encoder.config.max_position_embeddings, tokenizer.max_length)
        if max_length is not None and not 3 <= max_length <= limit:
            raise ConfigError(f"max_length {max_length}: {path} takes 3 to {limit} tokens")
        length = max_length or min(settings.get("max_length", limit), limit)
        if int8:
            quantize_dense_layers(model.encoder)
        return cls(model, tokenizer, task=_task_of(path, model, settings), max_length=length, settings=settings)

    @property
    def hidden_size(self) -> int:
        """Width of the vectors that `encode` returns."""
        return self.model.encoder.config.hidden_size

    def encode(self, texts: Sequence[TextOrPair], *, pooling: Pooling = "mean", normalize: bool = False) -> np.ndarray:
        """Return one vector a text, (texts, hidden) float32, in order.

        `mean` averages the last hidden states of all tokens of a text, [CLS] and [SEP] included; `cls` is the last
        hidden state of [CLS], before the pooler. `normalize` scales each vector to length 1.
        """
        if pooling not in ("mean", "cls"):
            raise ConfigError(f"pooling {pooling!r:.80} is not mean or cls")
        vectors = self._outputs(texts, lambda batch: self._pooled(batch, pooling), self.hidden_size)
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def predict(self, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """Return one prediction an input, in order.

        Inputs are texts or pairs of texts for classes (`{"label", "probabilities"}`), several labels (`{"labels",
        "probabilities"}`) and regression (`{"score"}`); sentences for tags (`{"words", "tags", "entities" ...}`);
        (question, context) for answers (`{"answer", "candidates" ...}`); (context, choices) for multiple choice
        (`{"choice", "probabilities" ...}`). Raises ConfigError when the model has no head of a task or wants pairs and
        gets single texts, DataError for an input of another form.
        """
        task = self.required_task()
        if task.heads == ("classifier",):
            self.check_pairing(inputs)
        return self.predict_examples(examples_of_inputs(inputs, KINDS[task.kind].example_of))

    def predict_examples(self, data: ReadExamples) -> list[dict[str, Any]]:
        """Return one prediction an example of the model's own kind of task, in order, as its task decodes it."""
        task = self.required_task()
        if not data.examples:
            return []
        encoded = self.encoded(data)
        self.num_truncated += encoded.account().get("num_truncated_examples", 0)
        return task.decode(encoded, self.outputs(encoded).rows)

    def encoded(self, data: ReadExamples) -> EncodedData:
        """Return examples of the model's own kind of task as token ids."""
        return self.required_task().encode(data, self.tokenizer, self.max_length)

    def outputs(self, encoded: EncodedData) -> ModelOutputs:
        """Return the outputs of the model's head for encoded examples; raises DataError for broken weights."""
        try:
            return model_outputs(self.model, self.required_task().objective, encoded, max_tokens=self.max_tokens)
        except ValueError as error:
            raise DataError(str(error)) from None

    def required_task(self) -> Task:
        """Return the task that the model was fine-tuned for; raises ConfigError when there is none."""
        if self.task is None:
            raise ConfigError("this model has no head of a task; fine-tune it first (maskloom finetune)")
        return self.task

    @torch.inference_mode()
    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """Return, for each [MASK] of a text in order, the `top_k` likeliest tokens with their probabilities.

        Raises ConfigError when the model has no masked-LM head, DataError when the text has no [MASK] that fits or the
        model's outputs are not finite.
        """
        if "mlm" not in self.model.heads:
            raise ConfigError("this model has no masked-LM head; pre-train one, or take a model that kept its head")
        if top_k < 1:
            raise ConfigError(f"top_k {top_k}: at least 1 is expected")
        checked_text(text, 0)
        vocabulary = self.tokenizer.vocabulary
        encoding = self.tokenizer.encode(text, max_length=self.max_length, parse_special_tokens=True)
        ids = np.asarray(encoding.ids, dtype=np.int64)
        positions = np.flatnonzero(ids == vocabulary.mask_id)
        num_asked = text.count(vocabulary.tokens[vocabulary.mask_id])
        if len(positions) < max(num_asked, 1):
            raise DataError(
                f"{text[:60]!r:.80}: {num_asked} [MASK] in the text, {len(positions)} within the first "
                f"{self.max_length} tokens; at least one is needed and all must fit"
            )
        batch = ClassificationBatch(
            token_ids=ids,
            segment_ids=np.asarray(encoding.segments, dtype=np.int64),
            lengths=np.array([len(ids)]),
            labels=None,
            indices=np.zeros(1, dtype=np.int64),
        )
        hidden = self._hidden(batch)[0][torch.from_numpy(positions)]
        probabilities = self.model.heads["mlm"](hidden).float().softmax(-1)
        _finite(probabilities.cpu().numpy())
        best = probabilities.topk(min(top_k, probabilities.shape[-1]))
        return [
            [
                {"token": vocabulary.tokens[token], "token_id": token, "probability": probability}
                for probability, token in zip(row_values, row_tokens, strict=True)
            ]
            for row_values, row_tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    @torch.inference_mode()
    def _outputs(
        self, texts: Sequence[TextOrPair], run: Callable[[ClassificationBatch], Tensor], width: int
    ) -> np.ndarray:
        """Return the rows that `run` gives for each text, in the order of the texts."""
        outputs = np.empty((len(texts), width), dtype=np.float32)
        if not len(texts):
            return outputs
        examples = examples_of_inputs(texts, text_example).examples
        data = encode_examples(examples, self.tokenizer, max_length=self.max_length)
        self.num_truncated += data.num_truncated_examples
        for batch in batches_by_length(data, max_tokens=self.max_tokens or tokens_at_once(self.model)):
            outputs[batch.indices] = run(batch).cpu().numpy()
        return _finite(outputs)

    def _hidden(self, batch: ClassificationBatch) -> tuple[Tensor, SequenceLayout]:
        device = next(self.model.parameters()).device
        layout = SequenceLayout.from_lengths(batch.lengths, device)
        token_ids, segment_ids = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.segment_ids)
        output = self.model.encoder.encode_packed(token_ids.to(device), segment_ids.to(device), layout)
        return output.last_hidden_state, layout

    def _pooled(self, batch: ClassificationBatch, pooling: Pooling) -> Tensor:
        hidden, layout = self._hidden(batch)
        if pooling == "cls":
            return hidden[layout.first_positions].float()
        return torch.segment_reduce(hidden.float(), "mean", lengths=torch.from_numpy(batch.lengths).to(hidden.device))

    def check_pairing(self, texts: Sequence[TextOrPair]) -> None:
        """Raise ConfigError for single texts where the model was fine-tuned on pairs, and for pairs where not."""
        takes_pairs = self.settings.get("takes_pairs")
        if takes_pairs is None or isinstance(texts, str):
            return
        for number, text in enumerate(texts):
            if takes_pairs == isinstance(text, str):
                wanted, got = ("a pair of texts", "one text") if takes_pairs else ("one text", "a pair of texts")
                raise ConfigError(f"input {number}: this model was fine-tuned on {wanted} an example, this is {got}")


def _finite(outputs: np.ndarray) -> np.ndarray:
    if not np.isfinite(outputs).all():
        raise DataError("the model's outputs are not finite numbers; its weights are broken")
    return outputs


def _task_of(path: Path, model: EncoderWithHeads, settings: dict[str, Any]) -> Task | None:
    config = read_config(path)
    names = _label_names(path, config)
    kind = settings.get("kind") or _kind_of(model, config, len(names))
    if kind is None:
        return None
    if kind not in KINDS:
        raise DataError(f"{path}: maskloom.json: kind {kind!r:.80} is not known")
    has_labels = kind not in ("regression", "span", "choice")
    try:
        task = KINDS[kind].make(names if has_labels else (), settings.get("primary"), settings.get("settings", {}))
    except ValueError as error:
        raise DataError(f"{path}: maskloom.json: {error}") from None
    missing = [head for head in task.heads if head not in model.heads]
    if missing:
        raise DataError(f"{path}: maskloom.json: a {kind} task needs the head {missing[0]!r}, which the weights lack")
    num_outputs = getattr(model.heads[task.heads[0]], "num_labels", None)
    if has_labels and len(names) != num_outputs:
        raise DataError(f"{path / 'config.json'}: names {len(names)} labels, the weights have {num_outputs} outputs")
    return task


def _kind_of(model: EncoderWithHeads, config: dict[str, Any], num_labels: int) -> Kind | None:
    """Return the kind of task that the heads of a model are for, or None."""
    if "classifier" in model.heads:
        return kind_of_problem(config.get("problem_type"), num_labels)
    by_head: dict[str, Kind] = {"span": "span", "tagger": "tagging", "choice": "choice"}
    return next((kind for head, kind in by_head.items() if head in model.heads), None)


def _label_names(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Return the label names of a config in the order of ids; two made-up ones where it names none, as published."""
    named = config.get("id2label")
    if named is None:
        num_labels = config.get("num_labels", 2)
        if type(num_labels) is not int or not 0 <= num_labels <= _MOST_LABELS:
            raise DataError(
                f"{path / 'config.json'}: num_labels = {num_labels!r:.80}: 0 to {_MOST_LABELS:,} is expected"
            )
        return tuple(f"LABEL_{number}" for number in range(num_labels))
    try:
        by_id = {int(number): str(name) for number, name in named.items()}
    except (AttributeError, ValueError):
        raise DataError(f"{path / 'config.json'}: id2label is not a mapping of ids to names") from None
    if sorted(by_id) != list(range(len(by_id))):
        raise DataError(
            f"{path / 'config.json'}: id2label has ids {sorted(by_id)!s:.200}; expected 0 to {len(by_id) - 1}"
        )
    names = tuple(by_id[number] for number in range(len(by_id)))
    check_distinct(names, f"{path / 'config.json'}: id2label")
    return names


def examples_of_inputs(inputs: Sequence[Any], example_of: Callable[[Any, int], Any]) -> ReadExamples:
    """Return what is handed over in Python as examples; raises DataError, with its place, for a wrong one."""
    if isinstance(inputs, str):
        raise DataError("a list of texts is expected, this is one string; put it in a list")
    examples = [example_of(item, number) for number, item in enumerate(inputs)]
    return ReadExamples(examples, ReadingReport(Path("input")))
