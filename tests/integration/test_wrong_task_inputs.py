"""Wrong input to fine-tuning or to any use of a model is refused with its value, the rule, file and line."""

import json

import pytest
from tests.fine_tuning import finetune

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError, DataError, UsageError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs import finetune as finetune_run
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import embed, predict
from maskloom.runs.task_summaries import finetuning_lines
from maskloom.system.files import write_json
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.faults.nonfinite import NumericalError

FINE = b"text,label\na,x\nb,y\n"
LATIN = "text,label\na,x\nb caf\u00e9,y\n".encode("latin-1")


def folder_of(path, heads, num_labels=None, **extra):
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    save_model(build_model(config, heads, num_labels, seed=1), path, extra_config=extra)
    WordPieceTokenizer(vocabulary, max_length=16).save(path)
    return path


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return folder_of(tmp_path_factory.mktemp("pretrained"), ("mlm", "nsp"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    names = {"id2label": {"0": "x", "1": "y"}, "label2id": {"x": 0, "y": 1}}
    return folder_of(tmp_path_factory.mktemp("classifier"), ("classifier",), 2, **names)


def tune(model, folder, train, dev=FINE, *, suffix="csv", reading=None, metric=None, **values):
    values = {"data": {"max_length": 8}, "training": {"num_threads": 1, **values.pop("training", {})}, **values}
    for name, content in (("train", train), ("dev", dev)):
        if content is not None:
            (folder / f"{name}.{suffix}").write_bytes(content)
    return finetune(
        validate_recipe(FinetuneRecipe, values, source="test"), model=model, train=folder / f"train.{suffix}",
        dev=folder / f"dev.{suffix}", out=folder / "run", reading=reading, metric=metric,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("train", "dev", "values", "message"),
    [
        (b"body,label\na,x\n", FINE, {}, r"train\.csv: line 1: no text column .* among 'body', 'label'"),
        (b"text,mark\na,x\n", FINE, {}, r"train\.csv: line 1: no label column .* among 'text', 'mark'"),
        (b"text,label\na,x\nb\n", FINE, {}, r"train\.csv: line 3: wrong number of fields: 1, expected 2"),
        (FINE, b"text,label\na,x,y\n", {}, r"dev\.csv: line 2: wrong number of fields: 3, expected 2"),
        (b"text,label\na,x\n,y\n", FINE, {}, r"train\.csv: line 3: empty text"),
        (b"text,label\na,x\nb,\n", FINE, {}, r"train\.csv: line 3: missing label"),
        (b'text,label\na,x\n"b,y\n', FINE, {}, r"train\.csv: line 3: not valid CSV"),
        (LATIN, FINE, {}, r"train\.csv: line 3: byte 6 of the line is 0xe9, which is not UTF-8"),
        (FINE, LATIN, {}, r"dev\.csv: line 3: byte 6"),
        (b"", FINE, {}, r"train\.csv: the file is empty"),
        (b"text,label\n", FINE, {}, r"train\.csv: no usable rows: 0 read"),
        (FINE, b"text,label\n", {}, r"dev\.csv: no usable rows"),
        (None, FINE, {}, r"train\.csv: cannot be read: No such file"),
        (FINE, FINE, {"task": "regression"}, r"train\.csv: line 2: label is not a finite number: 'x'"),
        (b"text,score\na,1\nb,inf\n", FINE, {"task": "regression"}, r"line 3: label is not a finite number: 'inf'"),
        (b"text,score\na,2\nb,2\n", b"text,score\na,2\n", {"task": "regression"}, "all 2 rows have the score"),
        (b"text,labels\na,\nb,\n", FINE, {"task": "multilabel"}, r"train\.csv: no row has any label"),
        (FINE, b"text,label\na,q\n", {"task": "multilabel"}, r"dev\.csv: line 2: the label 'q' is not one of"),
        (FINE, FINE, {"task": "pair"}, r"train\.csv: line 1: no second text"),
    ],
)
def test_wrong_tables_for_fine_tuning(pretrained, tmp_path, train, dev, values, message):
    with pytest.raises(DataError, match=message):
        tune(pretrained, tmp_path, train, dev, **values)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reading": ReadingOptions(label_column="mark")}, DataError, r"line 1: there is no column 'mark'"),
        ({"reading": ReadingOptions(format="glue:none")}, ConfigError, "'glue:none' is not in the catalog"),
        ({"reading": ReadingOptions(format="cola")}, DataError, r"line 1: wrong number of fields: 2, expected 4"),
        ({"reading": ReadingOptions(labels="absent.txt")}, DataError, "absent.txt: cannot be read"),
        ({"metric": "f1x"}, UsageError, r"2 classes: metric 'f1x' is not one of accuracy, .*; did you mean f1\?$"),
        ({"task": "regression", "metric": "pearson"}, DataError, "finite number"),
        ({"task": "regression", "class_weights": "balanced"}, ConfigError, "has no labels to weight"),
        ({"class_weights": {"x": -1.0}}, ConfigError, r"class_weights.x = -1.0: it must be greater than 0"),
        ({"mix": {"l2": 0.5}}, ConfigError, r"mix\.l2 = 0\.5: this model does not mix its layers"),
        ({"data": {"max_length": 17}}, ConfigError, "max_length 17 exceeds the 16 tokens"),
        ({"suffix": "xlsx"}, DataError, r"'\.xlsx' is not one of"),
    ],
)
def test_wrong_options_for_fine_tuning(pretrained, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        tune(pretrained, tmp_path, FINE, **options)
    assert not (tmp_path / "run").exists()


def test_shared_examples_with_another_label_are_told(pretrained, tmp_path):
    train, dev = b"text,label\na,x\nb,y\nc,x\n", b"text,label\na,y\nb,y\na b,x\n"
    notes = tune(pretrained, tmp_path, train, dev, training={"steps": 1})["data"]["notes"]
    assert "2 of 3 dev examples are also in train, 1 of them with a different label" in notes


def test_settings_of_another_kind_of_task_are_told(pretrained, tmp_path):
    result = tune(pretrained, tmp_path, FINE, training={"steps": 1}, span={"stride": 64})
    assert "[span]: ignored, task = 'single' does not read it" in result["data"]["notes"]


def test_words_that_the_vocabulary_lacks_are_told(pretrained, tmp_path):
    known, dev = b"text,label\na,x\nb,y\nc,x\n", b"text,label\na,y\n"
    unknown = "text,label\na \u4e2d \u6587,x\nb,y\nc,x\n".encode()
    for number, (train, is_told) in enumerate(((known, False), (unknown, True))):
        (tmp_path / str(number)).mkdir()
        notes = tune(pretrained, tmp_path / str(number), train, dev, training={"steps": 1})["data"]["notes"]
        told = [note for note in notes if "not in the vocabulary" in note]
        assert (
            told == ["18.2% of the tokens in train are not in the vocabulary: the model sees them as unknown"] * is_told
        )


def test_wrong_json_lines_for_fine_tuning(pretrained, tmp_path):
    good = [json.dumps({"text": "a", "label": label}).encode() for label in "xy"]
    for bad, message in [
        (b'{"text": "c"}', "line 3: missing key: 'label'"),
        (b"{", "line 3: not valid JSON"),
        (b'{"text": ["a"], "label": "x"}', "line 3: text is not a string"),
        (b'{"text": "a", "label": ["x"]}', "line 3: label is not a name"),
    ]:
        with pytest.raises(DataError, match=message):
            tune(pretrained, tmp_path, b"\n".join([*good, bad]), b"\n".join(good), suffix="jsonl")


def test_models_that_cannot_be_fine_tuned_leave_no_folder(pretrained, tmp_path):
    for name in ("config.json", "vocab.txt"):
        (tmp_path / "foreign").mkdir(exist_ok=True)
        (tmp_path / "foreign" / name).write_bytes((pretrained / name).read_bytes())
    with pytest.raises(DataError, match="no weights"):
        tune(tmp_path / "foreign", tmp_path, FINE)
    (tmp_path / "foreign" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"pytorch_model\.bin: files of this kind can run code"):
        tune(tmp_path / "foreign", tmp_path, FINE)
    with pytest.raises(DataError, match="there is no such folder"):
        tune(tmp_path / "absent", tmp_path, FINE)
    assert not (tmp_path / "run").exists()


def test_weights_that_break_in_the_last_step_are_named(pretrained, tmp_path):
    training = {"learning_rate": 1e38, "warmup_steps": 0, "steps": 1, "batch_size": 2}
    with pytest.raises(NumericalError, match=r"step 1, on dev: .* smaller training\.learning_rate \(now 1e\+38\)"):
        tune(pretrained, tmp_path, FINE, training=training)


def test_a_seed_that_breaks_does_not_take_the_others_with_it(pretrained, tmp_path, monkeypatch):
    real = finetune_run.run_restart

    def run_restart(plan, seed, *more):
        if seed == 1:
            raise NumericalError("step 3: loss nan")
        return real(plan, seed, *more)

    monkeypatch.setattr(finetune_run, "run_restart", run_restart)
    training = {"steps": 2, "batch_size": 2}
    result = tune(pretrained, tmp_path, FINE, restarts=2, training=training)
    restarts = result["restarts"]
    assert (restarts["num_restarts"], list(restarts["scores"]), result["best_seed"]) == (2, ["0"], 0)
    assert restarts["degenerate"]["1"] == "given up: step 3: loss nan"
    assert restarts["standard_deviation"] is None
    assert "seed 1: given up: step 3: loss nan" in "\n".join(finetuning_lines(result))
    (tmp_path / "other").mkdir()
    with pytest.raises(NumericalError, match="step 3"):
        tune(pretrained, tmp_path / "other", FINE, seed=1, training=training)


def _embed(model, *files):
    return embed(Predictor.load(model), *files)


@pytest.mark.parametrize("use", [evaluate, predict, _embed])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", b"", r"in\.csv: the file is empty"),
        ("in.csv", LATIN, r"in\.csv: line 3: byte 6 of the line is 0xe9"),
        ("in.csv", b"text,label\na,x\nb\n", r"in\.csv: line 3: wrong number of fields: 1, expected 2"),
        ("in.csv", b"body,label\na,x\n", r"in\.csv: line 1: no text column"),
        ("in.csv", b"text,label\n ,x\n", r"in\.csv: line 2: empty text"),
        ("in.tsv", "text\tlabel\n".encode("utf-16"), r"in\.tsv: line 1: byte 1 of the line is 0xff"),
        ("in.jsonl", b'{"text": "a", "label": "x"}\n[]\n', r"in\.jsonl: line 2: expected a JSON object"),
        ("in.pdf", b"a", r"in\.pdf: the suffix '\.pdf' is not one of"),
    ],
)
def test_wrong_files_for_every_use(classifier, tmp_path, use, name, content, message):
    source = tmp_path / name
    source.write_bytes(content)
    more = [] if use is evaluate else [tmp_path / "out.jsonl"]
    with pytest.raises(DataError, match=message):
        use(classifier, source, *more)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text,label\na,x\nb,q\n", r"in\.csv: line 3: the label 'q' is not one of the task's labels: 'x', 'y'"),
        (b"text\na\n", r"in\.csv: line 1: no label column"),
        (b"text,label\na,\n", r"in\.csv: line 2: missing label"),
        (b"text,label\n", r"in\.csv: .*no examples"),
    ],
)
def test_wrong_labels_for_evaluation(classifier, tmp_path, content, message):
    (tmp_path / "in.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        evaluate(classifier, tmp_path / "in.csv")


def test_models_that_lack_what_a_use_needs(pretrained, classifier, tmp_path):
    (tmp_path / "in.csv").write_bytes(FINE)
    with pytest.raises(ConfigError, match="no task head"):
        evaluate(pretrained, tmp_path / "in.csv")
    with pytest.raises(ConfigError, match="no task head"):
        predict(pretrained, tmp_path / "in.csv", tmp_path / "out.csv")
    with pytest.raises(ConfigError, match="no masked-LM head"):
        Predictor.load(classifier).fill_mask("a [MASK]")
    with pytest.raises(ConfigError, match="max_length 17"):
        Predictor.load(classifier, max_length=17)
    with pytest.raises(ConfigError, match=r"out\.txt: the output's suffix must be one of \.npy, \.jsonl"):
        embed(Predictor.load(classifier), tmp_path / "in.csv", tmp_path / "out.txt")


@pytest.mark.parametrize("text", ["", "a b c", "a [mask] b", "a MASK b", "a " * 20 + "[MASK]"])
def test_texts_without_a_mask_that_can_be_filled(pretrained, text):
    with pytest.raises(DataError, match=r"\[MASK\] in the text"):
        Predictor.load(pretrained).fill_mask(text)


def test_our_own_settings_beside_a_model_are_checked(tmp_path):
    folder = folder_of(tmp_path / "model", ("classifier",), 2)
    (tmp_path / "in.csv").write_bytes(FINE)
    for settings, message in [({"kind": "parsing"}, "kind 'parsing' is not known"), ({"primary": "q"}, "metric 'q'")]:
        write_json(folder / "maskloom.json", settings)
        with pytest.raises(DataError, match=message):
            evaluate(folder, tmp_path / "in.csv")
    (folder / "maskloom.json").write_text("{")
    with pytest.raises(DataError, match=r"maskloom\.json: line 1, column 2: not valid JSON"):
        evaluate(folder, tmp_path / "in.csv")


@pytest.mark.parametrize(("kind", "heads", "num_labels"), [("span", ("span",), None), ("choice", ("choice",), 1)])
def test_a_format_of_another_kind_is_refused(tmp_path, kind, heads, num_labels):
    folder = folder_of(tmp_path / "model", heads, num_labels)
    write_json(folder / "maskloom.json", {"kind": kind, "labels": [], "max_length": 16})
    (tmp_path / "data.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=f"format 'conll2003' is for the task tagging, not {kind}"):
        evaluate(folder, tmp_path / "data.jsonl", reading=ReadingOptions(format="conll2003"))
