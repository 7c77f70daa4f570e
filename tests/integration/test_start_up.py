"""What each command imports: only what it needs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maskloom.cli import app
from tools.fuzzing.seeds import write_model

# Runs one command line after the other in one interpreter, and prints which modules each was the first to import.
PRINTS_MODULES = """
import json, sys
from maskloom.cli import main
seen = set()
for name, arguments in json.load(sys.stdin).items():
    sys.argv = ["maskloom", *arguments]
    try:
        code = main() or 0
    except SystemExit as ended:
        code = ended.code or 0
    new = sorted(set(sys.modules) - seen)
    seen.update(new)
    print("MODULES", json.dumps([name, code, new]), file=sys.stderr)
"""
NEVER = {"transformers", "sentence_transformers", "onnxruntime", "datasets", "matplotlib"}
HEAVY = {"torch", "sklearn", "scipy", "pandas", "pyarrow", "safetensors"}
# torch's compiler and computer algebra, which some ordinary torch functions import when called on meta tensors
OF_TORCH = {"torch._dynamo", "torch._inductor", "sympy"}
FOR_METRICS = {"sklearn", "scipy", "pandas"}
Command = tuple[str | Path | int, ...]


def modules(commands: dict[str, Command], code: int = 0, **others: int) -> dict[str, set[str]]:
    """Return, for each command, the modules that none before it has imported.

    All must end with the exit code, or with the command's own among `others`.
    """
    given = json.dumps({name: [str(argument) for argument in arguments] for name, arguments in commands.items()})
    program = [sys.executable, "-c", PRINTS_MODULES]
    result = subprocess.run(program, input=given, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    found = [json.loads(line[8:]) for line in result.stderr.splitlines() if line.startswith("MODULES ")]
    assert {name: ended for name, ended, _ in found} == {**dict.fromkeys(commands, code), **others}, result.stderr
    return {name: set(new) for name, _, new in found}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"This is line {n}. It has two sentences.\n\n" for n in range(30)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def corpus(text: Path) -> Path:
    """Return a corpus folder, made in this process."""
    vocabulary, corpus = text.parent / "vocab", text.parent / "corpus"
    for command in (
        ("vocab", "train", text, "--size", 80, "--out", vocabulary),
        ("corpus", "build", text, "--vocab", vocabulary, "--out", corpus),
    ):
        done = CliRunner().invoke(app, [*map(str, command)])
        assert done.exit_code == 0, done.output
    return corpus


def test_text_commands_start_without_torch(text: Path, tmp_path: Path) -> None:
    vocabulary, corpus = tmp_path / "v", tmp_path / "c"
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "1", "question": "q", "context": "a b", "answers": ["a"]}\n', encoding="utf-8")
    (tmp_path / "answers.json").write_text('{"1": "a"}', encoding="utf-8")
    runs = {
        "help": ("--help",),
        "vocab train": ("vocab", "train", text, "--size", 80, "--out", vocabulary),
        "vocab inspect": ("vocab", "inspect", vocabulary, text),
        "corpus build": ("corpus", "build", text, "--vocab", vocabulary, "--out", corpus),
        "corpus stats": ("corpus", "stats", corpus),
        "info, a corpus": ("info", corpus),
        "info, a vocabulary": ("info", vocabulary),
        "lint": ("corpus", "lint", corpus),
        "scores": ("score-answers", "--data", questions, "--predictions", tmp_path / "answers.json"),
    }
    found = modules(runs, lint=1, scores=3)
    assert {name: new & (HEAVY | NEVER) for name, new in found.items() if new & (HEAVY | NEVER)} == {}


def wrong_recipes(out: Path) -> dict[str, Command]:
    wrong = ("--out", out, "--set", "training.stps=3")
    data = ("--model", "m", "--train", "t.csv", "--dev", "d.csv")
    return {
        "pretrain, a wrong recipe": ("pretrain", "--corpus", "c", *wrong),
        "finetune, a wrong recipe": ("finetune", *data, *wrong),
        "search, a wrong recipe": ("search", *data, *wrong),
        "glue run, a wrong recipe": ("glue", "run", "--data", "g", "--model", "m", *wrong),
    }


def test_wrong_recipes_and_data_are_refused_before_torch_is_imported(text: Path, corpus: Path, tmp_path: Path) -> None:
    good, bad, late = tmp_path / "good.csv", tmp_path / "bad.csv", tmp_path / "late.csv"
    good.write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    bad.write_text("body,label\na,x\n", encoding="utf-8")
    late.write_text("text,label\n" + "a,x\n" * 500 + "a\n", encoding="utf-8")
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "maskloom.json").write_text('{"kind": "single", "takes_pairs": false}', encoding="utf-8")
    restart = shutil.copytree(model, tmp_path / "run" / "restarts" / "seed-0" / "model")
    output = tmp_path / "o.jsonl"
    (tmp_path / "folder.jsonl").mkdir()
    glue = tmp_path / "glue"
    (glue / "CoLA").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (glue / "CoLA" / name).write_text("gj04\t1\t\tFine.\n", encoding="utf-8")
    extend = ("vocab", "extend", "--add", 5, "--out", tmp_path / "v")
    train = ("finetune", "--model", model, "--out", tmp_path / "r", "--dev", good)
    used = ("--model", model, "--input", good)
    runs = wrong_recipes(tmp_path / "r") | {
        "finetune": (*train, "--train", bad),
        "finetune, dev": ("finetune", "--model", model, "--out", "r", "--train", good, "--dev", late),
        "finetune, a folder": (*train, "--train", tmp_path),
        "finetune, the text as label": (*train, "--train", good, "--label-column", "text"),
        "finetune, no model": ("finetune", "--model", "bert-base-uncased", *train[3:], "--train", good),
        "search": ("search", *train[1:], "--train", bad),
        "predict": ("predict", "--model", model, "--input", bad, "--output", output),
        "predict, late": ("predict", "--model", model, "--input", late, "--output", output),
        "predict, into a folder": ("predict", "--model", model, "--input", good, "--output", tmp_path / "folder.jsonl"),
        "predict, an ending of another kind": ("predict", *used, "--output", tmp_path / "o.conll"),
        "predict, --csv-safe": ("predict", *used, "--output", output, "--csv-safe"),
        "embed, an unknown ending": ("embed", *used, "--output", "o.foo", "--report", tmp_path / "page.html"),
        "embed, no page": ("embed", *used, "--output", output, "--report", tmp_path / "page.foo"),
        "generate, an unknown ending": ("generate", *used, "--output", tmp_path / "o.csv"),
        "fill-spans, an unknown ending": ("fill-spans", *used, "--output", tmp_path / "o.csv"),
        "evaluate": ("evaluate", "--model", model, "--data", bad),
        "evaluate, no restarts": ("evaluate", "--ensemble", model, "--data", good),
        "predict, restarts": ("predict", "--ensemble", restart.parents[2], "--input", good, "--output", "o.foo"),
        "tune": ("tune", "--model", model, "--dev", bad),
        "embed": ("embed", "--model", model, "--input", bad, "--output", output),
        "predict, no model": ("predict", "--model", "absent", "--input", good, "--output", output),
        "finetune, a run that is yet to begin": (*train, "--train", bad, "--resume"),
        "fill-mask, no model": ("fill-mask", "--model", "absent", "a [MASK]"),
        "answer, no model": ("answer", "--model", "absent", "--context", good, "--question", "q"),
        "answer, no ensemble": ("answer", "--ensemble", "absent", "--context", good, "--question", "q"),
        "answer, no text": ("answer", "--model", model, "--context", "absent", "--question", "q"),
        "features, no model": ("features", "--model", "absent", "--input", good, "--out", "f"),
        "features, no input": ("features", "--model", model, "--input", "absent", "--out", "f"),
        "glue run, no model": ("glue", "run", "--data", glue, "--model", "absent", "--out", "g"),
        "glue run, no data": ("glue", "run", "--data", tmp_path, "--model", model, "--out", "g"),
        "vocab extend, no model": (*extend, "--model", "absent", text),
        "vocab extend, no text": (*extend, "--model", model, tmp_path / "absent.txt"),
        "pretrain, no corpus": ("pretrain", "--corpus", "absent", "--out", "r"),
        "pretrain, no init": ("pretrain", "--corpus", corpus, "--init", "absent", "--out", "r"),
        "pretrain, below a file": ("pretrain", "--corpus", corpus, "--out", good / "r"),
        "finetune, a folder of something else": (*train, "--train", good, "--out", model),
        "words train, a folder of something else": ("words", "train", text, "--out", model),
        "a name that is not UTF-8": (*train, "--train", os.fsdecode(b"caf\xe9.csv")),
    }
    assert [name for name, new in modules(runs, code=3).items() if "torch" in new] == []


def test_commands_that_use_a_model_import_no_compiler_and_no_metrics(tmp_path: Path) -> None:
    model = tmp_path / "m"
    write_model(model, heads=(), num_labels=None)
    (model / "maskloom.json").unlink()
    sentences = tmp_path / "s.txt"
    sentences.write_text("one sentence\nanother one\n", encoding="utf-8")
    output, rows = tmp_path / "vectors.npy", tmp_path / "rows.csv"
    rows.write_text("text,label\none,a\ntwo,b\n", encoding="utf-8")
    once = ("--train", rows, "--dev", rows, "--epochs", 1, "--batch-size", 2, "--max-length", 8)
    runs = {
        "finetune": ("finetune", "--model", model, *once, "--out", tmp_path / "r"),
        "evaluate": ("evaluate", "--model", tmp_path / "r", "--data", rows),
        "embed": ("embed", "--model", model, "--input", sentences, "--output", output),
        "info": ("info", model),
        "features": ("features", "--model", model, "--input", sentences, "--out", tmp_path / "f"),
    }
    unwanted = OF_TORCH | FOR_METRICS | NEVER
    assert {name: new & unwanted for name, new in modules(runs).items() if new & unwanted} == {}


def test_hardly_anything_is_imported_before_ctrl_c_is_answered() -> None:
    # during the imports before that, Ctrl-C prints a traceback
    counts = "import os, sys; before = set(sys.modules); import maskloom; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", counts], capture_output=True, text=True, timeout=60, check=True)
    expected = {"__future__", "math", "maskloom", "maskloom.system", "maskloom.system.resources"}
    assert set(result.stdout.split()) <= expected


# The dot is written in `main` once its handlers are installed; an earlier signal would hit Python's own start-up.
STARTS = """
import os, signal, maskloom.__main__
listen = signal.signal
def say_that_it_listens(*how):
    before = listen(*how)
    if how[0] == signal.SIGUSR1 and signal.signal is say_that_it_listens:
        signal.signal = listen
        os.write(1, b".")
    return before
