"""The contract of every kind of task in the table, from files on disk to predictions of a saved model."""

import copy
import json
from functools import partial
from types import UnionType
from typing import get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
import torch
import transformers
from tests.contract.task_files import FILES, WORDS
from tests.fine_tuning import finetune
from tokenizers.pre_tokenizers import ByteLevel

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import DataError
from maskloom.inference import Prediction, Predictor
from maskloom.inference.model_folder import load_tokenizer
from maskloom.models.architectures import config_of
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.models.gpt_config import GptConfig
from maskloom.models.model_config import ModelSection
from maskloom.models.transformer_config import TransformerConfig
from maskloom.runs.display import Progress
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import predict
from maskloom.runs.report.examples import examples_of
from maskloom.runs.report.record import read_run
from maskloom.tasks.encoding import batches_by_length
from maskloom.tasks.examples import ReadExamples
from maskloom.tasks.kinds import KINDS, make_task
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.task import evaluate_task, model_outputs, score_outputs
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, SpecialTokens, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings, train_vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *sorted({word.lower() for word in WORDS}), "##s"])
CONFIG = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=14,
    num_hidden_layers=2,
    num_attention_heads=7,
    intermediate_size=13,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.5,
)
MAX_LENGTH = 24
CLASSES = frozenset(dir(transformers))  # listed without importing them


def save_bert(folder):
    save_model(build_model(CONFIG, (), seed=0), folder)
    WordPieceTokenizer(VOCABULARY, max_length=64).save(folder)


def save_gpt(folder, tokenizer, **keys):
    sizes = CONFIG.model_dump(include={"hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range"})
    no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout_prob"), 0.0)
    config = GptConfig(**sizes, **no_dropout, intermediate_size=56, vocab_size=len(tokenizer.vocabulary), **keys)
    save_model(build_model(config, (), seed=0), folder)
    tokenizer.save(folder)


def save_first_gpt(folder):
    """Write a first GPT: word-level byte pairs, with the special tokens of tasks in the vocabulary."""
    save_gpt(folder, train_vocabulary(WORDS * 2, VocabularySettings(size=80, model="bpe"))[0])


def save_gpt2(folder):
    """Write a GPT-2: byte-level BPE with only an end token; fine-tuning adds the other special tokens."""
    merges = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("n", "n"), ("Ġ", "A"), ("ĠA", "nn"), ("ĠAnn", "a"))
    tokens = [*sorted(ByteLevel.alphabet()), *map("".join, merges), "<|endoftext|>"]
    special = SpecialTokens(begin="<|endoftext|>", end="<|endoftext|>")
    save_gpt(folder, BytePairTokenizer(Vocabulary(tokens, special, prefix=""), merges, lowercase=False), pre_norm=True)


def save_transformer(folder):
    sizes = CONFIG.model_dump(include={"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"})
    config = TransformerConfig(**sizes, intermediate_size=56, hidden_dropout_prob=0.0)
    save_model(build_model(config, (), seed=0), folder)
    WordPieceTokenizer(VOCABULARY, max_length=64).save(folder)


def save_of_bytes(folder, architecture):
    """Write a published encoder-decoder architecture with byte-level BPE."""
    options = {"model": "byte-bpe", "lowercase": False}
    tokenizer = train_vocabulary([" ".join(WORDS)] * 2, VocabularySettings(size=300, **options))[0]
    sizes = CONFIG.model_dump(include={"num_hidden_layers", "intermediate_size", "hidden_dropout_prob"})
    sizes |= {"hidden_size": 16, "num_attention_heads": 4, "max_position_embeddings": 128}
    config = ModelSection(architecture=architecture, config=sizes)
    marks = (tokenizer.vocabulary.ids[token] for token in ("<pad>", "<s>", "</s>"))
    config = config_of(config, vocab_size=len(tokenizer.vocabulary)).with_marks(*marks)
    save_model(build_model(config, (), seed=0), folder)
    tokenizer.save(folder)


