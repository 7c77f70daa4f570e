"""The paper's experiments as a command, on tiny models: all runs are made, kept and reported in a table."""

import json
import random
import re
from dataclasses import replace
from itertools import product
from pydoc_data.topics import topics
from shutil import copytree
from unittest.mock import patch

import pytest
import torch

from maskloom.checkpoints.huggingface import load_model
from maskloom.config import FinetuneRecipe, load_recipe
from maskloom.errors import ConfigError
from maskloom.reproduce.experiments import EXPERIMENTS, TABLE_5, Budget
from maskloom.reproduce.running import Repeats, reproduce
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.display import Progress
from maskloom.text.vocabulary_training import VocabularySettings

SMALL = {
    "pretrain": [
        *("model.config.hidden_size=8", "model.config.num_attention_heads=2", "model.config.num_hidden_layers=1"),
        *("training.steps=10", "training.batch_size=4", "training.num_threads=1", "data.max_length=24"),
        *("data.held_out_fraction=0.2", "training.max_evaluation_instances=8", "model.config.intermediate_size=16"),
    ],
    "finetune": ["training.steps=2", "training.batch_size=4", "training.num_threads=1", "data.max_length=24"],
}


@pytest.fixture(autouse=True, scope="module")
def _timed_shortly():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskloom.reproduce.planning._TIMED_SECONDS", 0.01)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    text = "\n\n".join(" ".join(text.split()) for _, text in sorted(topics.items())[:40])
    (folder / "topics.txt").write_text(text, encoding="utf-8")
    train_vocabulary_from_files([folder / "topics.txt"], VocabularySettings(300), out=folder / "vocabulary")
    build_corpus_from_files(folder / "topics.txt", vocab=folder / "vocabulary", out=folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Return a folder with tiny SST-2, RTE, SQuAD and CoNLL-2003 data in their own formats."""
    folder, draw = tmp_path_factory.mktemp("tasks"), random.Random(0)
    words = ["class", "object", "value", "name", "method"]
    for name in ("SST-2", "RTE", "squad", "conll2003"):
        (folder / name).mkdir()
    for part, size in (("train", 12), ("dev", 6)):
        texts = [" ".join(draw.choices(words, k=4)) for _ in range(size)]
        rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(texts))
        (folder / "SST-2" / f"{part}.tsv").write_text(f"sentence\tlabel\n{rows}")
        labels = ("entailment", "not_entailment")
        rows = "".join(f"{number}\t{text}\t{text}\t{labels[number % 2]}\n" for number, text in enumerate(texts))
        (folder / "RTE" / f"{part}.tsv").write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}")
        answers = [[{"text": text.split()[1], "answer_start": len(text.split()[0]) + 1}] for text in texts]
        paragraphs = [
            {"context": text, "qas": [{"id": f"{part}{number}", "question": "which", "answers": answers[number]}]}
            for number, text in enumerate(texts)
        ]
        (folder / "squad" / f"{part}.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        sentences = [
            "\n".join(f"{word} NN I-NP {'B-PER' if word == 'name' else 'O'}" for word in t.split()) for t in texts
        ]
        (folder / "conll2003" / f"{part}.txt").write_text("\n\n".join(sentences) + "\n")
    return folder


class StopsAt(Progress):
    """Raises KeyboardInterrupt when a line contains the given words."""

    def __init__(self, words: str) -> None:
        self.words, self.said = words, []

    def say(self, line: str) -> None:
        self.said.append(line)
        if self.words in line:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def table_5(tmp_path_factory, corpus, tasks):
    """Return the folder and the result of Table 5 with two seeds, one run after the other."""
    out = tmp_path_factory.mktemp("table-5") / "whole"
    return out, reproduce("table5", out=out, repeats=Repeats(2), corpus=corpus, tasks=tasks, overrides=SMALL)


def test_table_5_is_run_and_goes_on_where_it_was_stopped(table_5, tmp_path, corpus, tasks):
    out, whole = table_5
    assert list(whole["scores"]) == ["BERT", "No NSP", "LTR & No NSP", "+ BiLSTM"]
    assert all(sorted(columns) == ["pair", "sentence", "span"] for columns in whole["scores"].values())
    assert all(len(values) == 2 for columns in whole["scores"].values() for values in columns.values())
    assert ["nsp_loss" in found[0] for found in whole["models"].values()] == [True, False, False]
    table = (out / "table.md").read_text()
    assert "|  | rte, accuracy | sst-2, accuracy | squad, f1 | the paper |" in table
    assert "| + BiLSTM |" in table
    assert f"; {whole['cpu_seconds'] / 60:.0f} CPU minutes, " in table
    assert whole["cpu_seconds"] > sum(found["cpu_seconds"] for runs in whole["models"].values() for found in runs) > 0
    assert "SQuAD 84.9 |" in table
    assert all(trend["claim"] in table for trend in whole["trends"])
    assert (out / "report.html").read_text().count("<svg") == 3

    copytree(tasks / "SST-2", tmp_path / "tasks" / "SST-2")
    how = {"repeats": Repeats(1), "corpus": corpus, "tasks": tmp_path / "tasks", "overrides": SMALL}
    for words in ("pre-training No NSP, seed 0", "+ BiLSTM on sentence, seed 0"):
        with pytest.raises(KeyboardInterrupt):
            reproduce("table5", out=tmp_path / "again", **how, progress=StopsAt(words))
    again = reproduce("table5", out=tmp_path / "again", **how)
    assert again["scores"] == {arm: {"sentence": columns["sentence"][:1]} for arm, columns in whole["scores"].items()}
    with pytest.raises(ConfigError, match="was started with"):
        reproduce("table5", out=tmp_path / "again", **{**how, "overrides": {}})
    other = replace(TABLE_5, models={**TABLE_5.models, "No NSP": ("data.masked_lm_prob=0.2",)})
    with (
        patch.dict(EXPERIMENTS, table5=lambda _: other),
        pytest.raises(ConfigError, match=r"was started by another version"),
    ):
        reproduce("table5", out=tmp_path / "again", **how)


@pytest.mark.slow
def test_runs_made_at_once_give_the_same_scores(table_5, tmp_path, corpus, tasks):
    alone = table_5[1]
    copytree(tasks / "SST-2", tmp_path / "tasks" / "SST-2")
    how = {"out": tmp_path / "two", "corpus": corpus, "tasks": tmp_path / "tasks", "overrides": SMALL}
    with pytest.raises(KeyboardInterrupt):
        reproduce("table5", **how, repeats=Repeats(1), progress=StopsAt("pre-training LTR"))
    torch.set_num_threads(threads := 2)
    two = reproduce("table5", **how, repeats=Repeats(1, num_jobs=2), progress=(heard := StopsAt("never said")))
    for arm, columns in alone["scores"].items():
        assert two["scores"][arm] == {"sentence": columns["sentence"][:1]}
    assert torch.get_num_threads() == threads
    expected = {name for name in alone["seconds"] if "seed 1" not in name and " on pair" not in name}
    assert two["seconds"].keys() == {name for name in expected if " on span" not in name}
    assert "done: pre-training No NSP, seed 0" not in heard.said
    assert sum(line.startswith("done: ") for line in heard.said) >= 4
    page = (tmp_path / "two" / "table.md").read_text()
    assert "--jobs 2 " in page
    assert "2 single-threaded runs in parallel" in page
    torch.set_num_threads(1)


@pytest.mark.slow
def test_more_seeds_are_added_to_those_that_are_there(tmp_path, corpus, tasks):
    how = {"corpus": corpus, "tasks": tasks, "overrides": SMALL}
    first = reproduce(
        "table6", out=tmp_path / "run", repeats=Repeats(1), **how, progress=(heard := StopsAt("never said"))
    )
    assert {trend["verdict"] for trend in first["trends"]} == {"not measured"}
    second = reproduce("table6", out=tmp_path / "run", repeats=Repeats(2), **how)
    for arm, columns in second["scores"].items():
        assert columns["mlm_perplexity"][0] == first["scores"][arm]["mlm_perplexity"][0]
    assert {len(trend["values"]) for trend in second["trends"]} == {2}
    told = next(number for number, line in enumerate(heard.said) if line.startswith("about "))
    assert re.fullmatch(r"about .+: .+ of pre-training and .+ for 10 runs of fine-tuning", heard.said[told])
    assert sum("pre-training" in line for line in heard.said[:told]) == 0
    assert sum("pre-training" in line for line in heard.said[told + 1 :]) == 5


def test_figure_4_reads_checkpoints_of_one_run(tmp_path, corpus, tasks):
    result = reproduce("figure4", out=tmp_path, repeats=Repeats(1), corpus=corpus, tasks=tasks, overrides=SMALL)
    exported = sorted(path.name for path in (tmp_path / "pretrained" / "bert-0" / "exported").iterdir())
    assert exported == ["step-1", "step-2", "step-4", "step-6", "step-8"]
    assert len(result["scores"]) == 12
    page = (tmp_path / "report.html").read_text()
    assert page.count("<polyline") == 2  # one seed has no spread
    assert "text: corpus (topics.txt), " in page
    assert " --corpus CORPUS --tasks TASKS --" in page  # no paths of this machine
    assert str(tasks) not in page + (tmp_path / "table.md").read_text()


def test_features_and_masking_are_measured_on_tagged_words(tmp_path, corpus, tasks):
    settings = {**SMALL, "finetune": [*SMALL["finetune"], "features.lstm_size=8"]}
    settings["pretrain"] = [*SMALL["pretrain"], "model.config.num_hidden_layers=4"]
    result = reproduce("table7", out=tmp_path / "7", repeats=Repeats(1), corpus=corpus, tasks=tasks, overrides=settings)
    assert list(result["scores"])[:2] == ["fine-tuning", "embeddings"]
    with pytest.raises(
        ConfigError, match=r"table7 needs conll2003/train\.txt and conll2003/dev\.txt; pass --tasks FOLDER"
    ):
        reproduce("table7", out=tmp_path / "none")
    assert not (tmp_path / "none").exists() or not list((tmp_path / "none").glob("*.json"))


@pytest.mark.slow
def test_variations_of_the_transformer_are_trained_from_nothing_on_translations(tmp_path):
    folder = tmp_path / "tasks" / "multi30k"
    folder.mkdir(parents=True)
    lines = {"de": "ein Hund und eine Katze laufen\n", "en": "a dog and a cat run\n"}
    for part, language in product(("train", "val"), lines):
        (folder / f"{part}.{language}").write_text(lines[language] * (8 if part == "train" else 2), encoding="utf-8")
    short = {"finetune": ["training.steps=1", "training.num_threads=1", "seq2seq.beam=1", "data.max_length=16"]}
    how = {"repeats": Repeats(1), "tasks": tmp_path / "tasks"}
    result = reproduce("transformer-table3", out=tmp_path / "out", overrides=short, **how)
    changed = {name: load_recipe(FinetuneRecipe, tmp_path / "out" / "finetuned" / f"{name}-0-multi30k" / "recipe.toml")
               for name in ("the-model", "more-layers", "label-smoothing-0-2", "big")}  # fmt: skip
    assert changed["the-model"].training.epochs == 1.0
    assert changed["more-layers"].model.config["num_hidden_layers"] == 4
    assert changed["label-smoothing-0-2"].seq2seq.label_smoothing == 0.2
    assert len(result["scores"]) == 20
    assert changed["big"].model.config["num_attention_heads"] == 8
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| parameters, millions (the paper) |" in table
    assert not re.search(r"<title>[^<]*%", (tmp_path / "out" / "report.html").read_text())  # BLEU is not a percentage
    assert re.search(r"\| one head \| \d.* \| \d\.\d\d \(65\) \| h 1 24.9 \|", table)
    assert result["parameters"]["half the key size"] < result["parameters"]["the model"]
    model, _ = load_model(tmp_path / "out" / "finetuned" / "the-model-0-multi30k" / "model")
    assert result["parameters"]["the model"] == sum(map(torch.numel, model.parameters()))
    with pytest.raises(ConfigError, match=r"table3 needs multi30k/train\.de and multi30k/val\.de; pass --tasks FOLDER"):
        reproduce("transformer-table3", out=tmp_path / "none")
    with pytest.raises(ConfigError, match="nothing is pre-trained; leave out --corpus"):
        reproduce("transformer-table3", out=tmp_path / "none", overrides=SMALL, **how)


@pytest.mark.slow
def test_a_budget_compares_recipes_and_models_from_elsewhere(tmp_path, corpus, tasks):
    tiny = [*SMALL["pretrain"][:3], "training.batch_size=2", "training.num_threads=1"]
    settings = {"pretrain": tiny, "finetune": SMALL["finetune"]}
    how = {"repeats": Repeats(2), "corpus": corpus, "tasks": tasks, "overrides": settings}
    alone = reproduce("budget", out=tmp_path / "alone", scale=Budget(0.01), **how)
    assert list(alone["scores"]) == ["one-hour", "the paper's, size mini", "word vectors", "bag of words"]
    assert {len(found) for found in alone["models"].values()} == {1}
    assert {len(alone["scores"]["one-hour"][column]) for column in ("sst-2", "rte", "squad", "conll2003")} == {2}
    assert 1 <= len(alone["scores"]["one-hour"]["masked_loss"]) <= 5
    assert sorted(alone["scores"]["word vectors"]) == ["conll2003", "rte", "sst-2"]
    assert sorted(alone["scores"]["bag of words"]) == ["rte", "sst-2"]
    record = alone["trained"]["the paper's, size mini"]
    assert (record["layers"], record["width"], record["threads"]) == (1, 8, 1)
    assert 0 <= record["minutes"] <= 0.01
    assert alone["seconds"]["pre-training the paper's, size mini, seed 0"] == 60 * record["minutes"]
    assert "| one-hour | 1 × 8 | 0.0 | 1 |" in (tmp_path / "alone" / "table.md").read_text()
    assert (tmp_path / "alone" / "report.html").read_text().count("<svg") == 5  # the loss and four tasks

    scale = Budget(0.01, {"mine": tmp_path / "alone" / "pretrained" / "one-hour-0"})
    with pytest.raises(KeyboardInterrupt):
        reproduce("budget", out=tmp_path / "beside", scale=scale, **how, progress=StopsAt("mine on rte, seed 1"))
    beside = reproduce("budget", out=tmp_path / "beside", scale=scale, **how)
    assert beside["scores"]["mine"]["masked_loss"] == alone["scores"]["one-hour"]["masked_loss"]
    assert beside["scores"]["mine"]["rte"] == alone["scores"]["one-hour"]["rte"]
    claims = [trend["claim"] for trend in beside["trends"]]
    assert claims[0] == "the loss is half a nat below that of mine"
    assert "better than mine on conll2003" in claims
    table = (tmp_path / "beside" / "table.md").read_text()
    assert "--minutes 0.01 --seeds 2 --beside mine=FOLDER --" in table
    assert "the paper |" not in table
    with pytest.raises(ConfigError, match="was started with"):
        reproduce("budget", out=tmp_path / "beside", scale=Budget(0.02, scale.beside), **how)


def test_a_model_of_another_vocabulary_is_refused_before_the_first_run(tmp_path, corpus, tasks, minilm_folder):
    with pytest.raises(ConfigError, match="its vocabulary differs from that of the corpus"):
        reproduce("budget", out=tmp_path, scale=Budget(1, {"x": minilm_folder}), corpus=corpus, tasks=tasks)
    assert not (tmp_path / "pretrained").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table5", "--minutes", "3"), "--minutes: it is for budget, not for table5"),
        (("budget", "--scale", "paper"), "--scale: for budget, --minutes sets the scale"),
        (("budget", "--beside", "folder"), "--beside folder: write NAME=FOLDER, each name once"),
        (("budget", "--beside", "x=nowhere"), "nowhere"),
        (("table5", "--corpus", "nowhere", "--tasks", "."), "nowhere: no such folder"),
        (("table5", "--corpus", "nowhere"), "a corpus of your own needs tasks: --tasks FOLDER"),
        (("table5", "--set", "training.steps=3"), "--set training.steps=3: write pretrain.KEY=VALUE or finetune.KEY"),
        (("table5", "--tasks", "nowhere"), "nowhere: no tasks found"),
        (("table9",), "'table9' is not one of"),
        (("figure1", "--tasks", "nowhere"), "--tasks: figure1 makes its own inputs"),
        (("figure1", "--seeds", "5"), "--seeds: figure1 makes its own inputs"),
        (("table5", "--set", "pretrain.foo=1"), "--set 'pretrain.foo=1': unknown key 'pretrain.foo'; known keys: "),
        (("table5", "--set", "pretrain.lr=1"), "did you mean 'pretrain.training.learning_rate'?"),
        (("figure1", "--device", "cuda:9"), "--device cuda:9: figure1 is measured on the CPU"),
        (("table5", "--device", "cuda:99", "--jobs", "1"), "device 'cuda:99': torch"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(command, tmp_path, arguments, message):
    code, said = command("reproduce", *arguments, "--out", tmp_path / "out")
    assert code in (2, 3)
    assert message in " ".join(said.split())
    assert not list(tmp_path.glob("out/*.json"))


def test_a_wrong_setting_is_refused_before_the_first_run(tmp_path, corpus, tasks):
    for settings in ({"pretrain": ["model.config.hidden_size=7"]}, {"finetune": ["training.epochs=-1"]}):
        with pytest.raises(ConfigError, match=r"hidden_size|epochs"):
            reproduce("table5", out=tmp_path, corpus=corpus, tasks=tasks, overrides={**SMALL, **settings})
        assert not list(tmp_path.glob("*.json"))


def test_tasks_that_would_not_be_used_are_refused(tmp_path, corpus, tasks):
    with pytest.raises(ConfigError, match="without --corpus, table5 uses tasks from the documentation"):
        reproduce("table5", out=tmp_path / "out", tasks=tasks)
    (tmp_path / "spans").mkdir()
    (tmp_path / "spans" / "squad").symlink_to(tasks / "squad")
    with pytest.raises(ConfigError, match="figure4 needs sst-2 or cola; pass --tasks FOLDER"):
        reproduce("figure4", out=tmp_path / "out", corpus=corpus, tasks=tmp_path / "spans")
    assert not list((tmp_path / "out").glob("*.json"))
