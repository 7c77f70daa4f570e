import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from tests.fine_tuning import finetune
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, load_recipe, validate_recipe
from maskloom.data.feature_files import FeatureFile
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Ensemble, Predictor, ensemble
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.recipe_files import recipe_path
from maskloom.runs import finetune as finetune_run
from maskloom.runs.display import LineProgress
from maskloom.runs.evaluate import evaluate
from maskloom.runs.export import export
from maskloom.runs.features import Activations, features
from maskloom.runs.predict import predict
from maskloom.system.files import file_sha256
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.word_vectors import write_vectors
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

NAMES, PLACES, OTHERS = ["anna", "bob"], ["rome", "oslo"], ["saw", "the", "in", "old", ".", ","]
TRAINING = {"epochs": 6.0, "batch_size": 4, "learning_rate": 4e-2, "weight_decay": 0.0, "num_threads": 1}
FEATURES = {"layers": "concat_last_four", "lstm_size": 16, "lstm_layers": 1, "dropout": 0.0}
TABLE_7 = ("embeddings", "last", "second-to-last", "sum-last-four", "concat-last-four", "sum-all", "scalar-mix")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("model"), num_layers=4)


def tiny_folder(folder, num_layers):
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NAMES, *PLACES, *OTHERS, "##s"])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=12, num_hidden_layers=num_layers, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=24, initializer_range=0.3,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=24).save(folder)
    return folder


def sentences(num_sentences, seed, most=7):
    draw = random.Random(seed)
    kinds = {"B-PER": NAMES, "B-LOC": PLACES, "O": OTHERS}

    def word():
        tag = draw.choice(["B-PER", "B-LOC", "O", "O"])
        return draw.choice(kinds[tag]) + ("" if tag == "O" else draw.choice(["", "s"])), tag

    return [[word() for _ in range(draw.randint(1, most))] for _ in range(num_sentences)]


def write_columns(path, found):
    path.write_text("".join("".join(f"{word} {tag}\n" for word, tag in rows) + "\n" for rows in found))
    return path


def recipe(training=None, tagging=None, **options):
    values = {"task": "tagging", "features": {**FEATURES, **options}, "data": {"max_length": 16}}
    values |= {"training": {**TRAINING, **(training or {})}, "tagging": tagging or {}}
    return validate_recipe(FinetuneRecipe, values, source="test")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "train": write_columns(folder / "train.conll", sentences(60, 1)),
        "dev": write_columns(folder / "dev.conll", sentences(30, 2)),
    }


@pytest.fixture(scope="module")
def run(model_folder, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, finetune(recipe(), model=model_folder, out=out, **data)


@pytest.fixture(scope="module")
def loaded(model_folder):
    """Return the model and the tokenizer of the folder."""
    return load_model(model_folder, heads=())[0], Tokenizer.load(model_folder)


def hidden_states(loaded, words):
    """Return hidden states (layers, tokens, hidden) of a sentence from a padded call, its first pieces and encoding."""
    model, tokenizer = loaded
    encoding = tokenizer.encode(" ".join(words))
    with torch.inference_mode():
        states = model.encoder.eval()(torch.tensor([encoding.ids]), keep_hidden_states=True).hidden_states
    assert states is not None
    first_pieces = [place for place, word in enumerate(encoding.words) if word is not None]
    first_pieces = [p for p in first_pieces if encoding.words[p] != encoding.words[p - 1]]
    return torch.cat(states).numpy(), first_pieces, encoding


def same_weights(first, second):
    left, right = (load_model(folder)[0].state_dict() for folder in (first, second))
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("layers", "places"), [("all", [0, 1, 2, 3, 4]), ("-1,-2", [4, 3]), ("0", [0])])
def test_features_are_hidden_states_of_first_pieces(model_folder, loaded, data, tmp_path, layers, places):
    result = features(model_folder, data["dev"], tmp_path / "out", wanted=Activations(layers=layers))
    file = FeatureFile.open(tmp_path / "out")
    found = sentences(30, 2)
    assert (result["num_units"], result["num_rows"]) == (30, sum(map(len, found)))
    assert file.vectors == [str(place) for place in places]
    for unit, rows in enumerate(found):
        states, first_pieces, _ = hidden_states(loaded, [word for word, _ in rows])
        assert len(first_pieces) == len(rows)
        np.testing.assert_allclose(file.rows([unit]), states[places][:, first_pieces].transpose(1, 0, 2), atol=1e-5)
    names = [json.loads(line) for line in (tmp_path / "out" / "tokens.jsonl").read_text().splitlines()]
    assert names[3]["words"] == [word for word, _ in found[3]]