WITH_DECODERS = {
    "transformer": save_transformer,
    **{name: partial(save_of_bytes, architecture=name) for name in ("bart", "marian", "t5")},
}
MODELS = {"bert": save_bert, "gpt": save_first_gpt, "gpt2": save_gpt2, **WITH_DECODERS}


# Models that are trained, evaluated and used for each kind of task; `make test-all` runs the other pairs as well.
TRAINED = {
    "seq2seq": ("transformer", "bart", "marian", "t5"),
    "single": ("bert", "gpt", "gpt2", "transformer", "bart", "t5"),
    "pair": ("bert", "gpt2"),
    "regression": ("bert", "gpt"),
    "multilabel": ("bert", "transformer"),
    "document": ("bert", "gpt2"),
    "tagging": ("bert", "gpt2", "bart"),
    "span": ("bert", "gpt2", "bart"),
    "choice": ("bert", "gpt", "t5"),
}


def pytest_generate_tests(metafunc):
    """Run tests on every kind of task and every model that fits it; seq2seq needs a model with a decoder."""
    marks = metafunc.definition.iter_markers("parametrize")
    kinds = next((mark.args[1] for mark in marks if mark.args[0] == "name"), None)
    if "model_folder" not in metafunc.fixturenames:
        if "name" in metafunc.fixturenames and kinds is None:
            metafunc.parametrize("name", list(KINDS), indirect=True)
    elif kinds is None:
        is_trained = metafunc.function is test_from_training_to_predictions
        has_all = is_trained or metafunc.function is test_a_saved_model_names_its_class
        models = [model for model in MODELS if has_all or model not in ("marian", "t5")]  # they share much with others
        pairs = [(kind, model) for kind in KINDS for model in models if kind != "seq2seq" or model in WITH_DECODERS]
        slow = [is_trained and model not in TRAINED[kind] for kind, model in pairs]
        marks = [[pytest.mark.slow] if is_slow else [] for is_slow in slow]
        marked = [pytest.param(*pair, marks=mark) for pair, mark in zip(pairs, marks, strict=True)]
        metafunc.parametrize(("name", "model_folder"), marked, indirect=True)
    else:
        models = [pytest.param(model, marks=[pytest.mark.slow] if model == "marian" else []) for model in MODELS]
        metafunc.parametrize("model_folder", models, indirect=True)  # Marian is nearly a BART


@pytest.fixture
def name(request):
    return request.param


@pytest.fixture
def recipe(name):
    values = {
        "task": name,
        "data": {"max_length": MAX_LENGTH},
        "training": {"epochs": 2.0, "batch_size": 4, "learning_rate": 1e-3, "num_threads": 1},
    }
    if name == "span":
        values["span"] = {"stride": 8, "max_question_length": 5}
    if name == "seq2seq":
        values["seq2seq"] = {"max_target_length": MAX_LENGTH}
    return validate_recipe(FinetuneRecipe, values, source="test")


@pytest.fixture(scope="module")
def saved_models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def model_folder(request, saved_models):
    folder = saved_models / request.param
    if not folder.exists():
        folder.mkdir()
        MODELS[request.param](folder)
    return folder


@pytest.fixture
def files(name, saved_models):
    """Return the training and dev data of a kind, which tests only read."""
    paths = []
    for part, size in (("train", 13), ("dev", 9)):
        file, content = FILES[name](np.random.default_rng(size), size)
        path = saved_models / f"{name}-{part}-{file}"
        if not path.exists():
            path.write_text(content, encoding="utf-8")
        paths.append(path)
    return paths


@pytest.fixture(scope="module")
def made():
    """Return what `prepared` has made for each kind of task and each model."""
    return {}


@pytest.fixture
def prepared(name, recipe, model_folder, files, made):
    """Return the task, an untrained model for it, its tokenizer, and the dev data, shared between tests."""
    key = (name, model_folder)
    if key not in made:
        made[key] = prepare(name, recipe, model_folder, files)
    made[key][1].train()
    return made[key]


