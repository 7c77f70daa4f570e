"""All of GLUE on crafted files in the distributed format, with a small one-layer model."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import zipfile

import pytest
from typer.testing import CliRunner

from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, validate_recipe
from maskloom.errors import ConfigError, DataError
from maskloom.inference import Predictor
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.evaluate import evaluate
from maskloom.runs.export import export
from maskloom.runs.glue import files as glue_files
from maskloom.runs.glue import run as glue_module
from maskloom.runs.glue.files import SUBMISSION, SubmissionFile
from maskloom.runs.glue.run import glue_run, submit_glue
from maskloom.runs.rerun import rerun
from maskloom.tasks.tables import ReadingOptions
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["film", "book", "song", "so", "very", "and", "fine", "great", "awful", "poor", '"']
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)
NUM_TEST = {"QQP": 7, "AX": 5}
SPACE = {"training.learning_rate": (1e-3, 5e-3)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    save_model(build_model(config, ("mlm", "nsp"), seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=32).save(folder)
    return folder


def recipe(**values):
    training = {"epochs": 1.0, "batch_size": 8, "num_threads": 1, **values.pop("training", {})}
    return validate_recipe(FinetuneRecipe, {"data": {"max_length": 24}, "training": training} | values, source="test")


def rows(folder, kind, num_rows, seed):
    """Return the lines of a task's file in the distributed format; `kind` is the file's name without .tsv."""
    draw, lines = random.Random(f"{folder}{kind}{seed}"), []
    is_test = kind.startswith("test") or kind == "diagnostic"
    for index in range(num_rows):
        first, second = (" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(2))
        binary, word = draw.randint(0, 1), draw.choice(["entailment", "not_entailment"])
        three = ["entailment", "neutral", "contradiction"][index % 3]
        lines.append("\t".join(map(str, {
            "CoLA": (index, first) if is_test else ("gj04", binary, "", first),
            "SST-2": (index, first) if is_test else (first, binary),
            "MRPC": (index if is_test else binary, 1, 2, first, second),
            "STS-B": (index, *"gfy1nn", first, second, *(() if is_test else (draw.randint(0, 20) / 4,))),
            "QQP": (index, first, second) if is_test else (index, 1, 2, first, second, binary),
            "MNLI": (index, first, second) if kind == "diagnostic" else
                    (index, *"pq", "letters" if kind.endswith("mismatched") else "travel", *"((((", first, second,
                     *(() if is_test else (*["neutral"] * (1 if kind == "train" else 5), three))),
            "QNLI": (index, first, second, *(() if is_test else (word,))),
            "RTE": (index, first, second, *(() if is_test else (word,))),
            "WNLI": (index, first, second, *(() if is_test else (binary,))),
        }[folder])))  # fmt: skip
    return [*header(folder, kind, is_test), *lines]


def header(folder, kind, is_test):
    labels = ["label1", *(["label2", "label3", "label4", "label5"] if kind != "train" else []), "gold_label"]
    found = {
        "CoLA": ["index\tsentence"] if is_test else [],
        "SST-2": ["index\tsentence" if is_test else "sentence\tlabel"],
        "MRPC": [("index" if is_test else "\ufeffQuality") + "\t#1 ID\t#2 ID\t#1 String\t#2 String"],
        "STS-B": ["index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"],
        "QQP": ["id\tquestion1\tquestion2" if is_test else "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"],
        "MNLI": ["\t".join([MNLI, "sentence1", "sentence2", *([] if is_test else labels)])],
        "QNLI": ["index\tquestion\tsentence"],
    }.get(folder, ["index\tsentence1\tsentence2"])
    if kind == "diagnostic":
        return ["index\tsentence1\tsentence2"]
    if not is_test and folder in ("STS-B", "QNLI", "RTE", "WNLI"):
        return [found[0] + ("\tscore" if folder == "STS-B" else "\tlabel")]
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    for name in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI"):
        (folder / name).mkdir()
        kinds = ["train", "dev", "test"]
        if name == "MNLI":
            kinds = ["train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched", "diagnostic"]
        for kind in kinds:
            size = 24 if kind == "train" else 18 if kind.startswith("dev") else NUM_TEST.get(name, 6)
            size = NUM_TEST["AX"] if kind == "diagnostic" else size
            (folder / name / f"{kind}.tsv").write_text("\n".join(rows(name, kind, size, 0)) + "\n", encoding="utf-8")
    full = [f"\t\t\t\tNews\tso {word} film\tfilm {word}\tneutral" for word in ("fine", "great")]
    full += ["\t\t\t\tNews\tawful book\tbook\tentailment", "\t\t\t\tNews\tbook\tawful\tcontradiction"]
    top = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel"
    (folder / "MNLI" / "diagnostic-full.tsv").write_text("\n".join([top, *full]) + "\n")
    return folder


@pytest.fixture
def small_submission(monkeypatch):
    """Set the expected submission lengths to those of the crafted test files."""
    files = tuple(SubmissionFile(file.column, file.task, NUM_TEST.get(file.column, 6)) for file in SUBMISSION)
    for module in (glue_files, glue_module):
        monkeypatch.setattr(module, "SUBMISSION", files)


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    return out, glue_run(recipe(restarts=2), data=data, model=model, out=out, space=SPACE)


def test_every_task_gets_its_official_scores(whole):
    out, result = whole
    assert result["failed"] == []
    assert result["absent"] == {}
    metrics = {column: tuple(scores) for column, scores in result["scores"].items()}
    assert metrics == {
        "CoLA": ("matthews",), "SST-2": ("accuracy",), "MRPC": ("f1", "accuracy"), "STS-B": ("pearson", "spearman"),
        "QQP": ("f1", "accuracy"), "MNLI-m": ("accuracy",), "MNLI-mm": ("accuracy",), "AX": ("matthews",),
        "QNLI": ("accuracy",), "RTE": ("accuracy",), "WNLI": ("accuracy",),
    }  # fmt: skip
    assert result["paper_average"]["missing"] == result["leaderboard_score"]["missing"] == []
    assert result == json.loads((out / "glue.json").read_text())
    for name in ("cola", "mnli", "sts-b"):
        outcome = result["tasks"][name]
        assert (outcome["num_trials"], outcome["restarts"]["num_restarts"]) == (2, 2)
        assert max(outcome["restarts"]["scores"].values()) == next(
            iter(next(iter(outcome["columns"].values())).values())
        )


def test_the_scores_are_those_of_the_kept_models(whole, data):
    out, result = whole
    for column, file in [("MNLI-m", "dev_matched"), ("MNLI-mm", "dev_mismatched")]:
        found = evaluate(out / "MNLI", data / "MNLI" / f"{file}.tsv", reading=ReadingOptions(format="mnli"))
        assert found["accuracy"] == result["scores"][column]["accuracy"]
    found = evaluate(out / "STS-B", data / "STS-B" / "dev.tsv")
    assert found["spearman"] == pytest.approx(result["scores"]["STS-B"]["spearman"])


def test_the_table_says_how_each_score_came_about(whole):
    out, _ = whole
    table = (out / "glue.md").read_text()
    for part in ("best on dev | mean ± sd", "(2 runs)", "| MRPC | f1 / accuracy |", "| MNLI-mm | accuracy |",
                 "no model | always", "chosen on the same dev set", "nothing was trained", "the paper's average",
                 "--format sts-b"):  # fmt: skip
        assert part in table


def test_a_rerun_and_an_export_are_of_one_of_the_runs(whole, tmp_path):
    out, _ = whole
    with pytest.raises(ConfigError, match="contains several runs; repeat one of them"):
        rerun(out, out=tmp_path / "again")
    with pytest.raises(ConfigError, match="contains several runs; export one of them"):
        export(out, tmp_path / "model")
    export(out / "CoLA", tmp_path / "model")
    weights = [folder / "model.safetensors" for folder in (out / "CoLA" / "model", tmp_path / "model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize("folder", ["MRPC", "STS-B"])
def test_the_printed_command_gives_the_same_score(whole, folder):
    out, result = whole
    words = shlex.split(result["tasks"][folder.lower()]["command"])
    assert words[:2] == ["maskloom", "finetune"]
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    again = json.loads(done.stdout.splitlines()[-1])
    trial = json.loads((out / folder / "results.json").read_text())["best"]
    assert again["best"] == trial["best"]
    assert again["restarts"] == trial["restarts"]


def test_a_submission_answers_every_row(whole, data, tmp_path, small_submission):
    out, _ = whole
    result = submit_glue(out, data=data, out=tmp_path / "s.zip")
    assert len(result["num_answers"]) == 11
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        files = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    assert sorted(files) == sorted(f"{file.column}.tsv" for file in SUBMISSION)
    predictor = Predictor.load(out / "MNLI")
    for column, name in [("AX", "diagnostic"), ("MNLI-m", "test_matched"), ("MNLI-mm", "test_mismatched")]:
        lines = (data / "MNLI" / f"{name}.tsv").read_text().splitlines()
        names = lines[0].split("\t")
        fields = [dict(zip(names, line.split("\t"), strict=True)) for line in lines[1:]]
        expected = predictor.predict([(row["sentence1"], row["sentence2"]) for row in fields])
        assert files[f"{column}.tsv"][1:] == [f"{index}\t{row['label']}" for index, row in enumerate(expected)]
    scores = [float(line.split("\t")[1]) for line in files["STS-B.tsv"][1:]]
    assert all(0 <= score <= 5 for score in scores)
    label = json.loads((out / "WNLI" / "majority.json").read_text())["label"]
    assert {line.split("\t")[1] for line in files["WNLI.tsv"][1:]} == {label}
    first = (tmp_path / "s.zip").read_bytes()
    submit_glue(out, data=data, out=tmp_path / "s.zip")
    assert (tmp_path / "s.zip").read_bytes() == first


def test_a_submission_is_put_where_predictions_are(whole, data, tmp_path, small_submission):
    out, _ = whole
    (tmp_path / "link.zip").symlink_to("target.zip")
    submit_glue(out, data=data, out=tmp_path / "link.zip")
    assert (tmp_path / "link.zip").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    submit_glue(out, data=data, out=tmp_path / "pipe")
    reader.join(timeout=60)
    assert read == [(tmp_path / "target.zip").read_bytes()]
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "folder.zip").mkdir()
    for place, message in (
        ("folder.zip", "this is a folder; the output must be a file"),
        ("no/s.zip", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            submit_glue(tmp_path / "absent", data=data, out=tmp_path / place)


def test_rows_that_cannot_be_read_are_answered_and_counted(whole, data, tmp_path, small_submission):
    out, _ = whole
    for folder in data.iterdir():
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / folder.name).symlink_to(folder)
    (tmp_path / "data" / "QQP").unlink()
    (tmp_path / "data" / "QQP").mkdir()
    lines = (data / "QQP" / "test.tsv").read_text().splitlines()
    lines[3], lines[5] = "2\tshort", "4\t\t"
    (tmp_path / "data" / "QQP" / "test.tsv").write_text("\n".join(lines) + "\n")
    result = submit_glue(out, data=tmp_path / "data", out=tmp_path / "s.zip")
    assert (result["num_answers"]["QQP"], result["num_unreadable"]["QQP"]) == (7, 2)
    submit_glue(out, data=data, out=tmp_path / "t.zip")
    with zipfile.ZipFile(tmp_path / "s.zip") as found, zipfile.ZipFile(tmp_path / "t.zip") as plain:
        pairs = zip(found.read("QQP.tsv").splitlines(), plain.read("QQP.tsv").splitlines(), strict=True)
        assert all(one == other for index, (one, other) in enumerate(pairs) if index not in (3, 5))


def test_absent_and_wrong_parts_of_a_submission(whole, data, tmp_path, small_submission):
    out, _ = whole
    (tmp_path / "data" / "RTE").mkdir(parents=True)
    lines = (data / "RTE" / "test.tsv").read_text().splitlines()[:-1]
    (tmp_path / "data" / "RTE" / "test.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"CoLA: .*CoLA/test\.tsv does not exist; "):
        submit_glue(out, data=tmp_path / "data", out=tmp_path / "s.zip")
    other = tmp_path / "other"
    (other / "RTE").mkdir(parents=True)
    (other / "RTE" / "model").symlink_to(out / "MRPC" / "model")
    for folder in (folder for folder in data.iterdir() if folder.name != "RTE"):
        (tmp_path / "data" / folder.name).symlink_to(folder)
        (other / folder.name).symlink_to(out / folder.name)
    with pytest.raises(DataError, match=r"RTE\.tsv: has 6 lines including its header, expected 7"):
        submit_glue(out, data=tmp_path / "data", out=tmp_path / "t.zip")
    assert not (tmp_path / "t.zip").exists()
    with pytest.raises(DataError, match=r"its labels are 0, 1; RTE\.tsv takes entailment, not_entailment"):
        submit_glue(other, data=tmp_path / "data", out=tmp_path / "t.zip")
    with pytest.raises(ConfigError, match=r"a submission must be a \.zip file"):
        submit_glue(out, data=data, out=tmp_path / "t.tar")


def test_a_task_that_fails_leaves_the_others_alone(model, data, tmp_path):
    for name in ("RTE", "WNLI"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for kind in ("train", "dev"):
            (tmp_path / "data" / name / f"{kind}.tsv").write_text((data / name / f"{kind}.tsv").read_text())
    (tmp_path / "data" / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    arguments = ["--data", tmp_path / "data", "--model", model, "--out", tmp_path / "run", "--grid", "none",
                 "--set", "data.max_length=24", "--set", "training.epochs=1"]  # fmt: skip
    done = CliRunner().invoke(app, ["glue", "run", *map(str, arguments)])
    assert done.exit_code == 1
    assert re.search("RTE +– +failed: ", done.output)
    assert "dev.tsv: line 2: the label 'maybe'" in done.output
    assert "No average as in the paper: missing " in done.output
    assert "No leaderboard score: missing CoLA, SST-2" in done.output
    (tmp_path / "data" / "RTE" / "dev.tsv").write_text((data / "RTE" / "dev.tsv").read_text())
    again = CliRunner().invoke(app, ["glue", "run", *map(str, arguments), "--resume", "--json"])
    assert again.exit_code == 0
    result = json.loads(again.stdout.splitlines()[-1])
    assert (result["tasks"]["rte"]["status"], result["tasks"]["wnli"]["status"]) == ("done", "majority")
    assert "rte" not in result["absent"]
    assert len(result["absent"]) == 7


def test_mixed_up_files_of_mnli_are_refused_before_training(model, data, tmp_path):
    (tmp_path / "MNLI").mkdir()
    for name, source in [("train", "train"), ("dev_matched", "dev_mismatched"), ("dev_mismatched", "dev_matched")]:
        (tmp_path / "MNLI" / f"{name}.tsv").write_text((data / "MNLI" / f"{source}.tsv").read_text())
    with pytest.raises(DataError, match=r"dev_matched\.tsv: line 2: the genre 'letters' belongs to the mismatched"):
        glue_run(recipe(), data=tmp_path, model=model, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_the_same_is_not_continued(whole, model, data):
    out, result = whole
    with pytest.raises(ConfigError, match="already contains a run"):
        glue_run(recipe(restarts=2), data=data, model=model, out=out, space=SPACE)
    with pytest.raises(ConfigError, match="restarts was 2, is 1"):
        glue_run(recipe(), data=data, model=model, out=out, resume=True)
    with pytest.raises(ConfigError, match="started with space"):
        glue_run(recipe(restarts=2), data=data, model=model, out=out, space={}, resume=True)
    with pytest.raises(ConfigError, match=r"CoLA is not .*, which was read at the start"):
        glue_run(recipe(restarts=2), data=data, model=out / "CoLA", out=out, resume=True)
    assert json.loads((out / "glue.json").read_text()) == result
    with pytest.raises(ConfigError, match="not the folder of a GLUE run"):
        glue_run(recipe(restarts=2), data=data, model=model, out=out / "RTE" / "trials" / "trial-001", resume=True)


def test_wrong_settings_end_a_run_at_once(model, data, tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'training\.learning_rate'"):
        glue_run(recipe(), data=data, model=model, out=tmp_path / "run", space={"training.learning_rat": (1.0,)})
    with pytest.raises(ConfigError, match=r"CoLA, trial 1: pair\.both_orders = true: task = 'single' does not"):
        glue_run(recipe(pair={"both_orders": True}), data=data, model=model, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    settings = recipe(data={"max_length": 64})
    result = glue_run(settings, data=data, model=model, out=tmp_path / "long", tasks=["rte", "wnli"])
    assert "data.max_length 64 exceeds the 32 tokens" in result["tasks"]["rte"]["error"]
    assert result["tasks"]["wnli"]["status"] == "majority"


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(model, data, tmp_path, whole):
    arguments = ["glue", "run", "--data", data, "--model", model, "--tasks", "cola,rte", "--restarts", "2",
                 "--grid", "training.learning_rate=1e-3,5e-3", "--set", "training.epochs=1",
                 "--set", "training.batch_size=8", "--set", "training.num_threads=1",
                 "--set", "data.max_length=24", "--out", tmp_path / "run"]  # fmt: skip
    command = [sys.executable, "-m", "maskloom", *map(str, arguments)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=_environment())
    begun = tmp_path / "run" / "CoLA" / "trials" / "trial-002" / "recipe.toml"
    deadline = time.monotonic() + 120
    while process.poll() is None and not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "run" / "glue.json").exists()
    done = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name in ("cola", "rte"):
        for key in ("columns", "settings", "restarts"):
            assert result["tasks"][name][key] == whole[1]["tasks"][name][key]
    assert not list((tmp_path / "run").glob("*/trials/*/model"))


def _environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}