def test_the_command_names_the_vectors_of_a_row(model_folder, data, tmp_path):
    arguments = ["features", "--model", str(model_folder), "--input", str(data["dev"]), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--layers", "-1,-2"])
    assert (done.exit_code, "2 per row: layer 4, layer 3" in " ".join(done.output.split())) == (0, True), done.output
    done = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "json"), "--layers", "-1,-2", "--json"])
    assert json.loads(done.stdout)["vectors"] == ["4", "3"]
    done = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "default"), "--format", "conll", "--json"])
    assert json.loads(done.stdout)["vectors"] == ["4", "3", "2", "1"]


def test_a_model_of_fewer_than_four_layers_gives_all_of_them(data, tmp_path):
    folder = tiny_folder(tmp_path / "model", num_layers=2)
    assert features(folder, data["dev"], tmp_path / "out")["vectors"] == ["2", "1"]


def test_no_word_of_a_long_sentence_is_left_out(model_folder, tmp_path):
    rows = sentences(1, 5, most=1)[0] * 100
    path = write_columns(tmp_path / "long.conll", [rows, rows[:2]])
    result = features(model_folder, path, tmp_path / "out", wanted=Activations(layers="last"), max_length=10)
    assert result["num_rows"] == 102
    file = FeatureFile.open(tmp_path / "out")
    assert np.diff(file.offsets).tolist() == [100, 2]
    assert np.isfinite(file.array).all()