def prepare(name, recipe, model_folder, files):
    kind, settings = KINDS[name], recipe.task_settings(KINDS[name].settings)
    train = kind.read(files[0], ReadingOptions(), settings)
    task = kind.make(kind.label_names(train, ReadingOptions(), settings), None, settings)
    model, _ = load_model(model_folder, heads=task.heads, num_labels=task.num_outputs, seed=1)
    tokenizer = load_tokenizer(model_folder).with_task_tokens()
    model.resize_vocabulary(len(tokenizer.vocabulary), seed=1)
    return task, model, tokenizer, kind.read(files[1], ReadingOptions(), settings)


def test_units_and_batches(name, prepared):
    task, _, tokenizer, dev = prepared
    encoded = task.encode(dev, tokenizer, MAX_LENGTH)
    assert len(encoded) == len(encoded.lengths) >= len(dev.examples) == 9
    assert encoded.num_examples == 9
    seen, num_tokens = [], 0
    for batch in batches_by_length(encoded, max_tokens=60):
        seen += batch.indices.tolist()
        num_tokens += batch.num_tokens
        assert batch.lengths.sum() == len(batch.token_ids) == len(batch.segment_ids)
        assert 2 < batch.lengths.max() <= MAX_LENGTH
        assert task.objective.row_counts(batch).shape == (len(batch.indices),)
        parts = batch.split(2)
        assert np.array_equal(np.concatenate([part.token_ids for part in parts]), batch.token_ids)
        assert np.array_equal(np.concatenate([part.indices for part in parts]), batch.indices)
        assert sum(map(len, (part.labels for part in parts))) == len(batch.labels)
    assert sorted(seen) == list(range(len(encoded)))
    assert num_tokens == encoded.lengths.sum()
    again = task.encode(dev, tokenizer, MAX_LENGTH)
    first, second = (data.batch(np.arange(len(data))) for data in (encoded, again))
    assert np.array_equal(first.token_ids, second.token_ids)


