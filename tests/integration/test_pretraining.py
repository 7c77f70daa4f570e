"""Commands from text to a pre-trained model, killed and resumed."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import maskloom.runs.pretrain as pretraining
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.loader import Loader
from tools.checking import verify_checkpoint
from tools.soak.processes import ForkServer
from tools.soak.subjects import run_whole

TINY = [
    *("--set", "model.config.hidden_size=32", "--set", "model.config.num_attention_heads=2"),
    *("--set", "model.config.intermediate_size=64", "--set", "model.config.num_hidden_layers=2"),
    *("--set", "data.max_length=32", "--set", "data.held_out_fraction=0.2", "--set", "training.batch_size=8"),
    *("--set", "training.learning_rate=1e-3", "--set", "training.num_threads=1", "--set", "training.log_every=1"),
    *("--set", "training.max_evaluation_instances=64"),
]
STEPS = 30


@pytest.fixture(scope="module")
def corpus(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus of the first topics of the language reference that the standard library contains."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("corpus")
    # a blank line ends a document, so each topic becomes one paragraph
    text = "\n\n".join(" ".join(topic.split()) for _, topic in sorted(topics.items())[:40])
    (folder / "topics.txt").write_text(text, encoding="utf-8")
    run_whole(server, ("vocab", "train", "topics.txt", "--size", "600", "--out", "vocab"), folder)
    run_whole(server, ("corpus", "build", "topics.txt", "--vocab", "vocab", "--out", "corpus"), folder)
    return folder / "corpus"


def _pretrain(corpus: Path, out: Path, *more: str) -> list[str | Path]:
    steps = (f"training.steps={STEPS}", "training.save_every=7", "training.evaluate_every=20")
    sets = (word for key in steps for word in ("--set", key))
    return ["pretrain", "--corpus", corpus, "--out", out, "--size", "tiny", *TINY, *sets, *more]


def _words(arguments: list[str | Path]) -> tuple[str, ...]:
    return tuple(map(str, arguments))


def _digest(run_folder: Path) -> str:
    return hashlib.sha256((run_folder / "model" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def left_alone(server: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    run_whole(server, _words(_pretrain(corpus, folder / "run")), folder)
    return folder / "run"


def test_a_run_writes_what_it_promises(left_alone: Path) -> None:
    names = {path.name for path in left_alone.iterdir()}
    assert names == {"recipe.toml", "run.json", "events.jsonl", "metrics.json", "checkpoints", "model"}
    model = {path.name for path in (left_alone / "model").iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "README.md"} <= model
    metrics = json.loads((left_alone / "metrics.json").read_text())
    assert metrics["mlm_loss"] < 7
    assert 4 < metrics["unigram_cross_entropy"] < 6.4
    assert 0.5 <= metrics["nsp_majority_fraction"] < 1.0
    events = [json.loads(line) for line in (left_alone / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, STEPS + 1))


@pytest.mark.parity
def test_the_model_opens_in_transformers(left_alone: Path) -> None:
    import torch
    from transformers import AutoTokenizer, BertForPreTraining

    import maskloom

    model, report = BertForPreTraining.from_pretrained(left_alone / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(left_alone / "model")
    inputs = tokenizer(["the names of a module"], return_tensors="pt")
    with torch.inference_mode():
        theirs = model.eval().bert(**inputs).last_hidden_state.mean(1)
    ours = maskloom.load(str(left_alone)).encode(["the names of a module"])
    assert abs(theirs.numpy() - ours).max() < 1e-5


def _signal_after_step(server: ForkServer, arguments: list, out: Path, step: int, number: int) -> int:
    """Start a run, wait until its log shows a step, send the signal, and return the exit code."""
    log = out / "events.jsonl"
    running = server.start(arguments, out.parent, out.parent / "output.txt")
    running.wait_until(lambda: log.exists() and f'"step": {step},' in log.read_text())
    running.send(number)
    return running.wait()


def test_a_killed_run_resumes_to_the_bit(server: ForkServer, corpus: Path, left_alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert _signal_after_step(server, _pretrain(corpus, out), out, 15, signal.SIGKILL) == -signal.SIGKILL
    said = run_whole(server, _words(_pretrain(corpus, out, "--resume")), tmp_path)
    assert re.search(rf"^phase-1, length 32: continuing at (7|14) of {STEPS}$", said, re.MULTILINE)
    assert _digest(out) == _digest(left_alone)
    assert (out / "metrics.json").read_bytes() == (left_alone / "metrics.json").read_bytes()


def test_a_run_asked_to_stop_saves_and_resumes_to_the_bit(
    server: ForkServer, corpus: Path, left_alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert _signal_after_step(server, _pretrain(corpus, out), out, 10, signal.SIGINT) == 130
    assert list((out / "checkpoints" / "phase-1").glob("step-*"))
    # the run has recorded its corpus
    assert "continuing at" in run_whole(server, ("pretrain", "--out", str(out), "--resume"), tmp_path)
    assert _digest(out) == _digest(left_alone)


SLOW_SAVES = """
import sys, time, maskloom.training.checkpointing.checkpoints as checkpoints
write = checkpoints.write_hashed
def slowly(*given, **named):
    described = write(*given, **named)
    time.sleep(0.1)
    return described
