"""Sequence-to-sequence: trained from scratch on a vocabulary, killed and resumed, evaluated, predicted."""

import csv
import json
import random
import re
import shutil
import signal

import pytest

import maskloom
from maskloom.errors import ConfigError
from maskloom.runs.corpus import train_vocabulary_from_files
from maskloom.text.vocabulary_training import VocabularySettings
from tools.soak.subjects import run_whole

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
SIZE = {"model.config": {"hidden_size": 64, "num_attention_heads": 4, "hidden_dropout_prob": 0.0}}
SETTINGS = {**SIZE, "model.size": "tiny", "training.num_threads": 1, "training.warmup_ratio": 0.1}
LONGEST = {"seq2seq.max_target_length": 16, "seq2seq.label_smoothing": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder with sentences, and targets with the same words reversed."""
    folder, draw = tmp_path_factory.mktemp("backwards"), random.Random(0)
    (folder / "words.txt").write_text("\n".join(WORDS * 20), encoding="utf-8")
    for name, size in (("train", 960), ("dev", 40)):
        texts = [draw.choices(WORDS, k=draw.randint(2, 4)) for _ in range(size)]
        (folder / f"{name}.src").write_text("".join(" ".join(text) + "\n" for text in texts), encoding="utf-8")
        (folder / f"{name}.tgt").write_text("".join(" ".join(text[::-1]) + "\n" for text in texts), encoding="utf-8")
    train_vocabulary_from_files([folder / "words.txt"], VocabularySettings(60), out=folder / "v")
    return folder


def train(data, out, **more):
    recipe = {**SETTINGS, **LONGEST, "seq2seq.target_suffix": "tgt", **more.pop("recipe", {})}
    given = {"learning_rate": 3e-3, "batch_size": 32, "max_length": 16, **more}
    files = (data / "v", data / "train.src", data / "dev.src")
    return maskloom.finetune(*files, out, task="seq2seq", recipe=recipe, progress=False, **given)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    return out, train(data, out, steps=180, recipe={"training.evaluate_every": 180})


def test_words_are_turned_round(model, data, tmp_path, run):
    out, result = model
    assert result["metric"] == "bleu"
    assert result["best"]["scores"]["exact_match"] > 90
    said = run("evaluate", "--model", out, "--data", data / "dev.src", "--json")
    scores = json.loads(said.splitlines()[0])
    assert scores["exact_match"] == result["best"]["scores"]["exact_match"]
    assert scores["metric"] == "bleu"
    assert "sacrebleu's bleu  nrefs:1|case:mixed|" in run("evaluate", "--model", out, "--data", data / "dev.src")
    assert 90 < scores["rouge2"] <= scores["rougeL"] <= scores["rouge1"] <= 100
    stored = json.loads((out / "metrics.json").read_text(encoding="utf-8"))["best"]["signatures"]
    assert scores["signatures"] == stored == result["best"]["signatures"]
    assert stored["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert stored["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    run("predict", "--model", out, "--input", data / "dev.src", "--output", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["source"] for row in rows] == (data / "dev.src").read_text(encoding="utf-8").splitlines()
    right = sum(row["text"].split() == row["source"].split()[::-1] for row in rows)
    assert right == pytest.approx(0.4 * result["best"]["scores"]["exact_match"])
    assert maskloom.load(out).predict(["one two three"]) == [{"text": "three two one"}]


def test_a_beam_finds_texts_of_higher_scores_than_the_greedy_search(model):
    """Sources are longer than any in training, so that the model is unsure; beam search may still lose on one."""
    out, _ = model
    draw, predictor = random.Random(5), maskloom.load(out)
    sources = [" ".join(draw.choices(WORDS, k=8)) for _ in range(40)]
    greedy, wide = (predictor.generate(sources, beam=beam, length_penalty=0.6, max_tokens=12) for beam in (1, 5))
    gains = [other["score"] - one["score"] for one, other in zip(greedy, wide, strict=True)]
    assert sum(gain > 1e-4 for gain in gains) >= 3
    assert sum(gain < -1e-4 for gain in gains) <= 1
    assert sum(gains) > 0


def test_texts_are_written_and_the_next_best_with_them(model, data, tmp_path, run):
    out, _ = model
    text, device, account = run("generate", "--model", out, "--prompt", "one two three").splitlines()
    assert device.startswith("device: ")
    assert text == "three two one"
    assert re.fullmatch(r"score -\d\.\d{3}, log-probability -\d\.\d{3}, ended by the model", account)
    search = ("--beam", 4, "--num-best", 3, "--length-penalty", 0.6)
    lines = run("generate", "--model", out, "--prompt", "one two three", *search).split("\n")[:3]
    scores = [float(line.split("  ")[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert lines[0].endswith("  three two one")
    said = json.loads(run("generate", "--model", out, "--prompt", "one two three", *search, "--json").splitlines()[0])
    assert (said["source"], said["text"]) == ("one two three", "three two one")
    assert said["finish"] == "end"
    assert len(said["others"]) == 2
    assert said["log_probability"] > max(other["log_probability"] for other in said["others"])
    page = ("--report", tmp_path / "page.html")
    said = run("generate", "--model", out, "--input", data / "dev.src", "--output", tmp_path / "out.jsonl", *page)
    assert "page.html" in said
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    predicted = maskloom.load(out).predict([row["source"] for row in rows])
    assert [row["text"] for row in rows] == [one["text"] for one in predicted]
    short = run("generate", "--model", out, "--prompt", "one two three", "--max-tokens", 2)  # still uses the search
    assert short.split("\n")[0] == "three two"
    assert short.endswith(", stopped at the token limit\n")
    several = run("generate", "--model", out, "--prompt", "one", "--num-best", 5, code=3)
    assert "num_best 5 exceeds the beam, 4; give a wider beam" in several
    assert "'' has no tokens" in run("generate", "--model", out, "--prompt", "", code=3)
    longest = " ".join(["one"] * 1100)
    said = run("generate", "--model", out, "--prompt", longest, "--max-tokens", 2)
    assert "read only the first 16 tokens of the source" in said


def test_a_page_shows_how_texts_are_written(model, data, tmp_path, run):
    (out, _), page = model, tmp_path / "page.html"
    said = run("generate", "--model", out, "--prompt", "one two three", "--report", page)
    assert said.splitlines()[:2] == ["three two one", f"page: {page}"]
    assert "<h3>Cross-attention: from the decoder" in page.read_text(encoding="utf-8")
    said = run("generate", "--model", out, "--input", data / "dev.src", "--report", page, "--json")
    said = json.loads(said.splitlines()[0])
    texts = said.pop("texts")
    assert said == {"page": str(page), "num_shown": 5, "num_left_out": 35}
    lines = run("generate", "--model", out, "--input", data / "dev.src", "--report", page).splitlines()
    assert lines[:6] == [*(one["text"] for one in texts), f"page: {page}, without 35 texts"]
    assert [one["source"] for one in texts] == (data / "dev.src").read_text(encoding="utf-8").splitlines()[:5]
    for wrong, message in ((tmp_path, "--report names the page"), (tmp_path / "a" / "b.html", "does not exist")):
        assert message in run("generate", "--model", out, "--prompt", "one", "--report", wrong, code=3)
    sources = shutil.copy(data / "dev.src", tmp_path / "dev.html")
    assert "would replace the input" in run("generate", "--model", out, "--input", sources, "--report", sources, code=3)


def test_a_target_that_must_be_longer_than_it_may_be_is_refused(model, data, tmp_path, run):
    out, _ = model
    most = ("--min-tokens", 70, "--max-tokens", 90)
    said = run("generate", "--model", out, "--prompt", "one two three", *most, code=3)
    assert "source 1: min_tokens 70: a target has at most 55 tokens, 50 more than the source's 5" in said
    said = run("generate", "--model", out, "--input", data / "dev.src", "--output", tmp_path / "o.jsonl", *most, code=3)
    assert "dev.src, line 1: min_tokens 70: a target has at most" in said
    exact = run(
        "generate", "--model", out, "--prompt", "one two three", "--min-tokens", 55, "--max-tokens", 90, "--json"
    )
    assert json.loads(exact.splitlines()[0])["num_tokens"] == 55
    files = ("--task", "seq2seq", "--vocab", data / "v", "--train", data / "train.src", "--dev", data / "dev.src")
    longest = ("--set", "seq2seq.target_suffix=tgt", "--set", "seq2seq.min_tokens=70", "--out", tmp_path / "run")
    said = run("finetune", *files, *longest, "--size", "tiny", "--set", "model.config.hidden_size=32", code=3)
    assert "dev.src, line 1: min_tokens 70: a target has at most" in said


def test_targets_beside_other_files_are_found_by_their_suffix(model, data, tmp_path, run):
    (out, result), scores = model, {}
    for name in ("src", "tgt"):
        shutil.copy(data / f"dev.{name}", tmp_path / f"dev.{'ref' if name == 'tgt' else name}")
    assert "dev.tgt: no such file; expected the targets of" in run(
        "evaluate", "--model", out, "--data", tmp_path / "dev.src", code=3
    )
    said = run("evaluate", "--model", out, "--data", tmp_path / "dev.src", "--target-suffix", "ref", "--json")
    scores = json.loads(said.splitlines()[0])
    assert scores["exact_match"] == result["best"]["scores"]["exact_match"]


def test_cut_targets_are_counted_and_told(model, data, tmp_path, run):
    out, result = model
    assert result["data"]["train"]["num_truncated_targets"] == 0
    targets = {"one two": 1, "two one": 8, "one one": 9}
    rows = [{"source": source, "target": " ".join(["two one"] * times)} for source, times in targets.items()]
    (tmp_path / "long.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    account = json.loads(run("evaluate", "--model", out, "--data", tmp_path / "long.jsonl", "--json").splitlines()[0])
    assert account["data"]["num_truncated_targets"] == 2  # of 18 and 20 tokens, 16 of which are read
    assert account["data"]["num_truncated_target_tokens"] == 2 + 4
    assert "; 2 targets truncated" in run("evaluate", "--model", out, "--data", tmp_path / "long.jsonl")


def test_several_targets_are_pairs_to_learn_from_and_references_to_score_against(model, data, tmp_path, run):
    out, _ = model
    rows = [
        {"source": ["one", "two three"], "target": ["three one two", "three two one"]},
        {"source": "four five", "target": ["five four"]},
        {"source": "six one", "target": ["six one", "six six", "one six"]},
    ]
    (tmp_path / "several.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    scores = json.loads(run("evaluate", "--model", out, "--data", tmp_path / "several.jsonl", "--json").splitlines()[0])
    found = [one["text"] for one in maskloom.load(out).predict(["one two three", "four five", "six one"])]
    assert found == ["three two one", "five four", "one six"]
    assert (scores["exact_match"], scores["rougeL"], scores["num_examples"]) == (100.0, 100.0, 3)
    assert scores["signatures"]["chrf"].startswith("nrefs:var|")
    recipe = {**LONGEST, "training.num_threads": 1, "training.batch_size": 6}
    files = (out, tmp_path / "several.jsonl", tmp_path / "several.jsonl", tmp_path / "more")
    result = maskloom.finetune(*files, task="seq2seq", recipe=recipe, epochs=2, max_length=16, progress=False)
    assert result["best"]["step"] <= 2
    assert result["last"]["step"] == 2  # an epoch has six pairs
    assert result["data"]["train"]["num_kept"] == 3
    (note,) = result["data"]["train"]["notes"]
    assert note == "6 training pairs, one per target, in which truncation is counted"
    run("report", tmp_path / "more", "--out", tmp_path / "page.html")
    assert "six one | six six | one six" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_model_is_trained_further_and_its_card_says_where_it_is_from(model, data, tmp_path):
    out, _ = model
    card = (out / "model" / "README.md").read_text(encoding="utf-8")
    assert "random weights, with the vocabulary of v" in card
    assert 'pipeline_tag: "text2text-generation"' in card
    recipe = {**LONGEST, "seq2seq.target_suffix": "tgt", "training.num_threads": 1}
    files = (out, data / "train.src", data / "dev.src", tmp_path / "more")
    more = {"task": "seq2seq", "steps": 4, "max_length": 16, "metric": "exact_match", "progress": False}
    assert maskloom.finetune(*files, recipe=recipe, **more)["metric"] == "exact_match"


@pytest.mark.slow
def test_a_killed_run_ends_in_the_weights_of_one_that_was_not(server, data, tmp_path):
    train(data, tmp_path / "whole", steps=60)
    keys = {**SETTINGS, **LONGEST, "seq2seq.target_suffix": "tgt", "training.save_every": 20}
    keys |= {f"model.config.{key}": value for key, value in keys.pop("model.config").items()}
    sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    files = ("--vocab", data / "v", "--train", data / "train.src", "--dev", data / "dev.src", "--out", "killed")
    how = ("--steps", 60, "--learning-rate", 3e-3, "--batch-size", 32, "--max-length", 16)
    arguments = ("finetune", "--task", "seq2seq", *map(str, (*files, *how)), *sets)
    checkpoints = tmp_path / "killed" / "restarts" / "seed-0" / "checkpoints"
    running = server.start(arguments, tmp_path, tmp_path / "output.txt")
    running.wait_until(lambda: list(checkpoints.glob("step-????????")))
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert re.search("seed 0: continuing at [24]0 of 60", run_whole(server, (*arguments, "--resume"), tmp_path))
    whole, killed = ((tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("whole", "killed"))
    assert whole == killed


def test_wrong_input_is_refused_before_any_training(model, data, tmp_path, run):
    out, _ = model
    files = ("--task", "seq2seq", "--train", data / "train.src", "--dev", data / "dev.src", "--out", tmp_path / "run")
    suffix = ("--set", "seq2seq.target_suffix=tgt")
    assert "pass either --model" in run("finetune", *files, *suffix, code=2)
    assert "pass either --model" in run("finetune", *files, *suffix, "--model", out, "--vocab", data / "v", code=2)
    assert "[model] and --vocab go together" in run(
        "finetune", *files, *suffix, "--model", out, "--size", "tiny", code=2
    )
    beam = run("finetune", *files, *suffix, "--vocab", data / "v", "--set", "seq2seq.beam=0", code=3)
    assert "seq2seq.beam = 0: it must be greater than or equal to 1" in beam
    assert "has only sources" in run("finetune", *files, "--vocab", data / "v", code=3)
    bert = ("--vocab", data / "v", "--set", "model.architecture=bert", "--size", "tiny")
    assert "Bert: an architecture without a decoder" in run("finetune", *files, *suffix, *bert, code=3)
    averaged = run("predict", "--model", out, "--model", out, "--input", data / "dev.src", "--output", "x.csv", code=3)
    assert "a seq2seq model; the outputs of such models cannot be averaged" in averaged
    deep = ("--vocab", data / "v", "--size", "tiny", "--set", "model.config.max_position_embeddings=12")
    said = run("finetune", *files, *suffix, *deep, "--max-length", 12, code=3)
    assert (
        "seq2seq.max_target_length 128 exceeds the 12 positions of the decoder in the new model (model.config." in said
    )
    said = run("finetune", *files, *suffix, *deep, "--max-length", 13, code=3)
    assert "data.max_length 13 exceeds the 12 tokens that the new model takes (model.config.max_position_emb" in said
    for wrong in ("", "/x", "a/../b"):
        named = run("finetune", *files, "--vocab", data / "v", "--set", f"seq2seq.target_suffix={wrong}", code=3)
        assert "seq2seq.target_suffix" in named
    onnx = run("export", out, "--onnx", "--out", tmp_path / "onnx", code=3)
    assert "the architecture transformer cannot be exported to ONNX" in onnx
    assert not (tmp_path / "onnx").exists()
    kept = run("finetune", *files, *suffix, "--vocab", data / "v", "--restarts", 2, "--keep-restarts", code=3)
    assert "keep_restarts = true: models of task = 'seq2seq' cannot form an ensemble" in kept
    penalty = run("generate", "--model", out, "--prompt", "one", "--length-penalty", 1, "--top-k", 3, code=3)
    assert "length_penalty 1: it is only for beam search; give a beam" in penalty
    assert "min_tokens 9: it may not exceed max_tokens, 5" in run(
        "generate", "--model", out, "--prompt", "one", "--min-tokens", 9, "--max-tokens", 5, code=3
    )
    with pytest.raises(ConfigError, match="settings 5: expected a Generation"):
        maskloom.load(out).generate(["one"], 5)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="masked"):
        maskloom.load(out).fill_mask("one [MASK]")
    with pytest.raises(ConfigError, match="input 0: this model was fine-tuned on single texts, but this is a pair"):
        maskloom.load(out).predict([("one", "two")])


@pytest.mark.slow
def test_an_lstm_writes_many_tokens_from_one(data, tmp_path):
    """One to many: the target is all words up to the source word, generated from the encoder's last state only."""
    rows = [(word, " ".join(WORDS[: place + 1])) for place, word in enumerate(WORDS)]
    for name, times in (("train.csv", 30), ("dev.csv", 1)):
        lines = [f"{source},{target}" for source, target in rows * times]
        (tmp_path / name).write_text("\n".join(["source,target", *lines]) + "\n", encoding="utf-8")
    model = {"architecture": "lstm", "size": "tiny", "config": {"hidden_size": 32, "decoder_attention": "none"}}
    model["config"]["hidden_dropout_prob"] = 0.0
    recipe = {"model": model, "training.num_threads": 1, **LONGEST}
    files = (data / "v", tmp_path / "train.csv", tmp_path / "dev.csv")
    keys = {"epochs": 30, "learning_rate": 1e-2, "batch_size": 16, "max_length": 8}
    result = maskloom.finetune(*files, tmp_path / "run", task="seq2seq", recipe=recipe, progress=False, **keys)
    assert result["best"]["scores"]["exact_match"] == 100