def test_outputs_do_not_depend_on_batches(prepared):
    task, model, tokenizer, dev = prepared
    encoded = task.encode(dev, tokenizer, MAX_LENGTH)
    alone, together = (model_outputs(model, task.objective, encoded, max_units=size) for size in (1, None))
    assert alone.loss_sum == pytest.approx(together.loss_sum, rel=1e-5)
    assert alone.weight == together.weight > 0
    for one, other in zip(alone.rows, together.rows, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_outputs_in_half_precision_are_finite_and_near(prepared, monkeypatch):
    """Run bf16 autocast on the CPU, in place of CUDA's."""
    task, model, tokenizer, dev = prepared
    encoded = task.encode(dev, tokenizer, MAX_LENGTH)
    plain, asked = model_outputs(model, task.objective, encoded), []
    in_half = torch.autocast("cpu", torch.bfloat16)
    monkeypatch.setattr("maskloom.tasks.task.inference_in", lambda *how: asked.append(how) or in_half)
    half = model_outputs(model, task.objective, encoded, precision="bf16")
    assert set(asked) == {("bf16", torch.device("cpu"))}
    assert half.loss_sum == pytest.approx(plain.loss_sum, rel=0.05)
    for one, other in zip(half.rows, plain.rows, strict=True) if task.kind != "seq2seq" else ():  # its rows are ids
        np.testing.assert_allclose(one, other, rtol=0, atol=0.2)
    evaluate_task(model, task, encoded, "fp32")
    assert asked[-1][0] == "fp32"


def assert_near(one, other):
    """Compare plain values, numbers up to rounding."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = [*one.values()], [*other.values()]
    if isinstance(one, list):
        assert len(one) == len(other)
        for part, wanted in zip(one, other, strict=True):
            assert_near(part, wanted)
    else:
        assert one == pytest.approx(other, abs=1e-4)


def test_predictions_are_plain_values_in_order(prepared):
    task, model, tokenizer, dev = prepared
    predictor = Predictor(model, tokenizer, task=task, max_length=MAX_LENGTH)
    predictions = predictor.predict_examples(dev)
    assert len(predictions) == len(dev.examples)
    assert json.loads(json.dumps(predictions)) == predictions
    half = ReadExamples(dev.examples[:4], dev.report)
    for one, other in zip(predictor.predict_examples(half), predictions[:4], strict=True):
        assert_near(one, other)


def test_scores_of_pieces_are_the_scores_of_the_whole(name, prepared):
    task, model, tokenizer, dev = prepared
    whole = evaluate_task(model, task, task.encode(dev, tokenizer, MAX_LENGTH))
    pieces = (
        task.encode(ReadExamples(dev.examples[first : first + 4], dev.report), tokenizer, MAX_LENGTH)
        for first in (0, 4, 8)
    )
    parts = score_outputs(task, pieces, lambda piece: model_outputs(model, task.objective, piece))
    assert parts.scores == pytest.approx(whole.scores, rel=1e-5)
    assert task.primary in whole.scores


def test_outputs_that_are_no_numbers_are_neither_scored_nor_predicted(prepared):
    task, model, tokenizer, dev = prepared
    model = copy.deepcopy(model)
    with torch.no_grad():
        next(model.heads[task.heads[-1]].parameters()).view(-1)[0] = torch.nan
    with pytest.raises(DataError, match="not finite numbers"):
        evaluate_task(model, task, task.encode(dev, tokenizer, MAX_LENGTH))
    with pytest.raises(DataError, match="not finite numbers"):
        Predictor(model, tokenizer, task=task, max_length=MAX_LENGTH).predict_examples(dev)


def test_data_without_labels_is_not_scored(name, prepared, files):
    task, model, tokenizer, dev = prepared
    unlabelled = KINDS[name].read(files[1], ReadingOptions(), task.settings, needs_label=False)
    examples = unlabelled.examples
    assert [example.inputs() for example in examples] == [example.inputs() for example in dev.examples]
    assert all(isinstance(example.as_row(), dict) and example.line >= 1 for example in examples)
    with pytest.raises(ValueError, match="the data has no labels"):
        evaluate_task(model, task, task.encode(unlabelled, tokenizer, MAX_LENGTH))


INPUTS = {
    "regression": "the cat sat",
    "tagging": "Anna ran in Rome .",
    "pair": ("the cat", "sat"),
    "span": ("who ran ?", "Anna ran in Rome ."),
    "choice": ("the cat", ["sat", "ran in Rome"]),
}


def fits(value, hint):
    """Tell whether a plain value has the hinted type; keys of a TypedDict may be absent."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        return value.keys() <= hints.keys() and all(fits(item, hints[key]) for key, item in value.items())
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(fits(value, choice) for choice in inner)
    if origin in (list, dict):
        items = value if origin is list else [*value.values()]
        return type(value) is origin and all(fits(item, inner[-1]) for item in items)
    return type(value) is hint


def test_what_is_handed_over_in_python_is_predicted(name, prepared):
    task, model, tokenizer, _ = prepared
    predictor = Predictor(model, tokenizer, task=task, max_length=MAX_LENGTH)
    item = INPUTS.get(name, "the dog")
    predictions = predictor.predict([item, item])
    assert len(predictions) == 2
    assert all(fits(prediction, Prediction) for prediction in predictions)
    assert predictor.predict([]) == []
    with pytest.raises(DataError, match="one string"):
        predictor.predict("the dog")
    for wrong in (7, ("a", "b", "c"), "half \ud800", (None, "b")):
        with pytest.raises(DataError, match="input 1: "):
            predictor.predict([item, wrong])


def test_unknown_scores_are_refused_before_training(name, prepared):
    task = prepared[0]
    with pytest.raises(ValueError, match="'speed'"):
        KINDS[name].make(task.labels, "speed", task.settings)


@pytest.mark.parametrize("content", ["", "\n\n", "{", "\x00\x01", "a,b\n"])
def test_files_of_another_form_are_refused_by_name(name, recipe, files, content, tmp_path):
    path = tmp_path / files[0].name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=path.name):
        KINDS[name].read(path, ReadingOptions(), recipe.task_settings(KINDS[name].settings))