def test_every_token_of_texts_and_pairs_has_its_vectors(model_folder, loaded, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("anna saw rome ||| bobs in oslo\n\nthe old bobs .\n")
    features(model_folder, path, tmp_path / "out", wanted=Activations(layers="-1,-2,0"))
    rows = [json.loads(line) for line in (tmp_path / "out" / "tokens.jsonl").read_text().splitlines()]
    pair = ["[CLS]", "anna", "saw", "rome", "[SEP]", "bob", "##s", "in", "oslo", "[SEP]"]
    assert [row["tokens"] for row in rows[:2]] == [pair, ["[CLS]", "[SEP]"]]
    states, _, encoding = hidden_states(loaded, ["the", "old", "bobs", "."])
    vectors = FeatureFile.open(tmp_path / "out").rows([2])
    assert len(vectors) == len(rows[2]["tokens"]) == len(encoding.ids)
    for index, layer in enumerate([-1, -2, -5]):
        np.testing.assert_allclose(vectors[:, index], states[layer], atol=2e-6)


def test_links_pipes_and_folders_in_place_of_features(model_folder, data, tmp_path):
    def write(out, model=model_folder):
        features(model, data["dev"], tmp_path / out, wanted=Activations(layers="last"))

    (tmp_path / "link").symlink_to("real")
    write("link")
    assert (tmp_path / "link").is_symlink()
    assert len(FeatureFile.open(tmp_path / "real")) == 30
    tokens = tmp_path / "real" / "tokens.jsonl"
    expected = tokens.read_bytes()
    tokens.unlink()
    os.mkfifo(tokens)
    read = []
    reader = threading.Thread(target=lambda: read.append(tokens.read_bytes()))
    reader.start()
    write("real")
    reader.join(timeout=60)
    assert read == [expected]
    assert tokens.is_fifo()
    tokens.unlink()
    tokens.symlink_to(tmp_path / "kept.jsonl")
    write("real")
    assert (tmp_path / "kept.jsonl").read_bytes() == expected
    assert tokens.is_symlink()
    tokens.unlink()
    tokens.mkdir()
    os.mkfifo(tmp_path / "pipe")
    for out, message in (("real", "this is a folder; the output must be a file"), ("pipe", "not a folder of features")):
        with pytest.raises(ConfigError, match=message):
            write(out, model=tmp_path / "absent")


def test_training_on_features_equals_training_with_the_encoder_in_the_loop(model_folder, data, tmp_path, monkeypatch):
    short = recipe(training={"epochs": 2.0})
    result = finetune(short, model=model_folder, out=tmp_path / "run", **data)
    monkeypatch.setattr(finetune_run, "with_features", lambda plan, *_: plan)
    looped = finetune(short, model=model_folder, out=tmp_path / "looped", **data)
    assert [(tmp_path / name / "features").exists() for name in ("run", "looped")] == [True, False]
    assert looped["best"]["scores"]["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-3)
    left, right = (load_model(tmp_path / name / "model")[0].state_dict() for name in ("run", "looped"))
    for name, values in left.items():
        torch.testing.assert_close(values, right[name], rtol=0, atol=2e-3)


def test_it_learns_and_the_encoder_stays_as_it_was(run, model_folder):
    out, result = run
    assert result["best"]["scores"]["f1"] > 0.7
    before, after = load_model(model_folder, heads=())[0], load_model(out / "model", heads=())[0]
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert sorted(path.name for path in (out / "features").iterdir()) == ["dev", "train"]


def test_the_saved_model_evaluates_and_predicts_as_in_training(run, data, tmp_path):
    out, result = run
    scores = evaluate(out, data["dev"])
    assert scores["f1"] == pytest.approx(result["best"]["scores"]["f1"])
    assert scores["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-3)
    predict(out, data["dev"], tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    tags = [tag for row in rows for tag in row["tags"]]
    expected = [tag for rows in sentences(30, 2) for _, tag in rows]
    assert np.mean([a == b for a, b in zip(tags, expected, strict=True)]) == pytest.approx(scores["accuracy"])
    assert Predictor.load(out).task is not None


@pytest.mark.parametrize(
    ("options", "tagging"),
    [
        ({"layers": "scalar_mix", "precision": "float16"}, {}),
        ({"layers": "sum_all"}, {"crf": True, "context": "document"}),
    ],
    ids=["mix in half precision", "crf within documents"],
)
def test_other_choices_learn_too(model_folder, data, tmp_path, options, tagging):
    result = finetune(recipe(tagging=tagging, **options), model=model_folder, out=tmp_path / "run", **data)
    assert result["best"]["scores"]["f1"] > 0.6
    scores = evaluate(tmp_path / "run", data["dev"])
    assert scores["f1"] == pytest.approx(result["best"]["scores"]["f1"], abs=0.02)
    mix = load_model(tmp_path / "run" / "model")[0].state_dict().get("heads.bilstm_tagger.mix.weights")
    assert (mix is not None and bool(mix.any())) == (options["layers"] == "scalar_mix")


@pytest.mark.parametrize("name", TABLE_7)
def test_every_row_of_table_7_is_a_recipe(model_folder, data, tmp_path, name):
    path = recipe_path("features")
    changes = [
        f"features.layers={name.replace('-', '_')}",
        "training.steps=1",
        "data.max_length=16",
        "features.lstm_size=6",
        "training.num_threads=1",
    ]
    chosen = load_recipe(FinetuneRecipe, path, changes)
    assert chosen.features is not None
    assert chosen.features.layers == name.replace("-", "_")
    finetune(chosen, model=model_folder, out=tmp_path / "run", **data)
    vectors = FeatureFile.open(tmp_path / "run" / "features" / "dev").vectors
    assert vectors == {
        "embeddings": ["0"], "last": ["4"], "second-to-last": ["3"], "scalar-mix": ["0", "1", "2", "3", "4"],
    }.get(name, [name.replace("-", "_")])  # fmt: skip


@pytest.mark.slow
def test_a_run_killed_while_it_trains_goes_on_to_the_same_weights(run, model_folder, data, tmp_path):
    (tmp_path / "recipe.json").write_text(recipe().model_dump_json())
    code = (
        "import sys, maskloom.training.checkpointing.background_saves as saves\n"
        "from maskloom.config import FinetuneRecipe\nfrom maskloom.runs.finetune import LabelledFiles, finetune\n"
        "write = saves.write_checkpoint\n"
        "def stop(*given, **named):\n"
        "    write(*given, **named)\n    print('saved', flush=True)\n    sys.stdin.read()\n"
        "saves.write_checkpoint = stop\n"
        f"recipe = FinetuneRecipe.model_validate_json(open({str(tmp_path / 'recipe.json')!r}).read())\n"
        f"finetune(recipe, model={str(model_folder)!r}, out={str(tmp_path / 'run')!r}, "
        f"data=LabelledFiles({str(data['train'])!r}, {str(data['dev'])!r}))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"saved\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    written = (tmp_path / "run" / "features" / "train" / "features.bin").stat().st_mtime_ns
    time.sleep(0.01)
    said, progress = [], LineProgress()
    progress.say = said.append
    finetune(recipe(), model=model_folder, out=tmp_path / "run", resume=True, progress=progress, **data)
    assert [line for line in said if line.startswith("fine-tuning, seed 0: continuing at ")]
    assert (tmp_path / "run" / "features" / "train" / "features.bin").stat().st_mtime_ns == written
    assert same_weights(run[0] / "model", tmp_path / "run" / "model")


def test_damaged_features_of_a_run_are_refused_by_name(run, model_folder, data, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run[0], out)
    (out / "metrics.json").unlink()
    path = out / "features" / "dev" / "features.bin"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match=r"dev/features\.bin: its SHA-256"):
        finetune(recipe(), model=model_folder, out=out, resume=True, **data)


def test_what_does_not_fit_is_refused(model_folder, data, tmp_path):
    with pytest.raises(ConfigError, match="layer 9"):
        finetune(recipe(layers="9"), model=model_folder, out=tmp_path / "run", **data)
    assert not (tmp_path / "run").exists()
    for values, message in (
        ({"features": {}, "task": "single"}, "needs task = 'tagging'"),
        ({"features": {}, "task": "tagging", "from_scratch": True}, "weights of a trained model"),
        ({"features": {"lstm_size": 7}, "task": "tagging"}, "multiple of 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            validate_recipe(FinetuneRecipe, values, source="test")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="not a folder of features"):
        features(model_folder, data["dev"], tmp_path / "other")
    features(model_folder, data["dev"], tmp_path / "out", wanted=Activations(layers="-1"))
    with pytest.raises(DataError, match=r"manifest\.json: vectors is \['4'\], but \['3'\] is needed"):
        features(model_folder, data["dev"], tmp_path / "out", wanted=Activations(layers="-2"))
    with pytest.raises(ConfigError, match="max_length 25"):
        features(model_folder, data["dev"], tmp_path / "out2", max_length=25)
    (tmp_path / "a.txt").write_text("rome\n")
    (tmp_path / "a.jsonl").write_text('{"text": "rome"}\n')
    for name, column in (("a.jsonl", None), ("a.txt", "text")):
        how = {"wanted": Activations(units="tokens"), "reading": ReadingOptions(text_column=column)}
        with pytest.raises(ConfigError, match=f"{name}: vectors of tokens are for text files"):
            features(model_folder, tmp_path / name, tmp_path / "out2", **how)
    (tmp_path / "b.txt").write_text("Rome\n\x01\n")
    # wrong text is refused before weights are read
    unread = shutil.copytree(model_folder, tmp_path / "unread", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(DataError, match=r"b\.txt: line 2: a sentence without words"):
        features(unread, tmp_path / "b.txt", tmp_path / "out3", wanted=Activations(units="words"))


@pytest.mark.slow
def test_word_vectors_are_joined_to_features_and_travel_with_the_model(model_folder, data, tmp_path):
    words = sorted({word for path in data.values() for word in re.findall(r"^(\S+) ", path.read_text(), re.M)})
    matrix = np.random.default_rng(0).normal(size=(len(words), 5)).astype(np.float32)
    vectors = tmp_path / "vectors.bin"
    write_vectors(vectors, words, matrix, "binary")
    chosen = {"layers": "scalar_mix", "word_vectors": str(vectors)}
    out = tmp_path / "run"
    result = finetune(recipe(**chosen), model=model_folder, out=out, **data)
    head = load_model(out / "model")[0].heads["bilstm_tagger"]
    plain = finetune(recipe(layers="scalar_mix"), model=model_folder, out=tmp_path / "plain", **data)
    assert head.bilstm.lstm.input_size == 5 + load_model(model_folder)[0].config.hidden_size
    assert result["best"]["scores"] != plain["best"]["scores"]
    moved = tmp_path / "moved"
    shutil.copytree(out / "model", moved)
    vectors.unlink()
    assert evaluate(moved, data["dev"])["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-4)
    export(out, tmp_path / "last", stage="seed-0")
    assert evaluate(tmp_path / "last", data["dev"])["loss"] == pytest.approx(result["last"]["scores"]["loss"], rel=1e-4)
    write_vectors(moved / "word_vectors", ["anna"], np.ones((1, 7), np.float32), "text")
    with pytest.raises(ConfigError, match="word vectors have 7 numbers; the model was trained with 5"):
        Predictor.load(moved).predict([["anna"]])
    (moved / "word_vectors").unlink()
    with pytest.raises(DataError, match="no word_vectors, the word vectors that the model was trained with"):
        Predictor.load(moved)


@pytest.mark.slow
def test_word_vectors_of_a_run_and_of_an_ensemble_are_the_same(model_folder, data, tmp_path, monkeypatch):
    vectors, words = tmp_path / "vectors.txt", [*NAMES, *PLACES]
    write_vectors(vectors, words, np.eye(4, dtype=np.float32), "text")
    wanted = recipe(word_vectors=str(vectors)).model_copy(update={"restarts": 2, "keep_restarts": True})
    out = tmp_path / "run"
    finetune(wanted, model=model_folder, out=out, **data)
    members = [out / "restarts" / f"seed-{seed}" / "model" for seed in (0, 1)]
    hashed: list[str] = []
    monkeypatch.setattr(ensemble, "file_sha256", lambda path: hashed.append(str(path)) or file_sha256(path))
    assert Ensemble.load(members).predict([["anna", "saw", "oslo"]])
    assert sorted(hashed) == [str(member / "word_vectors") for member in members]
    write_vectors(members[1] / "word_vectors", words, 2 * np.eye(4, dtype=np.float32), "text")
    with pytest.raises(ConfigError, match="model 2 of the ensemble differs from the first in setting features"):
        Ensemble.load(members)
    (out / "metrics.json").unlink()
    write_vectors(vectors, words, 2 * np.eye(4, dtype=np.float32), "text")
    with pytest.raises(ConfigError, match="word_vectors"):
        finetune(wanted, model=model_folder, out=out, resume=True, **data)
    with pytest.raises(ConfigError, match=r"none\.bin: cannot be read"):
        finetune(recipe(word_vectors=str(tmp_path / "none.bin")), model=model_folder, out=tmp_path / "other", **data)
    assert not (tmp_path / "other").exists()
