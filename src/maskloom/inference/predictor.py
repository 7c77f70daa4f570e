"""A model folder opened for inference: vectors, predictions, mask filling and text generation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import torch

from maskloom.checkpoints.huggingface import load_model, read_config
from maskloom.checkpoints.published.sentence_transformers import PoolingMode, SentenceModules, read_modules
from maskloom.data.batch import PackedBatch, SourceTargetBatch
from maskloom.errors import ConfigError, DataError
from maskloom.generation.search import Continuation, DecodingStep, Generation, batched_by_length, continue_texts
from maskloom.generation.sources import most_tokens
from maskloom.inference.model_folder import (
    load_tokenizer,
    modules_folder,
    read_settings,
    resolve_model_folder,
    with_word_vectors,
)
from maskloom.inference.results import FilledText, GeneratedText, MaskCandidate, Prediction
from maskloom.inference.span_filling import check_fills, filled, source_ids
from maskloom.layers.copies import to_device, to_host
from maskloom.layers.processor.int8 import quantize_dense_layers
from maskloom.layers.processor.onednn import pack_for_inference
from maskloom.models.assembled import EncoderWithHeads
from maskloom.models.decoder import TiedDecoder
from maskloom.objectives.objective import encode_batch, model_device
from maskloom.objectives.sequence_to_sequence import SequenceToSequence
from maskloom.system.devices import chosen_device, half_type, inference_in
from maskloom.system.foreign_files import is_utf8
from maskloom.tasks.classification import kind_of_problem
from maskloom.tasks.encoding import EncodedData, batches_by_length, encode_examples
from maskloom.tasks.examples import Example, ReadExamples, ReadingReport, checked_inputs, checked_text, text_example
from maskloom.tasks.kinds import KINDS, make_task
from maskloom.tasks.seq2seq.task import readable, target_marks
from maskloom.tasks.task import ModelOutputs, Task, finite, model_outputs, tokens_at_once
from maskloom.text.tokenizer import Tokenizer

# Guards the counts of truncated texts, because threads may share a model.
_COUNTING = Lock()
_PRECISIONS = ("auto", "fp32", "bf16", "fp16")
_MOST_LABELS = 1_000_000
_PROMPTS_AT_ONCE = 16
_LOST = ("num_left_out", "num_cut_questions")
TextOrPair = str | tuple[str, str]


class TaskModel(ABC):
    """Base class of models that predict for a task: a single model or an ensemble."""

    task: Task | None
    settings: dict[str, Any]
    tokenizer: Tokenizer
    max_length: int
    num_truncated: int = 0
    num_lost: Mapping[str, int] | None = None

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that the model is on."""

    def required_task(self) -> Task:
        """Return the task that the model was fine-tuned for; raises ConfigError if there is none."""
        if self.task is None:
            raise ConfigError("this model has no task head; fine-tune it first (maskloom finetune)")
        return self.task

    @property
    def truncation(self) -> dict[str, int]:
        """The number of texts truncated so far, and to how many tokens; other parts of inputs that were not read."""
        return {"num_truncated_examples": self.num_truncated, "max_length": self.max_length, **(self.num_lost or {})}

    def encoded(self, data: ReadExamples) -> EncodedData:
        """Return examples of the model's kind of task, encoded as token ids."""
        return self.required_task().encode(data, self.tokenizer, self.max_length)

    @abstractmethod
    def outputs(self, encoded: EncodedData) -> ModelOutputs:
        """Return the outputs for encoded examples, with their loss if the data has labels."""

    def predict(self, inputs: Iterable[Any]) -> list[Prediction]:
        """Return one prediction per input, in order, for any iterable of inputs.

        Inputs are texts or pairs of texts for classification (`{"label", "probabilities"}`), multi-label classification
        (`{"labels", "probabilities"}`) and regression (`{"score"}`); sentences for tagging (`{"words", "tags",
        "entities" ...}`); (question, context) for question answering (`{"answer", "candidates" ...}`); (context,
        choices) for multiple choice (`{"choice", "probabilities" ...}`). Raises ConfigError if the model has no task
        head, or gets single texts instead of pairs or the reverse, and DataError for an input of another form.
        """
        task = self.required_task()
        data = _examples_of(inputs, task.example_of or KINDS[task.kind].example_of)
        takes_pairs = self.settings.get("takes_pairs")
        for number, example in enumerate(data.examples):
            if isinstance(example, Example) and takes_pairs == (example.pair is None):
                wanted, got = ("pairs of texts", "one text") if takes_pairs else ("single texts", "a pair of texts")
                raise ConfigError(f"input {number}: this model was fine-tuned on {wanted}, but this is {got}")
        return cast(list[Prediction], self.predict_examples(data))

    def predict_examples(self, data: ReadExamples) -> list[dict[str, Any]]:
        """Return one prediction per example of the model's kind of task, in order, as decoded by the task."""
        task = self.required_task()
        if not data.examples:
            return []
        encoded = self.encoded(data)
        account = encoded.account()
        self.count_truncated(account.get("num_truncated_examples", 0), {name: account.get(name, 0) for name in _LOST})
        return task.decode(encoded, self.outputs(encoded).rows)

    def count_truncated(self, num_truncated: int, num_lost: Mapping[str, int] | None = None) -> None:
        """Add to the number of truncated texts, and to those of other parts that are not read."""
        with _COUNTING:
            self.num_truncated += num_truncated
            self.num_lost = Counter(self.num_lost) + Counter(num_lost)


