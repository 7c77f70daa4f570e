"""An architecture, a pre-training objective and a kind of task added from outside the package, as table rows.

docs/ADDING.md follows this file.
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
from safetensors.torch import load_file
from tests.fine_tuning import finetune
from tests.unit.training.remembering import Remembering
from torch import nn
from typer.testing import CliRunner

import maskloom
from maskloom.checkpoints.huggingface import FORMATS, load_model, save_model
from maskloom.checkpoints.published.format import PublishedFormat, TensorName
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe, recipe_toml
from maskloom.data.batch import Texts
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corruption import Corruption, Masking, NextTokens
from maskloom.data.loader import Columns, Extent
from maskloom.data.settings import PretrainingData
from maskloom.data.streams.running_text import Contiguous
from maskloom.data.streams.sentence_pairs import PAIR_TASKS, PairTask, SentencePairs
from maskloom.errors import ConfigError
from maskloom.layers.embeddings import WordEmbeddings
from maskloom.layers.initialization import constants
from maskloom.layers.pooling import LastToken
from maskloom.models.architectures import ARCHITECTURES, Architecture
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.encoder import Encoder
from maskloom.models.model_config import ModelConfig
from maskloom.objectives.objective import TaskObjective, label_tensor
from maskloom.objectives.pretraining import PRETRAINING, Pretraining
from maskloom.recipe_files import recipe_keys
from maskloom.runs.display import Progress
from maskloom.runs.predict import predict
from maskloom.runs.pretrain import pretrain
from maskloom.runs.pretraining_plan import check_corpus, model_config, phase_plans, pretraining_data
from maskloom.runs.report.examples import examples_of
from maskloom.runs.report.page import report
from maskloom.runs.report.record import read_run
from maskloom.sections import Section, key
from maskloom.tasks.classification import classification_task
from maskloom.tasks.kinds import KINDS, classification_kind
from maskloom.tasks.settings import ClassificationSettings
from maskloom.text.tokenizer import Tokenizer

# --- an architecture: each layer adds the mean of the sequence, passed through a dense layer


class BagConfig(ModelConfig):
    """The configuration: the keys shared by all encoders, and the `model_type` in config.json."""

    model_types: ClassVar = ("bag",)


class RootNorm(nn.Module):
    """x divided by its root mean square, times learned weights."""

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
    """The encoder: embeddings, layers, final norm, pooler, and how ids are embedded."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = WordEmbeddings(
            config.vocab_size, config.hidden_size, config.hidden_dropout_prob, config.max_position_embeddings
        )
        self.layers = nn.ModuleList(MixingLayer(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.final_norm, self.pooler = RootNorm(config.hidden_size), LastToken()

    def embedded(self, token_ids, segment_ids, layout):
        return self.embeddings(token_ids, layout.position_ids)


def bag_rows(config, heads):
    """Return rows in which each parameter is stored under our own name; other programs have no name for it."""
    names = ["encoder.embeddings.word.weight", "encoder.embeddings.position.weight"]
    names += [f"encoder.layers.{n}.dense.{end}" for n in range(config.num_hidden_layers) for end in ("weight", "bias")]
    names.append("encoder.final_norm.weight")
    return [*(TensorName(name, name) for name in names), *(row for head in heads for row in BAG_HEADS[head])]


BAG_HEADS = {
    "lm": (),
    "classifier": (TensorName("heads.classifier.dense.weight", "bag_labels.weight"),),
}
BAG = Architecture(
    "bag",
    "nobody 2026",
    BagConfig,
    Bag,
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

# --- a pre-training objective: repeat every token


class SayAgain(Corruption):
    """The model sees the unchanged ids and predicts each of them."""

    def __call__(self, texts):
        return texts.predicting(texts.token_ids, np.arange(texts.num_tokens), texts.token_ids)


# --- its own recipe section, and a stream of one sentence per document


class CopyingSection(Section):
    """The recipe section [copying]."""

    sentence: int = key(
        0, "Number of the sentence of each document that is a row, from 0; the last if it has fewer.", ge=0
    )


class CopyingData(CopyingSection, PretrainingData):
    """The keys of [copying] and [data]."""


@dataclass(frozen=True)
class Chosen(Columns):
    documents: np.ndarray
    epochs: np.ndarray


class SentenceStream:
    """A stream of one sentence per document, in corpus order."""

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


COPYING = Pretraining(
    "copy", SayAgain, SentenceStream, section=CopyingSection, data=CopyingData, names=("copying", "Tokens")
)

# --- another one, whose objective carries state from batch to batch


@dataclass(frozen=True)
class RememberingRow(Remembering):
    """Carries each row's state across batches; `part` is the prefix of its metrics."""

    part: str = "remembered"

    def evaluation_metrics(self, sums):
        return {f"{self.part}_loss": sums["loss"], "age": sums["age"]}


def contiguous(corpus, documents, data, seed, batch_size):
    """Return a stream whose rows continue where those of the last batch ended."""
    return Contiguous(corpus, documents, data, seed=seed, batch_size=batch_size)


REMEMBERING = Pretraining(
    "remembered",
    NextTokens,
    contiguous,
    objective=lambda part, data: RememberingRow(16, part),
    heads=lambda vocabulary_head, data: (vocabulary_head, "span"),  # a second head, although nothing calls it
    reference=None,
    defaults={"next_sentence": False},
    unread=("static_masks",),
)

# --- a kind of task: one label, with smoothed targets


class SmoothedSection(Section):
    """The recipe section [smoothed]."""

    amount: float = key(0.1, "Weight of the targets on all classes alike.", ge=0.0, lt=1.0)


class SmoothedSettings(SmoothedSection, ClassificationSettings):
    """The keys of [smoothed], and those of every classification task."""


@dataclass(frozen=True)
class Smoothed(TaskObjective):
    """Cross-entropy with label smoothing: part of the target weight is spread evenly over all classes."""

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
    """Add a row to each table for one test."""
    monkeypatch.setitem(ARCHITECTURES, "bag", BAG)
    monkeypatch.setitem(FORMATS, "bag", BAG_FORMAT)
    monkeypatch.setitem(PRETRAINING, "copying", COPYING)
    monkeypatch.setitem(KINDS, "smoothed", SMOOTHED)


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
    shown = examples_of(read_run(tmp_path / "tuned", "tuned"), 10, Progress())
    assert (shown.num_right, shown.num_predicted, len(shown.confusion)) == (10, 10, 3)
    report([tmp_path / "run", tmp_path / "tuned"], tmp_path / "page.html")
    assert "the a cat" in (tmp_path / "page.html").read_text()


def test_commands_take_a_kind_that_was_added(rows, corpus, tmp_path):
    model = tmp_path / "bert"
    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    save_model(build_model(config, (), seed=0), model)
    Tokenizer.load(corpus).save(model)
    rest = ["--model", model, "--train", tmp_path / "t.csv", "--dev", tmp_path / "t.csv", "--out", tmp_path / "o"]
    (tmp_path / "t.csv").write_text("text,label\n" + "the cat,a\nit sees,b\n" * 3)
    flags = ["--task", "smoothed", "--set", "smoothed.amount=0.3", "--steps", 2, "--batch-size", 2]
    done = CliRunner().invoke(app, [str(word) for word in ("finetune", *rest, *flags, "--json")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["task"] == "smoothed"
    scored = CliRunner().invoke(app, ["evaluate", "--model", str(tmp_path / "o"), "--data", str(tmp_path / "t.csv")])
    assert scored.exit_code == 0, scored.output
    done = CliRunner().invoke(app, [str(word) for word in ("finetune", *rest, "--task", "smothed")])
    assert done.exit_code == 2
    assert "did you mean smoothed?" in " ".join(done.output.replace("│", " ").split())


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


def test_an_objective_that_carries_state_trains_resumes_to_the_bit_and_is_saved(monkeypatch, corpus, tmp_path):
    monkeypatch.setitem(PRETRAINING, "remembering", REMEMBERING)
    recipe = PretrainRecipe.model_validate(
        {
            "objective": "remembering",
            "model": {"size": "tiny", "config": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}},
            "data": {"max_length": 6, "held_out_fraction": 0.2},
            "training": {"steps": 8, "batch_size": 2, "save_every": 3, "evaluate_every": 4, "keep_best": True},
        }
    )
    assert not recipe.data.next_sentence
    said, run, progress = [], tmp_path / "run", Progress()
    progress.say = said.append
    metrics = pretrain(recipe, corpus=corpus, out=run, progress=progress)
    assert metrics.keys() == {"remembered_loss", "age"}
    assert metrics["age"] > 0
    assert f"step 8: held-out remembered loss {metrics['remembered_loss']:.3f} nats" in said
    assert (run / "best-model" / "model.safetensors").is_file()
    state = load_file(run / "checkpoints" / "phase-1" / "step-00000008" / "carry.safetensors")
    assert state["1"].tolist() == [8, 8]
    whole = (run / "model" / "model.safetensors").read_bytes()
    assert set(load_model(run / "model")[0].heads) == {"mlm", "span"}
    for folder in ("model", "checkpoints/phase-1/step-00000008"):
        shutil.rmtree(run / folder)
    assert pretrain(recipe, corpus=corpus, out=run, resume=True) == metrics
    assert (run / "model" / "model.safetensors").read_bytes() == whole
    pretrain(recipe, corpus=corpus, out=run, resume=True, verify=True)


def test_what_an_objective_does_not_read_and_what_it_needs_are_refused(monkeypatch, corpus):
    monkeypatch.setitem(PRETRAINING, "remembering", replace(REMEMBERING, needs=("begin",)))
    with pytest.raises(ConfigError, match=r"leave out data\.static_masks, not read by this objective"):
        load_recipe(PretrainRecipe, None, ["objective=remembering", "data.static_masks=true"])
    with pytest.raises(ConfigError, match="objective = 'remembering' needs a begin token"):
        check_corpus(load_recipe(PretrainRecipe, None, ["objective=remembering"]), Corpus.open(corpus))


class HalvesData(PretrainingData):
    """Pairs of the two halves of a text, half of them swapped: another task on sentence pairs."""

    pairs: ClassVar[str] = "halves"


def test_a_task_on_pairs_of_texts_is_a_row(monkeypatch, corpus, tmp_path):
    monkeypatch.setitem(PAIR_TASKS, "halves", PairTask("halves", SentencePairs.swapped_pairs))
    monkeypatch.setitem(PRETRAINING, "halving", Pretraining("mlm", Masking, data=HalvesData, needs=("mask",)))
    changes = ["objective=halving", "training.steps=2", "data.max_length=24", "data.held_out_fraction=0.2"]
    said, progress = [], Progress()
    progress.say = said.append
    recipe = load_recipe(PretrainRecipe, None, [*changes, "model.size=tiny"])
    metrics = pretrain(recipe, corpus=corpus, out=tmp_path / "run", progress=progress)
    assert {"mlm_loss", "halves_accuracy", "halves_majority_fraction"} <= metrics.keys()
    assert any("; HALVES accuracy" in line for line in said)
    assert set(load_model(tmp_path / "run" / "model")[0].heads) == {"mlm", "nsp"}


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