@pytest.mark.parametrize("name", ["tagging"], indirect=True)
@pytest.mark.parametrize("more", [{"tagging": {"crf": True}}, {"features": {"layers": "last", "lstm_size": 8}}])
def test_taggers_of_our_own_work_on_every_encoder(recipe, more, model_folder, files, tmp_path):
    values = recipe.model_dump(exclude_unset=True)
    values = {**values, "training": {**values["training"], "epochs": 1.0}, **more}
    recipe = validate_recipe(FinetuneRecipe, values, source="test")
    result = finetune(recipe, model=model_folder, train=files[0], dev=files[1], out=tmp_path / "run")
    scored = evaluate(tmp_path / "run", files[1])
    assert scored["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("single", "tagging", "span", "choice"),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pair", "regression", "multilabel", "document")),
    ],
    indirect=True,
)
def test_a_left_to_right_encoder_is_fine_tuned_alike(recipe, files, tmp_path):
    folder = tmp_path / "causal"
    save_model(build_model(CONFIG.model_copy(update={"causal": True}), (), seed=0), folder)
    WordPieceTokenizer(VOCABULARY, max_length=64).save(folder)
    result = finetune(recipe, model=folder, train=files[0], dev=files[1], out=tmp_path / "run")
    assert load_model(tmp_path / "run" / "model")[0].config.causal
    scored = evaluate(tmp_path / "run", files[1])
    for score, value in result["best"]["scores"].items():
        assert scored[score] == pytest.approx(value, rel=1e-5), score
    assert "transformers" not in (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8").split("```")[0]


def assert_names_its_class(folder):
    """Check that a model names a class of transformers, or one that says that only maskloom has it."""
    (named,) = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    assert (named in CLASSES) != named.startswith("Maskloom")


def test_a_saved_model_names_its_class(prepared, tmp_path):
    save_model(prepared[1], tmp_path)
    assert_names_its_class(tmp_path)


def test_from_training_to_predictions(name, recipe, model_folder, files, tmp_path):
    """The saved model has the dev scores that training reported; a second run gives the same weights.

    For the other kinds of task, test_finetuning_lengths.py compares runs to the bit.
    """
    train, dev = files
    result = finetune(recipe, model=model_folder, train=train, dev=dev, out=tmp_path / "run")
    # an epoch is a pass over all units, which are windows where questions have several
    assert 1.6 < result["last"]["epoch"] <= 2.0
    scored = evaluate(tmp_path / "run", dev)
    for score, value in result["best"]["scores"].items():
        assert scored[score] == pytest.approx(value, rel=1e-5), score
    if name in ("single", "seq2seq"):
        finetune(recipe, model=model_folder, train=train, dev=dev, out=tmp_path / "again")
        first, second = (load_model(tmp_path / run / "model")[0].state_dict() for run in ("run", "again"))
        assert all(torch.equal(first[key], second[key]) for key in first)
    written = predict(tmp_path / "run", dev, tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == written["num_predictions"] == 9
    assert [row["index"] for row in rows] == list(range(9))
    settings = json.loads((tmp_path / "run" / "model" / "maskloom.json").read_text(encoding="utf-8"))
    assert_names_its_class(tmp_path / "run" / "model")
    assert settings["kind"] == name
    shown = examples_of(read_run(tmp_path / "run", "run"), 100, Progress())
    assert shown["num_predicted"] == shown["num_in_file"] == 9
    assert all(one.text and one.truth and one.answer for one in [*shown["right"], *shown["wrong"]])
    assert shown["is_graded"] == (name == "regression")
    assert shown["is_graded"] or all(one.error for one in shown["wrong"])
    assert not any(one.error for one in shown["right"]) or shown["is_graded"]
    if "accuracy" in scored and name != "tagging":
        assert shown["num_right"] == round(9 * scored["accuracy"])
        assert len(shown["right"]) + len(shown["wrong"]) == 9 or max(map(len, (shown["right"], shown["wrong"]))) == 8


@pytest.mark.parametrize("name", KINDS)
def test_the_formats_of_predictions_are_known_without_a_model(name):
    task = make_task(name, ("O", "B-X") if KINDS[name].names_labels else ())
    assert set(task.forms) == set(KINDS[name].output_suffixes)
