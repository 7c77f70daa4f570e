"""Evaluation and prediction need no more memory for many examples than for few."""

import json
import random
import subprocess
import sys
import tracemalloc

import pytest

from maskloom.checkpoints.huggingface import save_model
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs import evaluate as evaluate_run
from maskloom.runs import predict as predict_run
from maskloom.runs.evaluate import evaluate
from maskloom.runs.predict import predict
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
PROBLEMS = {
    "single": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


def write_model(folder, kind):
    vocabulary = Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16,
    )  # fmt: skip
    model = build_model(config, ("classifier",), 1 if kind == "regression" else 3, seed=1)
    save_model(model, folder, extra_config={"problem_type": PROBLEMS[kind]})
    WordPieceTokenizer(vocabulary, max_length=16).save(folder)
    return folder


def write_rows(path, kind, num_examples):
    draw = random.Random(num_examples)
    with path.open("w") as file:
        file.write("text\tlabel\n")
        for _ in range(num_examples):
            text = " ".join(draw.choices(WORDS, k=draw.randint(2, 6)))
            label = draw.random() if kind == "regression" else f"LABEL_{draw.randrange(3)}"
            file.write(f"{text}\t{label}\n")
    return path


def peak_of(action):
    """Return the peak number of bytes that Python and NumPy allocate during `action`."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def _peaks_are_of_pieces(monkeypatch):
    """Exclude what would mask the peak of a piece: loading the model."""
    load = evaluate_run.open_models

    def loaded(*given, **settings):
        model = load(*given, **settings)
        tracemalloc.reset_peak()
        return model

    monkeypatch.setattr(evaluate_run, "open_models", loaded)


@pytest.mark.usefixtures("_peaks_are_of_pieces")
@pytest.mark.parametrize(
    "kind", ["single", *(pytest.param(kind, marks=pytest.mark.slow) for kind in PROBLEMS if kind != "single")]
)
def test_the_peak_is_that_of_a_piece(tmp_path, monkeypatch, kind):
    folder = write_model(tmp_path / "model", kind)
    few, many = (write_rows(tmp_path / f"{number}.tsv", kind, number) for number in (250, 2000))
    monkeypatch.setattr(evaluate_run, "_PIECE", 125)
    evaluate(folder, few)  # one-time allocations happen here
    small, large = (peak_of(lambda path=path: evaluate(folder, path)) for path in (few, many))
    # scores of regression need 16 bytes per example, and copies of them to compute ranks
    allowed = 150 * 2000 if kind == "regression" else 0
    assert large < 1.2 * small + allowed
    monkeypatch.setattr(evaluate_run, "_PIECE", 2000)
    assert peak_of(lambda: evaluate(folder, many)) > 3 * large or kind == "regression"


@pytest.mark.slow
def test_the_peak_of_prediction_is_that_of_a_window(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model", "single")
    few, many = (write_rows(tmp_path / f"{number}.tsv", "single", number) for number in (500, 4000))
    monkeypatch.setattr(predict_run, "_WINDOW", 250)
    predict(folder, few, tmp_path / "out.jsonl")
    small, large = (peak_of(lambda path=path: predict(folder, path, tmp_path / "out.jsonl")) for path in (few, many))
    assert large < 1.2 * small
    monkeypatch.setattr(predict_run, "_WINDOW", 4000)
    assert peak_of(lambda: predict(folder, many, tmp_path / "out.jsonl")) > 2 * large


MEASURED = """
import json, sys
import torch
from maskloom.runs.evaluate import evaluate
torch.set_num_threads(1)
result = evaluate(sys.argv[1], sys.argv[2])
# the highest resident size of this process; getrusage would tell that of the parent where it is larger
(peak,) = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([result["num_examples"], peak]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_hundred_thousand_examples_take_what_ten_thousand_take(tmp_path):
    folder, peaks = write_model(tmp_path / "model", "multilabel"), []
    for number in (10_000, 100_000):
        path = write_rows(tmp_path / f"{number}.tsv", "multilabel", number)
        command = [sys.executable, "-c", MEASURED, str(folder), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        num_examples, kilobytes = json.loads(done.stdout)
        assert num_examples == number
        peaks.append(kilobytes / 1024)
    print(f"peak resident memory: {peaks[0]:.1f} MiB for 10,000 examples, {peaks[1]:.1f} MiB for 100,000")
    # more pieces give a slightly higher peak; keeping all examples would take about 30 MiB
    assert peaks[1] - peaks[0] < 10.0