@dataclass(eq=False, repr=False)
class Predictor(TaskModel):
    """Texts in, numpy arrays and dictionaries out; batches are sorted by length and bounded in tokens.

    `task` is None for a model without a task head. Texts longer than `max_length` tokens are truncated; `num_truncated`
    counts them. `batch_size` limits the number of examples in a batch (or of windows, if texts are split into them).
    `modules` defines how vectors are computed, `precision` how matrix products are computed. Threads may share a
    predictor.
    """

    model: EncoderWithHeads
    tokenizer: Tokenizer
    _: KW_ONLY
    task: Task | None = None
    max_length: int = 512
    settings: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    modules: SentenceModules = field(default_factory=SentenceModules)
    precision: str = "auto"

    def __post_init__(self) -> None:
        self.model.eval()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        max_length: int | None = None,
        int8: bool = False,
        device: str = "auto",
        batch_size: int | None = None,
        precision: str = "auto",
    ) -> Predictor:
        """Open a model folder in Hugging Face layout, a sentence-transformers folder, or a run folder.

        `max_length` defaults to the length used in fine-tuning, that of sentence-transformers, or the model's limit.
        `int8` computes the encoder's dense layers in 8-bit integers, quantised on loading. `device` is "cpu", "cuda",
        "cuda:1", "mps" or "auto" (a GPU if available). `batch_size` limits the number of texts per batch. `precision`
        is "auto" (bf16 on a GPU that supports it, else fp32), "fp32", "bf16" or, on CUDA, "fp16". Raises DataError for
        a folder that is not a model, ConfigError for a length outside its limits and a device that lacks the precision.
        """
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            raise ConfigError(f"batch_size {batch_size!r:.80}: expected a whole number of at least 1")
        place = chosen_device("cpu" if int8 and device == "auto" else device)
        if precision not in _PRECISIONS or (precision == "fp16" and place.type != "cuda"):
            raise ConfigError(f"precision {precision!r:.80}: expected auto, fp32 or bf16, on CUDA also fp16")
        if int8 and precision in _PRECISIONS[2:]:
            raise ConfigError(f"int8 and precision = {precision!r}: choose one of them")
        half_type(precision, place)
        path = resolve_model_folder(folder)
        model, _report = load_model(path)
        tokenizer = load_tokenizer(path)
        settings = read_settings(path)
        modules = read_modules(modules_folder(path))
        limit = min(model.encoder.config.max_position_embeddings, tokenizer.max_length)
        if max_length is not None and (type(max_length) is not int or not 3 <= max_length <= limit):
            raise ConfigError(f"max_length {max_length!r:.80}: {path} takes 3 to {limit} tokens")
        length = max_length or min(settings.get("max_length") or modules.max_length or limit, limit)
        model.to(place)
        if int8:
            quantize_dense_layers(model.encoder)
        else:
            # a left-to-right model generates in fp32 whatever the precision
            dtype = torch.bfloat16 if precision == "bf16" and not model.config.is_causal else torch.float32
            pack_for_inference(model.encoder, decodes=model.config.is_causal, dtype=dtype)
            if model.config.is_causal and model.vocabulary_head is not None:
                pack_for_inference(model.vocabulary_head, decodes=True)
            if "decoder" in model.heads:
                pack_for_inference(model.heads["decoder"], decodes=True, dtype=dtype)
        return cls(
            model,
            tokenizer,
            task=_task_of(path, model, settings),
            max_length=length,
            settings=settings,
            batch_size=batch_size,
            modules=modules,
            precision=precision,
        )

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return model_device(self.model)

    @property
    def hidden_size(self) -> int:
        """Width of the vectors that `encode` returns."""
        return self.model.encoder.config.hidden_size

    @torch.inference_mode()
    def encode(
        self, texts: Iterable[TextOrPair], *, pooling: PoolingMode | None = None, normalize: bool | None = None
    ) -> np.ndarray:
        """Return one vector per text, (texts, hidden) float32, in order, for any iterable of texts or pairs of texts.

        `pooling` "mean" averages the last hidden states of all tokens of a text, [CLS] and [SEP] included; "cls" is the
        last hidden state of [CLS], before the pooler; "max" takes the largest value of each dimension. `normalize`
        scales each vector to length 1. A sentence-transformers folder sets the defaults; other models use mean
        pooling without normalisation. Raises ConfigError for an unknown pooling and for "cls" of a left-to-right model,
        DataError for a non-text input.
        """
        modules = self.modules.changed(pooling, normalize, self.model.config)
        data = encode_examples(_examples_of(texts, text_example).examples, self.tokenizer, max_length=self.max_length)
        self.count_truncated(data.num_truncated_examples)
        vectors = np.empty((len(data), self.hidden_size), dtype=np.float32)
        batches = batches_by_length(data, max_tokens=tokens_at_once(self.model), max_units=self.batch_size)
        with inference_in(self.precision, self.device):  # entered once, so that weights are rounded only once
            hidden = ((batch, encode_batch(self.model, batch).last_hidden_state) for batch in batches)
            found = ((batch, modules.vectors(of, to_device(batch.lengths, of.device))) for batch, of in hidden)
            for batch, of_batch in to_host(found):
                vectors[batch.indices] = of_batch
        return finite(vectors)

    def outputs(self, encoded: EncodedData) -> ModelOutputs:
        """Return the outputs of the model's head for encoded examples; raises DataError if the weights are broken."""
        objective = self.required_task().objective
        return model_outputs(self.model, objective, encoded, max_units=self.batch_size, precision=self.precision)

    @torch.inference_mode()
    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[MaskCandidate]]:
        """Return the `top_k` most likely tokens with their probabilities for each [MASK] of a text, in order.

        Raises ConfigError if the model is causal or has no masked-LM head, DataError if the text has no [MASK], one
        lies beyond `max_length` tokens, or the model's outputs are not finite.
        """
        if "mlm" not in self.model.heads:
            raise ConfigError("this model has no masked-LM head; pre-train one, or use a model that kept its head")
        if self.model.config.is_causal:
            raise ConfigError("this model reads from left to right: it cannot see what follows a [MASK]")
        if type(top_k) is not int or top_k < 1:
            raise ConfigError(f"top_k {top_k!r:.80}: expected a whole number of at least 1")
        checked_text(text, 0)
        vocabulary = self.tokenizer.vocabulary
        encoding = self.tokenizer.encode(text, max_length=self.max_length, parse_special_tokens=True)
        ids = np.asarray(encoding.ids, dtype=np.int64)
        positions = np.flatnonzero(ids == vocabulary.mask_id)
        num_asked = text.count(vocabulary.tokens[vocabulary.mask_id])
        if len(positions) < max(num_asked, 1):
            what = f"{num_asked} [MASK] in the text, {len(positions)} within the first {self.max_length} tokens"
            raise DataError(f"{text[:60]!r:.80}: {what}; at least one is needed and all must fit")
        batch = PackedBatch(ids, np.asarray(encoding.segments, dtype=np.int64), np.array([len(ids)]))
        with inference_in(self.precision, self.device):
            hidden = encode_batch(self.model, batch).last_hidden_state[torch.from_numpy(positions)]
            logits = self.model.heads["mlm"](hidden)
        probabilities = logits.float().softmax(-1)
        finite(probabilities.cpu().numpy())
        best = probabilities[:, : len(vocabulary)].topk(min(top_k, len(vocabulary)))  # a model may have more rows
        return [
            [
                {"token": vocabulary.tokens[int(token)], "token_id": token, "probability": probability}
                for probability, token in zip(row_values, row_tokens, strict=True)
            ]
            for row_values, row_tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def fill_spans(
        self, texts: Iterable[str], settings: Generation | None = None, *, first: int = 0
    ) -> list[FilledText]:
        """Fill the blanks of each text, in order: `<X>`, `<Y>`, `<Z>`, or `<extra_id_0>` …; greedily by default.

        Each blank is replaced by the next sentinel (Raffel et al. 2019, 3.1.4). `first` is the number of the first
        text, which keys its random draws. Raises ConfigError for a model without a decoder or a vocabulary without
        sentinels, DataError for a text without a blank or with more tokens than the model reads.
        """
        given = [checked_text(text, number) for number, text in enumerate(checked_inputs(texts), start=first)]
        names = [f"text {number}" for number in range(first + 1, first + 1 + len(given))]
        return self.fill_blanks(given, self.blank_ids(given, names), settings or Generation(temperature=0.0), first)

    def fill_blanks(
        self, texts: Sequence[str], ids: Sequence[Sequence[int]], settings: Generation, first: int
    ) -> list[FilledText]:
        """Fill the blanks of texts with the token ids that `blank_ids` returned."""
        make = partial(self._written, settings, None)
        found = batched_by_length(ids, first, self.batch_size or _PROMPTS_AT_ONCE, make)
        return [filled(text, target, self.tokenizer) for text, target in zip(texts, found, strict=True)]

    def blank_ids(self, texts: Sequence[str], names: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts with blanks; raises as `fill_spans` does, calling the texts by `names`."""
        check_fills(self.model, self.tokenizer)
        named = zip(texts, names, strict=True)
        return [source_ids(text, name, self.tokenizer, self.max_length) for text, name in named]

    def generate(
        self, prompts: Iterable[str], settings: Generation | None = None, *, first: int = 0, **given: Any
    ) -> list[GeneratedText]:
        """Continue each text, in order, or, with a decoder, generate a target for each source text.

        `settings` control the length and how tokens are sampled or searched. By default a decoder searches as
        configured in fine-tuning, and other models sample with the defaults of `Generation`. Fields of `Generation`
        `given` by name override single settings. `first` is the number of the first prompt, which keys its random
        draws. Sources longer than `max_length` tokens are truncated and counted. Raises ConfigError for a bidirectional
        model without a decoder, DataError for a text without tokens and a prompt that fills the model's context.
        """
        if not isinstance(settings, Generation | None):
            raise ConfigError(f"settings {settings!r:.80}: expected a Generation")
        settings = self.generation(settings).changed(given)
        texts = [checked_text(prompt, number) for number, prompt in enumerate(checked_inputs(prompts), start=first)]
        names = [f"{self.input_name} {number}" for number in range(first + 1, first + 1 + len(texts))]
        ids, num_truncated = self.prompt_ids(texts, names, settings)
        self.count_truncated(num_truncated)
        return [self.shown(found, settings) for found in self.continuations(ids, settings, first)]

    def prompt_ids(
        self, texts: Sequence[str], names: Sequence[str], settings: Generation | None = None
    ) -> tuple[list[list[int]], int]:
        """Return the token ids of prompts, or the first `max_length` of sources, and the number of truncated sources.

        Raises DataError, with the prompt's name, if there are none, or so many that they leave no room for the minimum
        number of new tokens that `settings` require.
        """
        least, most = self.generation(settings).min_tokens, self.model.config.max_position_embeddings
        num_truncated, room = 0, None
        if self.writer is not None:
            read = [*self.tokenizer.sequences([(text, None) for text in texts], max_length=self.max_length)]
            num_truncated = sum(num_cut > 0 for _, _, num_cut in read)
            found, num_marks = [ids for ids, _, _ in read], self.tokenizer.template.num_marks(1)
            room = cast(TiedDecoder, self.model.heads["decoder"]).max_length + 1 - len(self.target_marks)
        elif self.model.config.is_causal:
            begin = self.tokenizer.running_text.begin
            found, num_marks = [[*begin, *ids] for ids in self.tokenizer.token_ids_batch(texts)], len(begin)
        else:
            raise ConfigError("this model is bidirectional and cannot continue text; a GPT or a left-to-right BERT can")
        for name, text, ids in zip(names, texts, found, strict=True):
            if len(ids) == num_marks:
                raise DataError(f"{name}: {text[:40]!r} has no tokens; a {self.input_name} needs at least one")
            if self.writer is not None:
                most_tokens(len(ids), least, name=name, room=room)
            elif len(ids) >= most:
                raise DataError(f"{name}: {len(ids):,} tokens, but the model reads {most:,}, special tokens included")
            elif len(ids) + least > most:
                raise DataError(f"{name}: min_tokens {least} after {len(ids):,} tokens exceeds the model's {most:,}")
        return found, num_truncated

    @property
    def input_name(self) -> str:
        """What an input text is called: "source" for a model with a decoder, otherwise "prompt"."""
        return "prompt" if self.writer is None else "source"

    @property
    def writer(self) -> SequenceToSequence | None:
        """The objective that a model with a decoder generates text with, or None."""
        objective = self.task.objective if self.task else None
        return objective if isinstance(objective, SequenceToSequence) else None

    def generation(self, settings: Generation | None = None) -> Generation:
        """Return the generation settings: `settings`, else those of a decoder's fine-tuning, else the defaults."""
        return settings or (self.writer.generation if self.writer else Generation())

    def continuations(
        self, ids: Sequence[Sequence[int]], settings: Generation, first: int, steps: list[DecodingStep] | None = None
    ) -> list[Continuation]:
        """Return the continuations of prompts returned by `prompt_ids`; `steps` collects those of a single prompt."""

        def make(prompts: list[Sequence[int]], numbers: list[int]) -> list[Continuation]:
            if self.writer is not None:
                return self._written(settings, steps, prompts, numbers)
            end, special = self.end_token, self.tokenizer.vocabulary.special_ids
            how = {"end": end, "never": sorted(special - {end}), "numbers": numbers, "steps": steps}
            return continue_texts(self.model, prompts, settings, **how)

        return batched_by_length(ids, first, self.batch_size or _PROMPTS_AT_ONCE, make)

    def _written(
        self, settings: Generation, steps: list[DecodingStep] | None, prompts: list[Sequence[int]], numbers: list[int]
    ) -> list[Continuation]:
        batch = SourceTargetBatch.of_sources(prompts, self.target_marks, numbers)
        with inference_in(self.precision, self.device):
            return SequenceToSequence(generation=settings).found(self.model, batch, steps)

    @property
    def target_marks(self) -> tuple[int, ...]:
        """The tokens that begin every target of a decoder, followed by the token that ends it."""
        return target_marks(self.tokenizer.of_targets, self.model.config.own_start)[0]

    @property
    def end_token(self) -> int | None:
        """The token that ends a generated text; None for BERT, whose special tokens are never predicted."""
        if self.writer is not None:
            return self.target_marks[-1]
        return None if self.tokenizer.has_segments else next(iter(self.tokenizer.running_text.end), None)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return generated tokens as text, without ids beyond the vocabulary, for which some models have rows."""
        if self.writer is not None:
            return readable(self.tokenizer.of_targets, ids)
        return self.tokenizer.decode([token for token in ids if token < len(self.tokenizer.vocabulary)])

    def shown(self, found: Continuation, settings: Generation) -> GeneratedText:
        """Return a generated text as it is presented to users."""
        shown: GeneratedText = {
            "text": self.text_of(found.token_ids),
            "num_tokens": len(found.token_ids),
            "log_probability": found.log_probability,
            "finish": found.finish,
        }
        if settings.beam is not None:
            shown["score"] = settings.score(found)
        if found.others:
            shown["others"] = [self.shown(other, settings) for other in found.others]
        return shown


def _task_of(path: Path, model: EncoderWithHeads, settings: dict[str, Any]) -> Task | None:
    config = read_config(path)
    names = _label_names(path, config)
    kind = settings.get("kind")
    if not kind and "classifier" in model.heads:
        kind = kind_of_problem(config.get("problem_type"), len(names))
    kind = kind or next((name for name, row in KINDS.items() if (row.known_by or name) in model.heads), None)
    if kind is None:
        return None
    if kind not in KINDS:
        raise DataError(f"{path}: maskloom.json: kind {kind!r:.80} is not known")
    has_labels = KINDS[kind].names_labels
    try:
        own = {**KINDS[kind].model_settings(model.config), **with_word_vectors(settings.get("settings", {}), path)}
        task = make_task(kind, names if has_labels else (), primary=settings.get("primary"), settings=own)
    except ValueError as error:
        raise DataError(f"{path}: maskloom.json: {error}") from None
    if missing := [head for head in task.heads if head not in model.heads]:
        raise DataError(f"{path}: maskloom.json: a {kind} task needs the head {missing[0]!r}, which the weights lack")
    num_outputs = getattr(model.heads[task.heads[0]], "num_labels", None)
    if has_labels and len(names) != num_outputs:
        raise DataError(f"{path / 'config.json'}: names {len(names)} labels, the weights have {num_outputs} outputs")
    return task


def _label_names(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Return a config's label names in id order; without names, LABEL_0 and so on, two by default as published."""
    place = path / "config.json"
    named = config.get("id2label")
    if named is None:
        num_labels = config.get("num_labels", 2)
        if type(num_labels) is not int or not 0 <= num_labels <= _MOST_LABELS:
            raise DataError(f"{place}: num_labels = {num_labels!r:.80}: expected 0 to {_MOST_LABELS:,}")
        return tuple(f"LABEL_{number}" for number in range(num_labels))
    if not isinstance(named, dict) or named.keys() != {str(number) for number in range(len(named))}:
        raise DataError(f"{place}: id2label = {named!r:.80}: expected a mapping of the ids from 0 on to names")
    ids: dict[str, int] = {}
    for number in range(len(named)):
        given = named[str(number)]
        name = str(given)
        if not isinstance(given, str | int | float) or not name.strip() or not is_utf8(name):
            raise DataError(f"{place}: id2label: id {number} needs a name, not {given!r:.80}")
        if ids.setdefault(name, number) != number:
            raise DataError(f"{place}: id2label: ids {ids[name]} and {number} have the same name {name!r:.80}")
    return tuple(ids)


def _examples_of(inputs: Iterable[Any], example_of: Callable[[Any, int], Any]) -> ReadExamples:
    """Convert Python inputs to examples; raises DataError, with the position, for an invalid one."""
    examples = [example_of(item, number) for number, item in enumerate(checked_inputs(inputs))]
    return ReadExamples(examples, ReadingReport(Path("input")))