signal.signal = say_that_it_listens
maskloom.__main__.main()
"""


@pytest.mark.parametrize(
    ("command", "name", "code", "moments"),
    [
        (("info", "absent"), "SIGINT", 130, (0, 100, 400)),
        pytest.param(
            *(("pretrain", "--corpus", "absent", "--out", "run"), "SIGINT", 130, (0, 100, 200, 400, 600)),
            marks=pytest.mark.slow,
        ),
        (("vocab", "train", "absent", "--size", "80", "--out", "run"), "SIGTERM", 75, (100, 200, 600)),
    ],
)
def test_a_signal_at_any_moment_of_the_start_leaves_one_line(
    command: tuple[str, ...], name: str, code: int, moments: tuple[int, ...], tmp_path: Path
) -> None:
    """Regression: SIGTERM during the imports ended every command with 143 and no message."""
    number = signal.Signals[name]
    found = {}
    for milliseconds in moments:
        process = subprocess.Popen(
            [sys.executable, "-c", STARTS, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.read(1) == "."
            time.sleep(milliseconds / 1000)
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        found[milliseconds] = (process.returncode, said)
    # a command that has already failed exits with its own code, or dies of the signal silently
    assert {ended for ended, _ in found.values()} <= {code, 3, -number}
    assert found[100] == (code, f"stopped by {name}; start again with the same command\n")
    assert [said for _, said in found.values() if said.count("\n") > 1] == []


# Ctrl-C arrives just before a command writes its last line.
ENDS = """
import os, signal, typer, maskloom.__main__
echo = typer.echo
def interrupted(*what, **how):
    os.kill(os.getpid(), signal.SIGINT)
    echo(*what, **how)
typer.echo = interrupted
maskloom.__main__.main()
"""


def test_ctrl_c_while_an_error_is_written_leaves_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS, "info", "absent"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "stopped by SIGINT; start again with the same command\n")


WITHIN = """
import os, signal, time, maskloom.__main__, maskloom.runs.info
def interrupted(folder):
    os.kill(os.getpid(), signal.{signal})
    time.sleep(60)
def lost(folder):
    try:
        interrupted(folder)
    except BaseException:
        raise RuntimeError("as pydantic does within its classes") from None
maskloom.runs.info.describe_folder = {name}
maskloom.__main__.main()
"""


@pytest.mark.parametrize(("name", "number", "code"), [("interrupted", "SIGTERM", 75), ("lost", "SIGINT", 130)])
def test_a_signal_within_a_command_is_said(tmp_path: Path, name: str, number: str, code: int) -> None:
    command = [sys.executable, "-c", WITHIN.format(name=name, signal=number), "info", "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    expected = f"stopped by {number}; nothing was written, start again with: maskloom info .\n"
    assert (done.returncode, done.stderr) == (code, expected)
