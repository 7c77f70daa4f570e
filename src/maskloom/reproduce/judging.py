"""Comparisons at equal training time without fine-tuning: loss on shared masks, and linear baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maskloom.checkpoints.huggingface import load_model, read_model_config
from maskloom.config import PretrainRecipe, load_recipe
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.settings import PretrainingData
from maskloom.errors import ConfigError
from maskloom.inference.model_folder import load_tokenizer, resolve_model_folder
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.reproduce.probes import Probe
from maskloom.runs.pretraining_plan import phase_plans
from maskloom.runs.run_folder import DESCRIPTION, RECIPE, described, kind_of_run
from maskloom.tasks.catalog import catalog_row
from maskloom.tasks.encoding import EncodedExamples
from maskloom.tasks.kinds import task_kind
from maskloom.tasks.task import ModelOutputs, score_outputs
from maskloom.text.vocabulary import first_difference
from maskloom.training.events import read_events
from maskloom.training.loop import evaluate

HELD_OUT_FRACTION = 0.02
_JUDGED = PretrainingData(next_sentence=False, held_out_fraction=HELD_OUT_FRACTION)
_PARTS, _BATCH, _MOST_BATCHES = 5, 32, 50
# L2 penalties of a linear classifier; the best on dev counts, like the best epoch in fine-tuning.
_PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5)
_MOST_STEPS = 100

Inputs = Literal["tokens", "vectors"]


def masked_losses(model: Path, corpus: Path, *, seed: int = 0) -> list[float]:
    """Return the masked-LM loss in nats on parts of the documents that a seed holds out, with the paper's masking.

    There are five parts, or fewer for a small corpus. All models predict the same tokens: 15% of rows of 128.
    """
    opened, row = Corpus.open(corpus), PRETRAINING["masked_lm"]
    _, documents = split_documents(opened, HELD_OUT_FRACTION, seed=seed)
    loader = row.loader(opened, documents, _JUDGED, batch_size=_BATCH, seed=0)
    batches = list(islice(loader.epoch_batches(0), _MOST_BATCHES))
    loaded, _ = load_model(model, heads=("mlm",))
    parts = [batches[number::_PARTS] for number in range(min(_PARTS, len(batches)))]
    objective = row.objective(row.part, _JUDGED)
    return [evaluate(loaded, objective, iter(part))["mlm_loss"] for part in parts]


def training_record(folder: Path) -> dict[str, Any]:
    """Return a model's number of layers and width, and the minutes and threads of its pre-training, None if unknown.

    The minutes are those of the run's own clock until its last step began, over all resumes. Only a run that was given
    minutes has such a clock. Raises ConfigError for a run whose files cannot be read.
    """
    model = resolve_model_folder(folder)
    config = read_model_config(model)
    record = {"layers": config.num_hidden_layers, "width": config.hidden_size, "minutes": None, "threads": None}
    if (found := _pretraining_of(model)) is None:
        return record
    recipe, description = found
    record["threads"] = recipe.training.num_threads or description["hardware"]["threads"]
    if recipe.training.minutes is not None:
        events = read_events(model.parent / "events.jsonl")
        fractions = {event["stage"]: event["fractions_of_time"] for event in events if event.get("fractions_of_time")}
        spent = ((plan.training.minutes or 0.0) * fractions.get(plan.name, [0.0])[-1] for plan in phase_plans(recipe))
        record["minutes"] = sum(spent)
    return record


def _pretraining_of(model: Path) -> tuple[PretrainRecipe, dict[str, Any]] | None:
    """Return the recipe and the description of the run that pre-trained a model, or None if no such run is there."""
    run = model.parent
    is_run = all((run / file).exists() for file in (RECIPE, DESCRIPTION, "events.jsonl"))
    if not is_run or kind_of_run(description := described(run)) != "pretrain":
        return None
    return load_recipe(PretrainRecipe, run / RECIPE), description


def check_comparable(model: Path, corpus: Path) -> None:
    """Raise ConfigError if losses of a model folder on a corpus cannot be compared with those of other models.

    That is, if it has another vocabulary, or if its run on this corpus trained on the documents that are compared.
    """
    opened, own = Corpus.open(corpus), load_tokenizer(model).with_task_tokens()
    if own.identity()["vocabulary_sha256"] != opened.tokenizer.identity()["vocabulary_sha256"]:
        where = f"that of the corpus {corpus} {first_difference(own.vocabulary, opened.tokenizer.vocabulary)}"
        raise ConfigError(f"{model}: its vocabulary differs from {where}, so losses cannot be compared")
    found = _pretraining_of(model)
    if found is None or found[1]["inputs"].get("corpus") != opened.fingerprint:
        return
    if (split := (found[0].data.held_out_fraction, found[0].seed)) != (HELD_OUT_FRACTION, 0):
        raise ConfigError(
            f"{model.parent}: with data.held_out_fraction = {split[0]:g} and seed = {split[1]}, it trained on some of "
            f"the documents on which losses are compared; train it with {HELD_OUT_FRACTION:g} and seed 0"
        )


def linear_score(probe: Probe, model: Path, inputs: Inputs, *, max_length: int) -> dict[str, Any]:
    """Return a linear classifier's dev score, the score of a constant answer and the name of the metric.

    Its inputs are bags of tokens: of the text, or of both texts of a pair and their common tokens. Or they are 1 and
    mean word vectors from the model's embedding table, for a pair joined by their absolute difference and product.
    """
    reading, paths = probe.files.reading, probe.files.paths
    row = None if reading.format is None else catalog_row(reading.format)
    kind, tokenizer = task_kind(row.kind if row else probe.kind), load_tokenizer(model).with_task_tokens()
    settings = kind.settings()
    train, dev = (kind.read(paths[part], reading, settings) for part in ("train", "dev"))
    task = kind.make(
        kind.label_names(train, reading, settings), probe.files.metric or (row.primary if row else None), settings
    )
    encoded = [cast(EncodedExamples, task.encode(data, tokenizer, max_length)) for data in (train, dev)]
    if inputs == "tokens":
        num_inputs = 3 * len(tokenizer.vocabulary)
        of_train, of_dev = (_bags(data, len(tokenizer.vocabulary)) for data in encoded)
    else:
        table = load_model(model, heads=())[0].encoder.word_embeddings.detach()
        means = [_means(data, table) for data in encoded]
        num_inputs, centre, spread = means[0].shape[1] + 1, means[0].mean(0), means[0].std(0) + 1e-6
        of_train, of_dev = (partial(torch.matmul, F.pad((mean - centre) / spread, (0, 1), value=1.0)) for mean in means)
    found = []
    for penalty in _PENALTIES:
        weights = _fitted(
            of_train, torch.from_numpy(cast(np.ndarray, encoded[0].labels)), (num_inputs, len(task.labels)), penalty
        )
        outputs = ModelOutputs([logits[None] for logits in of_dev(weights).numpy()])
        found.append(score_outputs(task, [encoded[1]], lambda _, outputs=outputs: outputs))
    best = max(found, key=lambda evaluation: evaluation.scores[task.primary])
    return {"scores": best.scores, "reference": best.reference, "metric": task.primary}


def _fitted(logits: Callable[[Tensor], Tensor], labels: Tensor, shape: tuple[int, int], penalty: float) -> Tensor:
    """Return the weights (inputs, labels) that minimise the mean cross-entropy with an L2 penalty."""
    weights = torch.zeros(shape, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=_MOST_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(logits(weights), labels) + penalty * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return weights.detach()


def _texts(data: EncodedExamples) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the tokens of each example's first and second text; the second may be empty."""
    for start, end in pairwise(data.offsets.tolist()):
        ids, segments = data.token_ids[start:end].astype(np.int64), data.segment_ids[start:end]
        yield ids[segments == 0], ids[segments == 1]


def _bags(data: EncodedExamples, num_tokens: int) -> Callable[[Tensor], Tensor]:
    """Return a function from weights (3 tokens, labels) to logits (examples, labels) on bags scaled to unit norm."""
    bags = [
        np.concatenate([np.unique(one), np.unique(two) + num_tokens, np.intersect1d(one, two) + 2 * num_tokens])
        for one, two in _texts(data)
    ]
    lengths = np.array([len(bag) for bag in bags])
    ids, offsets = torch.from_numpy(np.concatenate(bags)), torch.from_numpy(np.cumsum(lengths) - lengths)
    scales = torch.from_numpy(np.repeat(1.0 / np.sqrt(lengths), lengths)).float()
    return lambda weights: F.embedding_bag(ids, weights, offsets, mode="sum", per_sample_weights=scales)


def _means(data: EncodedExamples, table: Tensor) -> Tensor:
    """Return each example's mean word vectors, absolute difference and product, joined in rows (examples, inputs)."""
    rows = []
    for texts in _texts(data):
        means = [table[torch.from_numpy(ids)].mean(0) for ids in texts if len(ids)]
        rows.append(torch.cat([*means, (means[0] - means[-1]).abs(), means[0] * means[-1]]))
    return torch.stack(rows)
