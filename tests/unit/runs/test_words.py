"""Runs that train word vectors: folders, stops and kills, commands, and the page."""

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from maskloom.cli import main
from maskloom.data.corpus import documents
from maskloom.errors import ConfigError, DataError
from maskloom.inference.model_folder import resolve_model_folder
from maskloom.runs import words
from maskloom.runs.display import SILENT, Progress
from maskloom.runs.export import export
from maskloom.runs.info import describe_folder
from maskloom.runs.report.record import read_run
from maskloom.runs.rerun import rerun
from maskloom.runs.words import evaluate_words, neighbours, open_vectors, plot_words, train_words
from maskloom.text.tokenizer import Tokenizer
from maskloom.training.events import read_events
from maskloom.training.faults.interruption import Interrupted
from maskloom.words import training
from maskloom.words.settings import WordsRecipe
from tools.faults.fault_rules import arm

RECIPE = WordsRecipe(size=6, epochs=4, min_count=1)


@pytest.fixture(autouse=True)
def _rounds_of_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_BLOCKS_OF_ROUND", 1)
    monkeypatch.setattr(training, "BLOCK", 500)


def test_a_word_that_looks_like_a_piece_is_no_token(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("##title foo\nfoo ##title")
    (tmp_path / "out").mkdir()
    by_spaces = RECIPE.model_copy(update={"tokenize": "spaces"})
    words._prepare([tmp_path / "a.txt"], by_spaces, tmp_path / "out", "error", SILENT)
    assert (tmp_path / "out" / "vocabulary.txt").read_text() == "##title 2\nfoo 2\n"
    assert Tokenizer.load(tmp_path / "out").tokens("foo footitle") == ["foo", "[UNK]"]


def test_little_text_for_the_default_learning_rate_of_skip_gram_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two one two")
    (tmp_path / "out").mkdir()
    told = list[str]()
    progress = Progress()
    progress.say = told.append
    for changes in ({}, {"learning_rate": 0.025}, {"model": "cbow"}):
        recipe = RECIPE.model_copy(update=changes)
        words._prepare([tmp_path / "a.txt"], recipe, tmp_path / "out", "error", progress)
    assert told == ["note: on fewer than ten million words, skip-gram learns more with --learning-rate 0.05"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    lines = [" ".join(f"w{n}" for n in draw.zipf(1.7, 9) % 50) for _ in range(200)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "text.txt"


def test_a_run_writes_both_matrices_its_vocabulary_and_its_log(text: Path, tmp_path: Path) -> None:
    result = train_words(text, RECIPE, out=tmp_path / "out")
    found = sorted(path.name for path in (tmp_path / "out").iterdir())
    files = ["events.jsonl", "metrics.json", "outputs.bin", "recipe.toml", "run.json"]
    assert found == [*files, "vectors.bin", "vocab.txt", "vocabulary.txt"]
    vectors = open_vectors(tmp_path / "out")
    assert len(vectors.words) == result["num_words"]
    assert vectors.matrix.shape[1] == 6
    assert (tmp_path / "out" / "vocabulary.txt").read_text().split("\n")[0].startswith(f"{vectors.words[0]} ")
    outputs = open_vectors(tmp_path / "out" / "outputs.bin")
    assert outputs.words == vectors.words
    assert np.abs(outputs.matrix).max() > 0
    losses = [event["loss"] for event in read_events(tmp_path / "out" / "events.jsonl") if event["event"] == "step"]
    assert losses[-1] < losses[0]
    assert describe_folder(tmp_path / "out")["finished"]
    assert train_words(text, RECIPE, out=tmp_path / "out", resume=True)["already_trained"]
    for act in (rerun, export):
        with pytest.raises(ConfigError, match="contains word vectors, not a model"):
            act(tmp_path / "out", out=tmp_path / "other")
    with pytest.raises(ConfigError, match="contains word vectors, not a model"):
        read_run(tmp_path / "out", "out")
    with pytest.raises(DataError, match="contains word vectors, not a model"):
        resolve_model_folder(tmp_path / "out")


class _Begun(Progress):
    """Notes how much of each stage was done when it began."""

    def __init__(self) -> None:
        self.done = dict[str, int]()

    def begin(self, what: str, total: int, done: int = 0) -> None:
        self.done[what] = done


def _blocks_saved(out: Path) -> int:
    state = out / "checkpoint" / "state.json"
    return json.loads(state.read_text())["blocks_done"] if state.exists() else 0


@pytest.mark.parametrize("place", ["words.prepared", "words.trained", "words.finish", "words.tidy", "files.rename"])
def test_a_run_that_failed_anywhere_gives_the_same_files(
    place: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "_SECONDS_BETWEEN_SAVES", 0.0)
    train_words(text, RECIPE, out=tmp_path / "whole")
    for number in (1, 5, 9) if place == "files.rename" else (1,):
        arm(f"exception@{place}#{number}")
        try:
            with pytest.raises(RuntimeError, match="fault point"):
                train_words(text, RECIPE, out=tmp_path / f"cut-{number}")
        finally:
            arm()
        is_started = (tmp_path / f"cut-{number}" / "recipe.toml").exists()
        saved, progress = _blocks_saved(tmp_path / f"cut-{number}"), _Begun()
        train_words(text, RECIPE, out=tmp_path / f"cut-{number}", resume=is_started, progress=progress)
        assert saved or place in ("words.prepared", "files.rename")
        assert progress.done.get("training word vectors") == (None if place == "words.tidy" else saved)
        assert place == "files.rename" or ("reading text" in progress.done) == (place == "words.prepared")
        losses = [
            json.loads((tmp_path / name / "metrics.json").read_text())["loss"] for name in ("whole", f"cut-{number}")
        ]
        assert losses[0] == losses[1] > 0
        for name in ("vectors.bin", "outputs.bin", "vocabulary.txt"):
            assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / f"cut-{number}" / name).read_bytes()
        assert sorted(os.listdir(tmp_path / f"cut-{number}")) == sorted(os.listdir(tmp_path / "whole"))


STOPPED = """
import os, signal, sys
from maskloom.words import training
training._BLOCKS_OF_ROUND, training.BLOCK = 1, 500
rounds = training.WordTraining.rounds
def stopping(self):
    for number, done in enumerate(rounds(self)):
        if number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        yield done
training.WordTraining.rounds = stopping
from maskloom.__main__ import main
main()
"""


def _killed(fault: str, *arguments: str) -> int:
    """Run a command in a child process that is killed at a fault point, and return its exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts its own threads; it waits for no other
        process = os.fork()
    if process == 0:
        try:
            arm(fault)
            sys.argv = ["maskloom", *arguments]
            main()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize(
    ("flags", "is_exact"),
    [
        (("--workers", "2", "--deterministic"), True),
        pytest.param((), True, marks=pytest.mark.slow),
        pytest.param(("--workers", "2"), False, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_from_its_last_save(
    flags: tuple[str, ...],
    is_exact: bool,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(words, "_SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(training, "_BLOCKS_BETWEEN_MEETINGS", 1)

    def command(out: str) -> list[str]:
        sizes = ["--size", "6", "--epochs", "4", "--min-count", "1"]
        return ["words", "train", str(text), "--out", str(tmp_path / out), *sizes, *flags]

    def said_by(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["maskloom", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().err

    said_by(*command("whole"))
    assert _killed("kill@words.save#2", *command("out")) == -signal.SIGKILL
    saved = _blocks_saved(tmp_path / "out")
    assert saved > 0
    assert f"training word vectors: continuing at {saved} of " in said_by(*command("out"), "--resume")
    assert open_vectors(tmp_path / "out").matrix.shape[1] == 6
    if is_exact:
        assert (tmp_path / "whole" / "vectors.bin").read_bytes() == (tmp_path / "out" / "vectors.bin").read_bytes()


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_saves_and_ends_with_75(text: Path, tmp_path: Path) -> None:
    train_words(text, RECIPE, out=tmp_path / "whole")
    flags = ["--size", "6", "--epochs", "4", "--min-count", "1"]
    command = [sys.executable, "-c", STOPPED, "words", "train", str(text), "--out", str(tmp_path / "out"), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert ended.returncode == 75, ended.stderr
    assert "continue with: maskloom words train" in ended.stderr
    assert json.loads((tmp_path / "out" / "checkpoint" / "state.json").read_text())["blocks_done"] == 2
    with pytest.raises(ConfigError, match="--resume"):
        train_words(text, RECIPE, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="window was 5, is 3"):
        train_words(text, RECIPE.model_copy(update={"window": 3}), out=tmp_path / "out", resume=True)
    with pytest.raises(DataError, match="continue it with --resume"):
        open_vectors(tmp_path / "out")
    damaged = tmp_path / "out" / "checkpoint" / "vectors"
    kept = damaged.read_bytes()
    damaged.write_bytes(kept[:-1])
    with pytest.raises(DataError, match=r"vectors: has .* bytes instead of"):
        train_words(text, RECIPE, out=tmp_path / "out", resume=True)
    damaged.write_bytes(kept)
    state = tmp_path / "out" / "checkpoint" / "state.json"
    saved = json.loads(state.read_text())
    for path, key in ((state, "vectors"), (tmp_path / "out" / "prepared.json", "tokens.bin")):
        kept = path.read_bytes()
        path.write_text("{}")
        with pytest.raises(DataError, match=f"{path.name}: the file is damaged: '{key}' is None"):
            train_words(text, RECIPE, out=tmp_path / "out", resume=True)
        path.write_bytes(kept)
    assert 0 < saved["seconds"] < 100
    state.write_text(json.dumps({**saved, "seconds": saved["seconds"] + 1000}))
    assert 1000 < train_words(text, RECIPE, out=tmp_path / "out", resume=True)["seconds"] < 1100
    assert (tmp_path / "whole" / "vectors.bin").read_bytes() == (tmp_path / "out" / "vectors.bin").read_bytes()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_that_is_asked_to_stop_while_it_writes_its_vectors_has_saved_all_rounds(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(words, "write_vectors", stop)
        with pytest.raises(Interrupted):
            train_words(text, RECIPE, out=tmp_path / "out")
    (*_, last) = [event for event in read_events(tmp_path / "out" / "events.jsonl") if event["event"] == "step"]
    assert _blocks_saved(tmp_path / "out") == last["step"] > 0
    progress = _Begun()
    assert train_words(text, RECIPE, out=tmp_path / "out", resume=True, progress=progress)["seconds"] > 0
    assert progress.done == {"training word vectors": last["step"]}


def test_a_run_that_is_asked_to_stop_in_its_last_round_saves_that_round(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_words(text, RECIPE, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        rounds = training.WordTraining.rounds

        def stopping(self: training.WordTraining) -> Iterator[None]:
            for _ in rounds(self):
                if self.blocks_done == self.num_blocks:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield

        patch.setattr(training.WordTraining, "rounds", stopping)
        with pytest.raises(Interrupted):
            train_words(text, RECIPE, out=tmp_path / "out")
    saved, progress = _blocks_saved(tmp_path / "out"), _Begun()
    assert saved > 1
    train_words(text, RECIPE, out=tmp_path / "out", resume=True, progress=progress)
    assert progress.done == {"training word vectors": saved}
    assert (tmp_path / "whole" / "vectors.bin").read_bytes() == (tmp_path / "out" / "vectors.bin").read_bytes()
    loss = [json.loads((tmp_path / name / "metrics.json").read_text())["loss"] for name in ("whole", "out")]
    assert loss[0] == loss[1]


def test_phrases_forms_and_losses_reach_the_files(text: Path, tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"loss": "hierarchical", "model": "cbow", "phrases": 1, "phrase_threshold": 1.0})
    train_words(text, recipe, out=tmp_path / "out", form="text")
    vectors = open_vectors(tmp_path / "out")
    assert any("_" in word for word in vectors.words)
    outputs = open_vectors(tmp_path / "out" / "outputs.txt")
    assert len(outputs.words) == len(vectors.words) - 1
    assert outputs.words[0] == "node-0"


def test_one_long_line_is_read_in_pieces_without_cutting_a_word(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text.write_text(line := " ".join(text.read_text().split()))
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 1000)
    with pytest.raises(DataError, match="of more than 1,000 bytes"):
        [*documents.read_documents(text)]
    monkeypatch.setattr(words, "_LONGEST_DOCUMENT", 100)
    result = train_words(text, RECIPE, out=tmp_path / "out")
    assert result["num_tokens"] == len(line.split())
    assert {*open_vectors(tmp_path / "out").words} == {*line.split()}


def test_text_that_is_refused_leaves_no_folder(text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--min-count 9999: of .* distinct words, only 0 occur"):
        train_words(text, RECIPE.model_copy(update={"min_count": 9999}), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_rate_that_is_too_high_is_named(text: Path, tmp_path: Path) -> None:
    recipe = RECIPE.model_copy(update={"learning_rate": 1e30, "loss": "softmax"})
    with (
        pytest.raises(DataError, match=r"the learning rate 1e\+30 is too high"),
        np.errstate(invalid="ignore", over="ignore"),
    ):
        train_words(text, recipe, out=tmp_path / "out")


def test_text_in_which_nothing_is_learnt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n" * 300)
    with pytest.raises(DataError, match=f"{tmp_path / 'out'}: nothing was learned: no line has two words"):
        train_words(tmp_path / "text.txt", RECIPE, out=tmp_path / "out")
    assert not (tmp_path / "out" / "metrics.json").exists()
    # only the first of two rounds predicts anything: the loss is still the loss of predictions
    (tmp_path / "text.txt").write_text("one two\n" * 200 + "one\ntwo\n" * 200)
    recipe = RECIPE.model_copy(update={"epochs": 1, "sample": 0.0})
    assert train_words(tmp_path / "text.txt", recipe, out=tmp_path / "new")["loss"] > 0


@pytest.mark.parametrize("name", ["vectors", "outputs"])
def test_vectors_that_are_not_finite_are_not_written(
    name: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = training.WordTraining.rounds

    def spoiled(self: training.WordTraining) -> Iterator[None]:
        for _ in rounds(self):
            if self.blocks_done == self.num_blocks:
                getattr(self, name)[0, 0] = np.inf
            yield

    monkeypatch.setattr(training.WordTraining, "rounds", spoiled)
    with pytest.raises(DataError, match="the loss or a vector is not finite after block"):
        train_words(text, RECIPE, out=tmp_path / "out")
    assert not (tmp_path / "out" / "vectors.bin").exists()


def test_scores_of_files_with_equal_names_are_all_told(text: Path, tmp_path: Path) -> None:
    train_words(text, RECIPE, out=tmp_path / "out")
    a, b, c, d = open_vectors(tmp_path / "out").words[:4]
    for folder, content in (("one", f"{a} {b} 3"), ("two", f"{a} {b} 3\n{b} {c} 1"), ("three", f"{a} {b} {c} {d}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "set.txt").write_text(content)
    one, two, three = (tmp_path / folder / "set.txt" for folder in ("one", "two", "three"))
    found = evaluate_words(tmp_path / "out", [one, two], [three])
    assert [*found] == [str(one), str(two), str(three)]
    assert [found[str(path)].get("pairs") for path in (one, two, three)] == [1, 2, None]
    assert [*evaluate_words(tmp_path / "out", [one])] == ["set.txt"]


def test_the_run_of_a_model_is_not_taken_for_vectors(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('kind = "finetune"\n')
    (tmp_path / "run.json").write_text('{"inputs": {"train": "x"}, "id": "x", "paths": {}, "world_size": 1}')
    with pytest.raises(DataError, match=f"{tmp_path}: this run trains a model; only `maskloom words train`"):
        neighbours(tmp_path, ["a"])


def test_the_page_needs_nothing_else(text: Path, tmp_path: Path) -> None:
    train_words(text, RECIPE, out=tmp_path / "out")
    first, second = open_vectors(tmp_path / "out").words[:2]
    assert plot_words(tmp_path / "out", [first, second], tmp_path / "plot.html")["words"] == 2
    page = (tmp_path / "plot.html").read_text()
    assert page.count("<circle") == 2
    assert f">{first}</text>" in page
    assert not re.search(r"(src|href)=|<script|https?://", page)
    near = neighbours(tmp_path / "out", [first], 1)[first][0]
    assert near[0] in page
    assert f"{near[1]:.3f}" in page
    with pytest.raises(ConfigError, match="two words"):
        plot_words(tmp_path / "out", [first], tmp_path / "plot.html")
    for name, message in (("plot.txt", "an .html file"), ("none/plot.html", f"the folder {tmp_path / 'none'} does")):
        with pytest.raises(ConfigError, match=f"^{tmp_path / name}: .*{message}"):
            plot_words(tmp_path / "out", [first, second], tmp_path / name)


def test_the_commands_answer(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        """Run a command in this process, check its exit code, and return its output and its errors."""
        monkeypatch.setattr(sys, "argv", ["maskloom", "words", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert (ended.value.code or 0) == code
        return capsys.readouterr()

    train_words(text, RECIPE, out=tmp_path / "out")
    asked = open_vectors(tmp_path / "out").words[:3]
    found, _ = run("neighbours", tmp_path / "out", asked[0], "-n", 2)
    assert found.split()[0] == asked[0]
    assert len(found.splitlines()) == 3
    (tmp_path / "pairs.txt").write_text(f"{asked[0]} {asked[1]} 3\n{asked[1]} {asked[2]} 1\n{asked[0]} nobody 1\n")
    scores, _ = run("evaluate", tmp_path / "out", "--pairs", tmp_path / "pairs.txt", "--json")
    assert json.loads(scores)["pairs.txt"]["unknown"] == 1
    _, unknown = run("analogies", tmp_path / "out", asked[0], asked[1], "W1x", code=3)
    assert "not among the" in unknown
    _, refused = run("train", text, "--out", tmp_path / "new", "--window", 0, code=3)
    assert refused == "error: --window 0: window = 0: it must be greater than or equal to 1\n"
    assert not (tmp_path / "new").exists()
