"""Documents from files to predictions: the title selects the sentence that matters."""

import json
import random

import pytest

import maskloom
from maskloom.errors import ConfigError, DataError
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import predict
from maskloom.runs.task_summaries import finetuning_lines
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

ANIMALS, COLOURS = ["cat", "dog", "cow", "hen"], ["red", "blue", "green"]
GRU = {
    "model.architecture": "gru",
    "model.config": {
        "hidden_size": 24,
        "pooling": "attention",
        "hidden_dropout_prob": 0.0,
        "initializer_range": 0.3,
    },
    "training.num_threads": 1,
}
BERT = {**GRU, "model.architecture": "bert"}
BERT["model.config"] = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write documents on animals; labels are the colour of the title's animal, and "warm" unless it is blue."""
    folder, draw = tmp_path_factory.mktemp("documents"), random.Random(0)
    for part, size in (("train", 800), ("dev", 100)):
        rows = []
        for _ in range(size):
            animals = draw.sample(ANIMALS, draw.randint(2, 4))
            colours = [draw.choice(COLOURS) for _ in animals]
            text = " ".join(f"The {animal} is {colour}." for animal, colour in zip(animals, colours, strict=True))
            number = draw.randrange(len(animals))
            labels = [colours[number], *(["warm"] if colours[number] != "blue" else [])]
            rows.append({"title": f"The {animals[number]}", "text": text, "labels": labels})
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *ANIMALS, *COLOURS, "the", "is", "."])
    (folder / "vocab").mkdir()
    WordPieceTokenizer(vocabulary, max_length=32).save(folder / "vocab")
    return folder


def trained(data, out, recipe, epochs=10.0):
    given = {"epochs": epochs, "learning_rate": 1e-2, "batch_size": 32, "max_length": 16, "progress": False}
    files = (data / "vocab", data / "train.jsonl", data / "dev.jsonl", out)
    return maskloom.finetune(*files, task="document", recipe=recipe, **given)


@pytest.mark.slow
def test_the_title_says_which_sentence_counts(data, tmp_path):
    regularised = {"document.similarity": 0.1, "document.implication": 0.1}
    result = trained(data, tmp_path / "guided", {**GRU, **regularised})
    scores = result["best"]["scores"]
    assert scores["f1_micro"] > 0.95
    assert scores["exact_match"] > 0.9
    assert scores["hamming_loss"] < 0.05
    assert evaluate(tmp_path / "guided", data / "dev.jsonl")["loss"] == pytest.approx(scores["loss"], rel=1e-5)
    unguided = trained(data, tmp_path / "own", {**GRU, "document.guided": False})
    assert unguided["best"]["scores"]["f1_micro"] < scores["f1_micro"] - 0.1
    settings = json.loads((tmp_path / "guided" / "model" / "maskloom.json").read_text(encoding="utf-8"))["settings"]
    assert settings["implied"] == [[1, 3], [2, 3]]  # green and red are warm
    assert [pair[:2] for pair in settings["similar"]] == settings["implied"]
    model = maskloom.load(tmp_path / "guided")
    title, text = "The hen", "The cat is blue. The hen is red. The dog is green."
    (found,) = model.predict([(title, text)])
    assert found["labels"] == ["red", "warm"]
    with pytest.raises(ConfigError, match="pairs of texts, but this is one text"):
        model.predict([text])
    (tmp_path / "new.txt").write_text(f"\n{text}\n", encoding="utf-8")
    message = (
        r"new\.txt: line 1: only one text; the model was fine-tuned on titles with their texts: give columns with both"
    )
    with pytest.raises(DataError, match=message):
        predict(tmp_path / "guided", tmp_path / "new.txt", tmp_path / "out.jsonl")
    found = []
    for name, source in (("first.jsonl", data / "dev.jsonl"), ("second.jsonl", tmp_path / "first.jsonl")):
        predict(tmp_path / "guided", source, tmp_path / name)
        found.append([json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").splitlines()])
    assert found[0] == found[1]  # the rows of predictions can be predicted again
    given = json.loads((data / "dev.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (found[0][0]["title"], found[0][0]["text"]) == (given["title"], given["text"])


def test_a_bert_reads_documents_too(data, tmp_path):
    result = trained(data, tmp_path / "run", BERT, epochs=0.5)
    assert result["task"] == "document"
    assert finetuning_lines(result)[-1].endswith("(FILE: texts, or titles with their texts)")
    assert maskloom.load(tmp_path / "run").predict([("The cat", "The cat is red.")])[0]["probabilities"].keys() == {
        "blue", "green", "red", "warm",
    }  # fmt: skip
