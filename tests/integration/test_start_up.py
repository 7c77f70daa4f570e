"""What each command imports: only what it needs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PRINTS_MODULES = """
import atexit, sys
atexit.register(lambda: print("MODULES", *sorted(sys.modules), file=sys.stderr))
from maskloom.cli import main
main()
"""
NEVER = {"transformers", "sentence_transformers", "onnxruntime", "datasets", "matplotlib"}
HEAVY = {"torch", "sklearn", "scipy", "pandas", "pyarrow", "safetensors"}
# torch's compiler and computer algebra, which some ordinary torch functions import when called on meta tensors
OF_TORCH = {"torch._dynamo", "torch._inductor", "sympy"}
FOR_METRICS = {"sklearn", "scipy", "pandas"}


def modules(*arguments: str | Path, code: int = 0) -> set[str]:
    command = [sys.executable, "-c", PRINTS_MODULES, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("MODULES ")]
    return set(lines[-1].split()[1:])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"This is line {n}. It has two sentences.\n\n" for n in range(30)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def vocabulary(text: Path) -> Path:
    modules("vocab", "train", text, "--size", 80, "--out", text.parent / "vocab")
    return text.parent / "vocab"


@pytest.fixture(scope="module")
def corpus(text: Path, vocabulary: Path) -> Path:
    modules("corpus", "build", text, "--vocab", vocabulary, "--out", text.parent / "corpus")
    return text.parent / "corpus"


def test_text_commands_start_without_torch(text: Path, vocabulary: Path, corpus: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"id": "1", "question": "q", "context": "a b", "answers": ["a"]}\n', encoding="utf-8")
    (tmp_path / "answers.json").write_text('{"1": "a"}', encoding="utf-8")
    runs = {
        "help": modules("--help"),
        "vocab train": modules("vocab", "train", text, "--size", 80, "--out", tmp_path / "v"),
        "vocab inspect": modules("vocab", "inspect", vocabulary, text),
        "corpus build": modules("corpus", "build", text, "--vocab", vocabulary, "--out", tmp_path / "c"),
        "corpus stats": modules("corpus", "stats", corpus),
        "corpus lint": modules("corpus", "lint", corpus, code=1),
        "info, a corpus": modules("info", corpus),
        "info, a vocabulary": modules("info", vocabulary),
        "score-answers": modules(
            "score-answers", "--data", questions, "--predictions", tmp_path / "answers.json", code=3
        ),
    }
    assert {name: found & (HEAVY | NEVER) for name, found in runs.items() if found & (HEAVY | NEVER)} == {}


def test_a_wrong_recipe_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    wrong = ("--set", "training.stps=3")
    data = ("--model", "m", "--train", "t.csv", "--dev", "d.csv")
    runs = {
        "pretrain": modules("pretrain", "--corpus", "c", "--out", tmp_path / "r", *wrong, code=3),
        "finetune": modules("finetune", *data, "--out", tmp_path / "r", *wrong, code=3),
        "search": modules("search", *data, "--out", tmp_path / "r", *wrong, code=3),
        "glue run": modules("glue", "run", "--data", "g", "--model", "m", "--out", tmp_path / "r", *wrong, code=3),
    }
    assert [name for name, found in runs.items() if "torch" in found] == []


def test_wrong_data_is_refused_before_torch_is_imported(text: Path, corpus: Path, tmp_path: Path) -> None:
    good, bad, late = tmp_path / "good.csv", tmp_path / "bad.csv", tmp_path / "late.csv"
    good.write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    bad.write_text("body,label\na,x\n", encoding="utf-8")
    late.write_text("text,label\n" + "a,x\n" * 500 + "a\n", encoding="utf-8")
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "maskloom.json").write_text('{"kind": "single", "takes_pairs": false}', encoding="utf-8")
    output = tmp_path / "o.jsonl"
    (tmp_path / "folder.jsonl").mkdir()
    glue = tmp_path / "glue"
    (glue / "CoLA").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (glue / "CoLA" / name).write_text("gj04\t1\t\tFine.\n", encoding="utf-8")
    extend = ("vocab", "extend", "--add", 5, "--out", tmp_path / "v")
    train = ("finetune", "--model", model, "--out", tmp_path / "r", "--dev", good)
    runs = {
        "finetune": modules(*train, "--train", bad, code=3),
        "finetune, dev": modules("finetune", "--model", model, "--out", "r", "--train", good, "--dev", late, code=3),
        "finetune, a folder": modules(*train, "--train", tmp_path, code=3),
        "finetune, the text as label": modules(*train, "--train", good, "--label-column", "text", code=3),
        "finetune, no model": modules("finetune", "--model", "bert-base-uncased", *train[3:], "--train", good, code=3),
        "search": modules("search", *train[1:], "--train", bad, code=3),
        "predict": modules("predict", "--model", model, "--input", bad, "--output", output, code=3),
        "predict, late": modules("predict", "--model", model, "--input", late, "--output", output, code=3),
        "predict, into a folder": modules(
            "predict", "--model", model, "--input", good, "--output", tmp_path / "folder.jsonl", code=3
        ),
        "evaluate": modules("evaluate", "--model", model, "--data", bad, code=3),
        "tune": modules("tune", "--model", model, "--dev", bad, code=3),
        "embed": modules("embed", "--model", model, "--input", bad, "--output", output, code=3),
        "predict, no model": modules("predict", "--model", "absent", "--input", good, "--output", output, code=3),
        "finetune, a run that is yet to begin": modules(*train, "--train", bad, "--resume", code=3),
        "fill-mask, no model": modules("fill-mask", "--model", "absent", "a [MASK]", code=3),
        "answer, no model": modules("answer", "--model", "absent", "--context", good, "--question", "q", code=3),
        "answer, no ensemble": modules("answer", "--ensemble", "absent", "--context", good, "--question", "q", code=3),
        "answer, no text": modules("answer", "--model", model, "--context", "absent", "--question", "q", code=3),
        "features, no model": modules("features", "--model", "absent", "--input", good, "--out", "f", code=3),
        "features, no input": modules("features", "--model", model, "--input", "absent", "--out", "f", code=3),
        "glue run, no model": modules("glue", "run", "--data", glue, "--model", "absent", "--out", "g", code=3),
        "glue run, no data": modules("glue", "run", "--data", tmp_path, "--model", model, "--out", "g", code=3),
        "vocab extend, no model": modules(*extend, "--model", "absent", text, code=3),
        "vocab extend, no text": modules(*extend, "--model", model, tmp_path / "absent.txt", code=3),
        "pretrain, no corpus": modules("pretrain", "--corpus", "absent", "--out", "r", code=3),
        "pretrain, no init": modules("pretrain", "--corpus", corpus, "--init", "absent", "--out", "r", code=3),
        "a name that is not UTF-8": modules(*train, "--train", os.fsdecode(b"caf\xe9.csv"), code=3),
    }
    assert [name for name, found in runs.items() if "torch" in found] == []


def test_commands_that_use_a_model_import_no_compiler_and_no_metrics(minilm_folder: Path, tmp_path: Path) -> None:
    sentences = tmp_path / "s.txt"
    sentences.write_text("one sentence\nanother one\n", encoding="utf-8")
    output = tmp_path / "vectors.npy"
    runs = {
        "embed": modules("embed", "--model", minilm_folder, "--input", sentences, "--output", output),
        "info": modules("info", minilm_folder),
        "features": modules("features", "--model", minilm_folder, "--input", sentences, "--out", tmp_path / "f"),
    }
    unwanted = OF_TORCH | FOR_METRICS | NEVER
    assert {name: found & unwanted for name, found in runs.items() if found & unwanted} == {}


def test_hardly_anything_is_imported_before_ctrl_c_is_answered() -> None:
    # during the imports before that, Ctrl-C prints a traceback
    counts = "import os, sys; before = set(sys.modules); import maskloom; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", counts], capture_output=True, text=True, timeout=60, check=True)
    expected = {"__future__", "math", "maskloom", "maskloom.system", "maskloom.system.resources"}
    assert set(result.stdout.split()) <= expected


# The dot is written in `main` once its handler is installed; an earlier signal would hit Python's own start-up.
STARTS = """
import os, signal, maskloom.__main__
listen = signal.signal
def say_that_it_listens(*how):
    before = listen(*how)
    if how[0] == signal.SIGINT and signal.signal is say_that_it_listens:
        signal.signal = listen
        os.write(1, b".")
    return before
signal.signal = say_that_it_listens
maskloom.__main__.main()
"""


@pytest.mark.parametrize("command", [("info", "absent"), ("pretrain", "--corpus", "absent", "--out", "run")])
def test_ctrl_c_at_any_moment_of_the_start_leaves_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    found = {}
    for milliseconds in range(0, 601, 100):
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
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        found[milliseconds] = (process.returncode, said)
    # a command that has already failed exits with its own code, or dies of the signal silently
    assert {code for code, _ in found.values()} <= {130, 3, -signal.SIGINT}
    assert found[100] == (130, "stopped\n")
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
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


WITHIN = """
import os, signal, time, maskloom.__main__, maskloom.runs.info
def interrupted(folder):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
def lost(folder):
    try:
        interrupted(folder)
    except KeyboardInterrupt:
        raise RuntimeError("as pydantic does within its classes") from None
maskloom.runs.info.describe_folder = {name}
maskloom.__main__.main()
"""


@pytest.mark.parametrize("name", ["interrupted", "lost"])
def test_ctrl_c_within_a_command_is_said(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", WITHIN.format(name=name), "info", "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "stopped\n")
