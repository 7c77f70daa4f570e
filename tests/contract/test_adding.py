"""An architecture, a pre-training objective and a kind of task from outside of the package, by rows of its tables.

docs/ADDING.md follows these lines.
"""

import json
import re
import shutil
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.fine_tuning import finetune
from torch import nn

import maskloom
from maskloom.checkpoints.huggingface import FORMATS
from maskloom.checkpoints.published.format import PublishedFormat, TensorName
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe, recipe_toml
from maskloom.data.batch import Texts
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corruption import Corruption
from maskloom.data.loader import Columns, Extent
from maskloom.data.settings import PretrainingData
from maskloom.errors import ConfigError
from maskloom.layers.embeddings import WordPositionEmbeddings
from maskloom.layers.initialization import constants
from maskloom.layers.pooling import LastToken
from maskloom.metrics.language_model import PARTS, LanguageModelNames
from maskloom.models.architectures import ARCHITECTURES, Architecture
from maskloom.models.assembled import build_model
from maskloom.models.encoder import Encoder
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.objective import TaskObjective, label_tensor
from maskloom.objectives.pretraining import PRETRAINING, Pretraining
from maskloom.recipe_files import recipe_keys
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.predict import predict
from maskloom.runs.pretrain import pretrain
from maskloom.runs.pretraining_plan import model_config, phase_plans, pretraining_data
from maskloom.sections import Section, key
from maskloom.tasks.classification import classification_kind, classification_task
from maskloom.tasks.kinds import KINDS
from maskloom.tasks.settings import ClassificationSettings
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.optimizers import OPTIMIZERS, SCHEDULES

# --- an architecture: the mean of a token and those around it, through a dense layer


class BagConfig(ModelConfig):
    """The configuration: the keys that all encoders share, and what config.json calls the model."""

    def as_published(self):
        return {"model_type": "bag", **self.model_dump()}