checkpoints.write_hashed = slowly
from maskloom.cli import main
main()
"""


def _signal_during_save(arguments: list, checkpoints: Path, file: str, signal_number: int) -> tuple[int, str]:
    """Start a run, signal it while a later, slowly written checkpoint has `file`; return the exit code and its step."""
    command = [sys.executable, "-c", SLOW_SAVES, *_words(arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 120
    found: list[Path] = []
    while time.monotonic() < deadline and process.poll() is None and not found:
        found = [path for path in checkpoints.glob(f"step-*.tmp-*/{file}") if "00000007" not in path.parent.name]
        time.sleep(0.005)
    assert process.poll() is None, "the run ended before it could be stopped"
    process.send_signal(signal_number)
    return process.wait(timeout=60), found[0].parent.name.partition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json"])
def test_a_run_killed_while_a_save_is_under_way_resumes_to_the_bit(
    server: ForkServer, corpus: Path, left_alone: Path, tmp_path: Path, file: str
) -> None:
    out = tmp_path / "run"
    checkpoints = out / "checkpoints" / "phase-1"
    code, half = _signal_during_save(_pretrain(corpus, out), checkpoints, file, signal.SIGKILL)
    assert code == -signal.SIGKILL
    whole = sorted(path for path in checkpoints.glob("step-*") if ".tmp-" not in path.name)
    assert whole
    assert half not in [path.name for path in whole]
    assert [verify_checkpoint(path) for path in whole] == [None] * len(whole)
    said = run_whole(server, _words(_pretrain(corpus, out, "--resume")), tmp_path)
    assert f"continuing at {int(whole[-1].name[5:])} of {STEPS}" in said
    assert _digest(out) == _digest(left_alone)
    assert not list(checkpoints.glob("*.tmp-*"))


@pytest.mark.slow
def test_a_run_asked_to_stop_while_a_save_is_under_way_ends_with_both_whole(
    server: ForkServer, corpus: Path, left_alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    checkpoints = out / "checkpoints" / "phase-1"
    code, under_way = _signal_during_save(_pretrain(corpus, out), checkpoints, "model.safetensors", signal.SIGTERM)
    assert code == 75
    names = sorted(path.name for path in checkpoints.iterdir())
    assert not [name for name in names if ".tmp-" in name]
    assert all(verify_checkpoint(checkpoints / name) is None for name in names)
    saved = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert under_way in [event["folder"] for event in saved if event["event"] == "checkpoint"]
    assert names[-1] >= under_way
    said = run_whole(server, _words(_pretrain(corpus, out, "--resume")), tmp_path)
    assert f"continuing at {int(names[-1][5:])} of {STEPS}" in said
    assert _digest(out) == _digest(left_alone)


def test_a_folder_that_holds_a_run_is_not_overwritten(run, corpus: Path, left_alone: Path) -> None:
    assert "--resume" in run(*_pretrain(corpus, left_alone), code=3)
    said = run("pretrain", "--out", left_alone / "new", "--resume", code=2)
    assert re.search(r"--resume: there is no run in \S+new; missing --corpus, a corpus folder, to begin a run", said)
    changed = run(*_pretrain(corpus, left_alone, "--resume", "--set", "training.batch_size=4"), code=3)
    assert "training.batch_size was 8, is 4" in changed


def _check_share(folder: Path, said: tuple[str, str, str]) -> None:
    opened = Corpus.open(folder)
    _, documents = split_documents(opened, 0.2, seed=0)
    bounds = opened.document_offsets
    tokens = sum(int(opened.sentence_lengths[bounds[n] : bounds[n + 1]].sum()) for n in documents)
    assert said == (str(len(documents)), str(opened.num_documents), f"{100 * tokens / opened.num_tokens:.3g}")


def test_two_phases_carry_the_weights_over(run, corpus: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run"
    phases = "phases=[{max_length=16, steps=6, batch_size=4}, {max_length=32, steps=3, batch_size=2}]"
    more = ["--set", phases, "--set", "data.max_length=64"]
    evaluated, evaluate = [], pretraining.evaluate
    monkeypatch.setattr(pretraining, "evaluate", lambda *given: evaluated.append(given) or evaluate(*given))
    said = run("pretrain", "--corpus", corpus, "--out", out, "--size", "tiny", *TINY, *more)
    assert "data.max_length = 64: ignored, every phase has its own length" in said
    (held_out,) = re.findall(r"held out: (\d+) of (\d+) documents, ([\d.]+)% of the tokens", said)
    _check_share(corpus, held_out)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [e["step"] for e in events if e["event"] == "finished"] == [6, 3]
    assert len(evaluated) == sum(e["event"] == "evaluation" for e in events)  # the last step not twice
    from safetensors.numpy import load_file

    first = load_file(out / "checkpoints/phase-1/step-00000006/model.safetensors")
    last = load_file(out / "checkpoints/phase-2/step-00000003/model.safetensors")
    name = next(name for name in first if "embeddings.position" in name)
    # rows beyond the second phase's length get no gradient: they only decay, all by the same factor
    moved = abs(last[name] - first[name]).max(axis=1)
    assert moved[:32].min() > 1e-5
    assert moved[32:].max() < 1e-5
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    said = run("pretrain", "--out", out, "--resume")  # regression: the run was evaluated and logged as finished again
    assert f"{out} is complete; there is nothing left to do" in said
    assert written == {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    shutil.rmtree(out / "model")
    monkeypatch.setattr("maskloom.data.loader.Loader.account", None)
    run("pretrain", "--out", out, "--resume")
    assert (out / "model" / "config.json").exists()
    # a phase that has finished is neither counted, evaluated nor logged again
    assert [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()] == events


def test_a_phase_of_the_same_length_reads_on_also_in_a_resumed_run(
    run, corpus: Path, tmp_path: Path, monkeypatch
) -> None:
    """Regression: each phase of growing batches read the same sequences with the same masks."""
    out, read, next_batch = tmp_path / "run", {}, Loader.next_batch

    def watched(self, position):
        batch, after = next_batch(self, position)
        read.setdefault(self, []).append((position, after))
        return batch, after

    monkeypatch.setattr(Loader, "next_batch", watched)
    lengths = ((16, 3, 4), (16, 2, 8), (32, 1, 2))
    phases = ", ".join(f"{{max_length={length}, steps={steps}, batch_size={rows}}}" for length, steps, rows in lengths)
    run("pretrain", "--corpus", corpus, "--out", out, "--size", "tiny", *TINY, "--set", f"phases=[{phases}]")
    first, second, third = read.values()
    (_, end), (begin, _) = first[2], second[0]  # more batches may have been made ahead
    assert first[0][0] == third[0][0] == {}
    assert begin == end != {}
    read.clear()
    for folder in ("model", "checkpoints/phase-2", "checkpoints/phase-3"):
        shutil.rmtree(out / folder)
    (out / "metrics.json").unlink()
    run("pretrain", "--out", out, "--resume")
    again = list(read.values())
    assert [calls[0][0] for calls in again] == [end, {}]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--set", "training.stps=3"], 3, "did you mean 'training.steps'"),
        (
            ["--set", "data.max_length=4096"],
            3,
            "data.max_length = 4096: it may not exceed [model.config] max_position_embeddings = 512",
        ),
        (["--set", "model.config.hidden_size=33"], 3, "hidden_size"),
        (["--set", "model.config.hiden_size=33"], 3, "hiden_size"),
        (["--set", "training.num_threads=1000000000000"], 3, "training.num_threads = 1000000000000"),
        (["--set", "model.config.hidden_size=65536"], 3, "in training with gradients and moments, takes "),
        (["--size", "huge"], 2, "huge"),
        (["--nonsense"], 2, "nonsense"),
        (["--recipe", "absent.toml"], 3, "absent.toml"),
    ],
)
def test_wrong_input_is_refused_before_any_work(
    run, corpus: Path, tmp_path: Path, arguments: list[str], code: int, expected: str
) -> None:
    said = run("pretrain", "--corpus", corpus, "--out", tmp_path / "run", *arguments, code=code)
    assert expected in said
    assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_corpus_is_named(run, tmp_path: Path) -> None:
    assert str(tmp_path) in run("pretrain", "--corpus", tmp_path, "--out", tmp_path / "run", code=3)


def test_a_left_to_right_model_learns_to_predict_the_next_token(run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "causal"
    keys = ("objective=causal_lm", "training.learning_rate=3e-3", "training.steps=60")
    said = run(*_pretrain(corpus, out, *(word for key in keys for word in ("--set", key))))
    assert "held-out LM loss" in said
    metrics = json.loads((out / "metrics.json").read_text())
    assert ("uses no context yet" in said) == (metrics["lm_loss"] > metrics["unigram_cross_entropy"] - 0.1)
    assert metrics["lm_loss"] < metrics["unigram_cross_entropy"] + 0.3
    assert "nsp_loss" not in metrics
    assert json.loads((out / "model" / "config.json").read_text())["model_type"] == "maskloom_causal_bert"
    refused = run("fill-mask", "--model", out, "a [MASK]", code=3)
    assert "from left to right" in refused
    for wrong, said in (
        (["--set", "objective=causal_lm", "--set", "data.next_sentence=true"], "needs a bidirectional model"),
        (["--set", "model.config.causal=true"], "leave it out"),
        (["--init", out / "model"], "the initial model is left-to-right"),
    ):
        assert said in run(*_pretrain(corpus, tmp_path / "no", *wrong), code=3)
        assert not (tmp_path / "no").exists()


@pytest.mark.parity
def test_other_layers_from_pretraining_to_predictions(run, corpus: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    options = ("pre_norm", "gated", "rotary")
    keys = [part for option in options for part in ("--set", f"model.config.{option}=true")]
    keys += ["--set", "training.activation_checkpointing=true", "--set", "training.learning_rate=3e-3"]
    keys += ["--set", "training.steps=60"]
    said = run(*_pretrain(corpus, tmp_path / "run", *keys))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert ("uses no context yet" in said) == (metrics["mlm_loss"] > metrics["unigram_cross_entropy"] - 0.1)
    assert metrics["mlm_loss"] < metrics["unigram_cross_entropy"] + 0.5
    facts = json.loads(run("info", tmp_path / "run" / "model", "--json"))
    assert all(facts[option] is True for option in options)
    with pytest.raises(ValueError, match="maskloom_bert"):
        AutoModel.from_pretrained(tmp_path / "run" / "model")
    said = run("export", tmp_path / "run", "--out", tmp_path / "no", "--for-vectors", "mean", code=3)
    assert "sentence-transformers cannot open a model of type 'maskloom_bert'" in said

    rows = [f"{word} is a {kind} here\t{kind}\n" for kind in ("name", "value") for word in "abcdefghij"]
    table = tmp_path / "table.tsv"
    table.write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    tuned = tmp_path / "tuned"
    data = ["--train", table, "--dev", table, "--epochs", "12", "--learning-rate", "4e-3", "--batch-size", "4"]
    data += ["--set", "training.evaluate_every=60"]
    run("finetune", "--task", "single", "--model", tmp_path / "run", *data, "--out", tuned)
    run("predict", "--model", tuned, "--input", table, "--output", tmp_path / "answers.jsonl")
    answers = [json.loads(line)["label"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert answers == ["name"] * 10 + ["value"] * 10


def test_sentence_order_in_place_of_next_sentences(run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "ordered"
    said = run(*_pretrain(corpus, out, "--set", "data.sentence_order=true", "--set", "training.steps=10"))
    assert "SOP accuracy" in said
    metrics = json.loads((out / "metrics.json").read_text())
    assert {"sop_loss", "sop_accuracy", "sop_majority_fraction"} <= set(metrics)
    assert not any(name.startswith("nsp") for name in metrics)
    wrong = ["--set", "data.sentence_order=true", "--set", "data.next_sentence=false"]
    assert "needs pairs" in run(*_pretrain(corpus, tmp_path / "no", *wrong), code=3)