class RootNorm(nn.Module):
    """x over its root mean square, times learned weights."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, hidden):
        return self.weight * F.rms_norm(hidden, hidden.shape[-1:])


class MixingLayer(nn.Module):
    """x + tanh(W (mean of the sequence)): (tokens, hidden) to (tokens, hidden)."""

    def __init__(self, size):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, hidden, layout):
        rows = torch.repeat_interleave(torch.arange(layout.num_sequences), layout.lengths)
        tokens = hidden[: layout.num_tokens]
        sums = tokens.new_zeros(layout.num_sequences, hidden.shape[1]).index_add(0, rows, tokens)
        means = sums / layout.lengths.clamp(min=1).unsqueeze(1)
        return F.pad(tokens + torch.tanh(self.dense(means))[rows], (0, 0, 0, len(hidden) - len(tokens)))


class Bag(Encoder):
    """The encoder: embeddings, layers, pooler, and how ids become vectors."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = WordPositionEmbeddings(
            vocab_size=config.vocab_size,
            num_positions=config.max_position_embeddings,
            hidden_size=config.hidden_size,
            dropout=config.hidden_dropout_prob,
        )
        self.layers = nn.ModuleList(MixingLayer(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.final_norm, self.pooler = RootNorm(config.hidden_size), LastToken()

    def embedded(self, token_ids, segment_ids, layout):
        return self.embeddings(token_ids, layout.position_ids)


def bag_rows(config, heads, *, has_pooler=True):
    """Every parameter has the name of ours, without a second one in other programs."""
    names = ["encoder.embeddings.word.weight", "encoder.embeddings.position.weight"]
    names += [f"encoder.layers.{n}.dense.{end}" for n in range(config.num_hidden_layers) for end in ("weight", "bias")]
    names.append("encoder.final_norm.weight")
    return [*(TensorName(name, None, name) for name in names), *(row for head in heads for row in BAG_HEADS[head])]


BAG_HEADS = {
    "lm": (),
    "classifier": (TensorName("heads.classifier.dense.weight", None, "bag_labels.weight"),),
}
BAG = Architecture(
    "bag",
    "nobody 2026",
    BagConfig,
    Bag,
    ("bag",),
    vocabulary_head="lm",
    sizes={"tiny": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}},
    initial={RootNorm: constants(weight=1.0)},
    undecayed=(RootNorm,),
    has_classifier_bias=False,
)
BAG_FORMAT = PublishedFormat(
    name="bag of words",
    prefix="",
    rows=bag_rows,
    heads=BAG_HEADS,
    class_names=lambda _: ((("classifier",), "BagClassifier"), ((), "Bag")),
    tied_copies=lambda _: {},
    is_ignored=lambda _: False,
    canonical=lambda name, rows: (name, False),
)

# --- a pre-training objective: say every token again


class SayAgain(Corruption):
    """The model sees the ids as they are, and predicts each of them."""

    def __call__(self, texts):
        return texts.predicting(texts.token_ids, np.arange(texts.num_tokens), texts.token_ids)


# --- with a section of its own, and a stream: one sentence of every document


class CopyingSection(Section):
    """The recipe section [copying]."""

    sentence: int = key(
        0, "Number of the sentence of each document that is a row, from 0; the last if it has fewer.", ge=0
    )


class CopyingData(CopyingSection, PretrainingData):
    """Those keys, and the ones of [data]."""


@dataclass(frozen=True)
class Chosen(Columns):
    documents: np.ndarray
    epochs: np.ndarray


class SentenceStream:
    """A sentence of every document, in the order of the corpus."""

    def __init__(self, corpus, documents, data, seed, batch_size):
        self.corpus, self.length = corpus, data.max_length
        self.documents = np.arange(corpus.num_documents) if documents is None else documents
        firsts, ends = corpus.document_offsets[:-1], corpus.document_offsets[1:]
        self.sentences = np.minimum(firsts + data.sentence, ends - 1)

    def read(self, position, num_rows):
        row = position.get("row", 0)
        epochs, indices = np.divmod(np.arange(row, row + num_rows), len(self.documents))
        return Chosen(self.documents[indices], epochs), {"row": row + num_rows}

    def epoch(self, number):
        yield Chosen(self.documents, np.full(len(self.documents), number))

    def gather(self, rows):
        sentences = self.sentences[rows.documents].tolist()
        texts = [self.corpus.sentence(index)[: self.length].astype(np.int64) for index in sentences]
        tokens, lengths = np.concatenate(texts), np.array([len(text) for text in texts])
        return Texts(tokens, np.zeros_like(tokens), lengths, keys=rows.documents, epochs=rows.epochs)

    def extent(self):
        lengths = self.corpus.sentence_lengths[self.sentences[self.documents]]
        return Extent(len(self.documents), np.minimum(lengths, self.length))


COPYING = Pretraining("copy", SayAgain, SentenceStream, section=CopyingSection, data=CopyingData)

# --- a kind of task: one label, with smoothed targets


class SmoothedSection(Section):
    """The recipe section [smoothed]."""

    amount: float = key(0.1, "Weight of the targets on all classes alike.", ge=0.0, lt=1.0)


class SmoothedSettings(SmoothedSection, ClassificationSettings):
    """Those keys, and the ones of every task on one text."""


@dataclass(frozen=True)
class Smoothed(TaskObjective):
    """Cross-entropy whose targets have a part of their weight on all classes alike."""

    amount: float

    name: ClassVar[str] = "smoothed"
    head: ClassVar[str] = "classifier"

    def loss_sum_of(self, logits, batch):
        return F.cross_entropy(logits, label_tensor(batch, logits), label_smoothing=self.amount, reduction="sum")


def smoothed_task(labels, primary, settings):
    task = classification_task("single", labels, primary, settings)
    return replace(task, kind="smoothed", objective=Smoothed(settings.amount))


SMOOTHED = replace(
    classification_kind("single"),
    name="smoothed",
    make=smoothed_task,
    section=SmoothedSection,
    settings=SmoothedSettings,
)


@pytest.fixture
def rows(monkeypatch):
    """Add a line to each table, for one test."""
    monkeypatch.setitem(ARCHITECTURES, "bag", BAG)
    monkeypatch.setitem(FORMATS, "bag", BAG_FORMAT)
    monkeypatch.setitem(PRETRAINING, "copying", COPYING)
    monkeypatch.setitem(PARTS, "copy", LanguageModelNames("copying", "Tokens"))
    monkeypatch.setitem(KINDS, "smoothed", SMOOTHED)


@pytest.fixture
def corpus(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {a} cat.\nit sees the {b} dog." for a in "abcde" for b in "abcde"))
    train_vocabulary_from_files([text], VocabularySettings(60), out=tmp_path / "vocab")
    build_corpus_from_files([text], vocab=tmp_path / "vocab", out=tmp_path / "corpus")
    return tmp_path / "corpus"


def test_all_three_go_from_text_to_predictions(rows, corpus, tmp_path):
    recipe = PretrainRecipe.model_validate(
        {
            "objective": "copying",
            "copying": {"sentence": 1},
            "model": {"architecture": "bag", "size": "tiny", "config": {"initializer_range": 0.2}},
            "data": {"max_length": 24, "next_sentence": False, "held_out_fraction": 0.2},
            "training": {"steps": 60, "batch_size": 8, "learning_rate": 0.02},
        }
    )
    metrics = pretrain(recipe, corpus=corpus, out=tmp_path / "run")
    assert metrics["copy_accuracy"] > 0.9
    assert "copy_perplexity" in metrics
    assert load_recipe(PretrainRecipe, tmp_path / "run" / "recipe.toml") == recipe

    for name in ("train", "dev"):
        lines = [f"the {a} cat,{a}" for a in "abc"] * 5
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    recipe = FinetuneRecipe.model_validate(
        {
            "task": "smoothed",
            "smoothed": {"amount": 0.2},
            "training": {"epochs": 40, "batch_size": 5, "learning_rate": 0.02},
            "data": {"max_length": 24},
        }
    )
    result = finetune(
        recipe, model=tmp_path / "run" / "model", train=tmp_path / "train.csv", dev=tmp_path / "dev.csv",
        out=tmp_path / "tuned",
    )  # fmt: skip
    assert result["best"]["scores"]["accuracy"] == 1.0
    assert load_recipe(FinetuneRecipe, tmp_path / "tuned" / "recipe.toml") == recipe
    assert json.loads((tmp_path / "tuned" / "model" / "maskloom.json").read_text())["settings"] == {"amount": 0.2}

    model = maskloom.load(tmp_path / "tuned")
    assert isinstance(model.model.encoder, Bag)
    assert model.task.objective == Smoothed(0.2)
    assert [found["label"] for found in model.predict(["the a cat", "the c cat"])] == ["a", "c"]
    predict(tmp_path / "tuned", tmp_path / "dev.csv", tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 15


def test_the_row_of_an_architecture_says_its_sizes_and_initial_weights(rows):
    recipe = load_recipe(PretrainRecipe, None, ["model.architecture=bag", "model.size=tiny", "objective=copying"])
    config = model_config(recipe, vocab_size=60)
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (16, 2, 64)
    with pytest.raises(ConfigError, match="unknown model size 'base'; known: tiny"):
        model_config(load_recipe(PretrainRecipe, None, ["model.architecture=bag", "model.size=base"]), vocab_size=60)
    model = build_model(config, ("lm", "classifier"), num_labels=3, seed=0)
    assert model.encoder.final_norm.weight.tolist() == [1.0] * 16
    assert 0.005 < model.encoder.word_embeddings.std() < 0.02
    assert model.heads["classifier"].dense.bias is None


@pytest.mark.parametrize(("number", "word"), [(0, "cat"), (1, "dog"), (9, "dog")])
def test_the_section_of_an_objective_reaches_its_stream(rows, corpus, number, word):
    recipe = load_recipe(PretrainRecipe, None, ["objective=copying", f"copying.sentence={number}"])
    opened = Corpus.open(corpus)
    loader = PRETRAINING["copying"].loader(opened, None, pretraining_data(recipe), batch_size=3, seed=0)
    batch, _ = loader.next_batch({})
    assert [opened.vocabulary.tokens[batch.token_ids[end - 2]] for end in np.cumsum(batch.lengths)] == [word] * 3
    (plan,) = phase_plans(recipe)
    assert plan.data == pretraining_data(recipe)


def test_an_objective_that_is_not_there_has_no_section():
    with pytest.raises(ConfigError, match="unknown key 'copying'"):
        load_recipe(PretrainRecipe, None, ["copying.sentence=1"])


def test_a_section_of_its_own_is_part_of_the_recipe_as_long_as_there_is_the_kind(monkeypatch):
    default = recipe_toml(FinetuneRecipe())
    monkeypatch.setitem(KINDS, "smoothed", SMOOTHED)
    assert recipe_toml(FinetuneRecipe()) == default + "\n[smoothed]\namount = 0.1\n"
    last = [*recipe_keys(FinetuneRecipe)][-1]
    assert (last.path, last.default, last.meaning) == (
        "smoothed.amount", 0.1, "Weight of the targets on all classes alike."
    )  # fmt: skip
    for change, said in (
        ("smoothed.amount=1.5", "smoothed.amount = 1.5: it must be less than 1"),
        ("smoothed.amout=0.5", "unknown key 'smoothed.amout'; did you mean 'smoothed.amount'?"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load_recipe(FinetuneRecipe, None, [change])
    monkeypatch.undo()
    assert recipe_toml(FinetuneRecipe()) == default
    with pytest.raises(ConfigError, match="unknown key 'smoothed'"):
        load_recipe(FinetuneRecipe, None, ["smoothed.amount=0.5"])


# --- an optimiser and a schedule


def stairs(step, *, warmup_steps, steps):
    """Half the rate after half of the steps."""
    return 1.0 if step < steps / 2 else 0.5


class Counting(torch.optim.Optimizer):
    """Gradient descent whose state is a plain int and a tensor with one number for each row of a matrix."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                sizes = parameter.grad.square().mean(-1, keepdim=True)
                state["sizes"] = 0.7 * state.get("sizes", torch.zeros_like(sizes)) + sizes
                state["step"] = state.get("step", 0) + 1
                rate = group["lr"] * (1 - 0.9 ** state["step"])
                parameter -= rate * parameter.grad / (state["sizes"].sqrt() + 1e-6)


# Their state: a step and a tensor; a tensor alone; a further number; rows and columns; a plain int and rows.
OTHER_OPTIMIZERS = {
    "adagrad": lambda groups, _: torch.optim.Adagrad(groups, lr=0.01),
    "sgd": lambda groups, _: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "nadam": lambda groups, _: torch.optim.NAdam(groups, lr=0.01),
    "adafactor": lambda groups, _: torch.optim.Adafactor(groups, lr=0.01),
    "counting": lambda groups, _: Counting(groups, {"lr": 0.01}),
}


@pytest.mark.parametrize("name", OTHER_OPTIMIZERS)
def test_an_optimizer_and_a_schedule_by_rows_train_and_resume_to_the_bit(monkeypatch, corpus, tmp_path, name):
    monkeypatch.setitem(OPTIMIZERS, name, OTHER_OPTIMIZERS[name])
    monkeypatch.setitem(SCHEDULES, "stairs", stairs)
    training = {"optimizer": name, "schedule": "stairs", "steps": 8, "batch_size": 4, "learning_rate": 0.01}
    training |= {"save_every": 5, "log_every": 1, "warmup_ratio": 0.0}
    recipe = PretrainRecipe.model_validate({"data": {"max_length": 24, "held_out_fraction": 0.0}, "training": training})
    pretrain(recipe, corpus=corpus, out=tmp_path / "run")
    steps = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    rates = [event["learning_rate"] for event in steps if event["event"] == "step"]
    assert rates == [pytest.approx(1e-2)] * 4 + [pytest.approx(5e-3)] * 4
    whole = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "phase-1" / "step-00000008")
    pretrain(recipe, corpus=corpus, out=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == whole


def test_names_that_no_table_has_are_refused():
    for recipe, values, said in (
        (PretrainRecipe, {"model": {"architecture": "nothing"}}, "architecture"),
        (PretrainRecipe, {"objective": "nothing"}, "objective"),
        (FinetuneRecipe, {"task": "nothing"}, "task"),
        (PretrainRecipe, {"training": {"optimizer": "nothing"}}, "'adamw', 'bert_adam'"),
        (PretrainRecipe, {"training": {"schedule": "nothing"}}, "'cosine'"),
    ):
        with pytest.raises(ValueError, match=said):
            recipe.model_validate(values)
