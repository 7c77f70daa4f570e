"""Separate source vocabularies: a Transformer from scratch, and BART trained to translate in two steps."""

import json
import random
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import maskloom
from maskloom.checkpoints.huggingface import load_model
from maskloom.cli import app
from maskloom.errors import ConfigError, DataError
from maskloom.models.bart_config import BartConfig
from maskloom.text.tokenizer import Tokenizer

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six"}
SIZE = {"model.config": {"hidden_size": 32, "num_attention_heads": 4, "hidden_dropout_prob": 0.0}, "model.size": "tiny"}
SETTINGS = {
    "training.num_threads": 1,
    "training.warmup_ratio": 0.1,
    "seq2seq.max_target_length": 16,
    "seq2seq.label_smoothing": 0.0,
    "seq2seq.beam": 1,
    "seq2seq.target_suffix": "en",
}


def invoke(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output + repr(result.exception)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder of German numbers, English ones in reverse order, a vocabulary of each, and an English corpus."""
    folder, draw = tmp_path_factory.mktemp("numbers"), random.Random(0)
    for name, size in (("train", 600), ("dev", 30)):
        texts = [draw.choices([*WORDS], k=draw.randint(2, 4)) for _ in range(size)]
        (folder / f"{name}.de").write_text("".join(" ".join(text) + "\n" for text in texts), encoding="utf-8")
        english = [" ".join(WORDS[word] for word in reversed(text)) for text in texts]
        (folder / f"{name}.en").write_text("\n".join(english) + "\n", encoding="utf-8")
    (folder / "labels.tsv").write_text("text\tlabel\neins\ta\nzwei\tb\n", encoding="utf-8")
    (folder / "text.txt").write_text("\n\n".join(english * 3), encoding="utf-8")
    invoke("vocab", "train", folder / "train.de", "--out", folder / "de", "--size", 60, "--cased")
    invoke("vocab", "train", folder / "train.en", "--out", folder / "en", "--size", 40)
    invoke("corpus", "build", folder / "text.txt", "--vocab", folder / "en", "--out", folder / "corpus")
    return folder


def train(data, out, model, **more):
    recipe = {**SETTINGS, **more.pop("recipe", {})}
    given = {"learning_rate": 3e-3, "batch_size": 32, "max_length": 16, "progress": False, **more}
    return maskloom.finetune(model, data / "train.de", data / "dev.de", out, task="seq2seq", recipe=recipe, **given)


def weights(run):
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def transformer(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("transformer") / "run"
    wider = {**SIZE, "model.config": {**SIZE["model.config"], "hidden_size": 64}, "training.evaluate_every": 160}
    return out, train(data, out, data / "en", recipe=wider, steps=160, source_vocab=data / "de")


def test_a_transformer_reads_one_vocabulary_and_writes_another(transformer, data, tmp_path, run):
    out, result = transformer
    assert result["best"]["scores"]["exact_match"] > 90
    german, english = (Tokenizer.load(data / name) for name in ("de", "en"))
    reopened = Tokenizer.load(out / "model")
    assert reopened.vocabulary == german.vocabulary
    assert reopened.lowercase is False
    assert reopened.targets is not None
    assert reopened.of_targets.vocabulary == english.vocabulary
    assert reopened.of_targets.lowercase is True
    tensors = weights(out)
    assert len(tensors["encoder.embeddings.source.weight"]) == len(german.vocabulary)
    assert len(tensors["encoder.embeddings.word.weight"]) == len(english.vocabulary)
    scores = json.loads(run("evaluate", "--model", out, "--data", data / "dev.de", "--json").splitlines()[0])
    assert scores["exact_match"] == result["best"]["scores"]["exact_match"]
    assert scores["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-6)
    assert maskloom.load(out).predict(["fünf zwei eins"]) == [{"text": "one two five"}]
    assert run("generate", "--model", out, "--prompt", "fünf zwei eins").split("\n")[0] == "one two five"
    run("export", out, "--out", tmp_path / "exported")
    assert maskloom.load(tmp_path / "exported").predict(["fünf zwei eins"]) == [{"text": "one two five"}]


def test_runs_are_repeated_resumed_and_go_on_with_both_vocabularies(transformer, data, tmp_path, run):
    short, english = tmp_path / "short", Tokenizer.load(data / "en").vocabulary
    train(data, short, data / "en", recipe=SIZE, steps=4, source_vocab=data / "de")
    assert "identical" in run("rerun", short, "--out", tmp_path / "again")
    run("export", short, "--stage", "seed-0", "--out", tmp_path / "last")
    assert maskloom.load(tmp_path / "last").predict(["fünf"]) == maskloom.load(short).predict(["fünf"])
    train(data, short, data / "en", recipe=SIZE, steps=6, resume=True)  # with the recorded source vocabulary
    train(data, tmp_path / "more", transformer[0], steps=2)
    for model in (short, tmp_path / "more", tmp_path / "last"):
        folder = model / "model" if (model / "model").exists() else model
        assert Tokenizer.load(folder).of_targets.vocabulary == english


@pytest.fixture(scope="module")
def bart(data, tmp_path_factory):
    """Return a run of a BART that has learned to restore English numbers."""
    out = tmp_path_factory.mktemp("bart") / "run"
    size = [part for key, value in SIZE["model.config"].items() for part in ("--set", f"model.config.{key}={value}")]
    invoke(
        *("pretrain", "--corpus", data / "corpus", "--out", out, "--steps", 20, "--size", "tiny", *size, "--set"),
        *("objective=denoising", "--set", "model.architecture=bart", "--set", "data.max_length=24", "--set"),
        *("training.num_threads=1", "--learning-rate", "3e-3", "--batch-size", 16, "--set"),
        *("training.max_evaluation_instances=16", "--set"),
        "model.config.max_position_embeddings=64",
    )
    return out


@pytest.mark.slow
def test_a_bart_learns_to_translate_in_two_steps_of_which_the_first_changes_what_the_paper_names(
    bart, data, tmp_path, run
):
    first, second = tmp_path / "first", tmp_path / "second"
    layers = {"seq2seq.source_layers": 1}
    train(data, first, bart, epochs=3, source_vocab=data / "de", recipe={**layers, "seq2seq.source_first": True})
    before, after = weights(bart), weights(first)
    new = {name for name in after if name not in before}
    assert new == {name for name in after if name.startswith("model.source.")}
    assert {name.split(".")[3] for name in new if ".layers." in name} == {"0"}
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        *("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
        *(f"model.encoder.layers.0.self_attn.{part}_proj.weight" for part in "qkv"),
    }
    fresh = train(data, tmp_path / "start", bart, steps=1, learning_rate=1e-9, source_vocab=data / "de", recipe=layers)
    assert fresh["best"]["scores"]["exact_match"] == 0
    assert all(not torch.equal(weights(tmp_path / "start")[name], after[name]) for name in new)

    result = train(data, second, first, epochs=14, recipe={"training.evaluate_every": 133})
    assert result["best"]["scores"]["exact_match"] > 90
    last = weights(second)
    alike = {name for name in last if torch.equal(last[name], after[name])}
    assert alike == {"final_logits_bias"}
    config = json.loads((second / "model" / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["source_layers"]) == ("maskloom_bart_sources", 1)
    assert config["source_vocab_size"] == len(Tokenizer.load(data / "de").vocabulary)
    assert maskloom.load(second).predict(["fünf zwei eins"]) == [{"text": "one two five"}]
    scores = json.loads(run("evaluate", "--model", second, "--data", data / "dev.de", "--json").splitlines()[0])
    assert scores["loss"] == pytest.approx(result["best"]["scores"]["loss"], rel=1e-6)


def test_sources_of_a_bart_pass_both_encoders(bart, data, tmp_path):
    train(data, tmp_path / "run", bart, steps=1, source_vocab=data / "de", recipe={"seq2seq.source_layers": 2})
    model, _ = load_model(tmp_path / "run" / "model")
    ids = torch.tensor([[1, 7, 8, 9, 2]])
    with torch.inference_mode():
        once = model.encoder(ids).last_hidden_state
        model.encoder.source.layers[1].feed_forward.down.bias += 1.0 + torch.arange(32)
        moved = model.encoder(ids).last_hidden_state
        model.encoder.embeddings.word.weight.zero_()  # used only by the decoder
        assert torch.equal(model.encoder(ids).last_hidden_state, moved)
    assert (once - moved).abs().max() > 1e-3
    assert model.heads["decoder"].decoder is model.encoder.embeddings.word.weight


def test_the_documented_call_trains_a_new_model(data, tmp_path, monkeypatch, capsys):
    for name in ("train", "dev"):
        for language in ("de", "en"):
            lines = (data / f"{name}.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
            (tmp_path / f"{name}.{language}").write_text(
                "".join(lines[: 8 if name == "train" else 1]), encoding="utf-8"
            )
    shutil.copytree(data / "de", tmp_path / "german")
    shutil.copytree(data / "en", tmp_path / "english")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "API.md").read_text(encoding="utf-8")
    exec(page.partition("```python\n")[2].partition("```")[0], {"maskloom": maskloom})
    assert "'text': " in capsys.readouterr().out
    assert Tokenizer.load("runs/translation/model").vocabulary == Tokenizer.load(data / "de").vocabulary
    assert Tokenizer.load("runs/translation/model").of_targets.vocabulary == Tokenizer.load(data / "en").vocabulary


def test_wrong_input_is_refused(transformer, bart, data, tmp_path, run):
    out, _ = transformer
    with pytest.raises(
        ConfigError, match=rf"only for seq2seq with a new encoder: {re.escape(str(out))}\S* already has one"
    ):
        train(data, tmp_path / "run", out, steps=1, source_vocab=data / "de")
    with pytest.raises(ConfigError, match=r"seq2seq.source_first needs a BART with an encoder of sources"):
        train(data, tmp_path / "run", bart, steps=1, recipe={"seq2seq.source_first": True})
    with pytest.raises(ConfigError, match=r"seq2seq.source_layers needs a new encoder of sources"):
        train(data, tmp_path / "run", bart, steps=1, recipe={"seq2seq.source_layers": 3})
    layers = {**SIZE, "seq2seq.source_layers": 2}
    with pytest.raises(ConfigError, match=r"seq2seq.source_layers = 2: only a BART \(model"):
        train(data, tmp_path / "run", data / "en", steps=1, source_vocab=data / "de", recipe=layers)
    with pytest.raises(ConfigError, match="task = 'single'"):
        maskloom.finetune(
            bart, data / "train.de", data / "dev.de", tmp_path / "run", source_vocab=data / "de", progress=False
        )
    with pytest.raises(ConfigError, match="is only for seq2seq"):
        maskloom.finetune(out, data / "labels.tsv", data / "labels.tsv", tmp_path / "run", task="single")
    assert not (tmp_path / "run").exists()
    init = ("pretrain", "--corpus", data / "corpus", "--init", out, "--out", tmp_path / "run", "--steps", 1)
    assert "its sources have a separate vocabulary" in run(*init, "--set", "objective=denoising", code=3)
    extend = ("vocab", "extend", data / "text.txt", "--model", out, "--add", 1, "--out", tmp_path / "run")
    assert "vocab extend is for models with one vocabulary" in run(*extend, code=3)
    shutil.copytree(out / "model", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "targets")
    with pytest.raises(DataError, match="no folder targets"):
        maskloom.load(tmp_path / "half")
    shutil.copytree(bart / "model", tmp_path / "mixed")
    shutil.copytree(data / "en", tmp_path / "mixed" / "targets")
    with pytest.raises(DataError, match=r"no source_vocab_size in config\.json"):
        maskloom.load(tmp_path / "mixed")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_search_tries_settings_with_both_vocabularies(bart, data, tmp_path, run):
    files = ("--task", "seq2seq", "--train", data / "train.de", "--dev", data / "dev.de", "--source-vocab", data / "de")
    short = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    shared = (*files, *short, "--steps", 1, "--max-length", 16, "--grid", "training.learning_rate=1e-3,2e-3")
    sizes = ("--size", "tiny", "--set", "model.config.hidden_size=32", "--set", "model.config.num_attention_heads=4")
    for name, start in (("new", ("--vocab", data / "en", *sizes)), ("bart", ("--model", bart))):
        layers = () if name == "new" else ("--set", "seq2seq.source_layers=1")
        run("search", *start, *shared, *layers, "--out", tmp_path / name)
        found = json.loads((tmp_path / name / "results.json").read_text(encoding="utf-8"))
        assert (found["num_trials"], found["num_failed"]) == (2, 0)
        assert Tokenizer.load(tmp_path / name / "model").vocabulary == Tokenizer.load(data / "de").vocabulary
        words = shlex.split(found["trials"][0]["command"])
        run(*words[1:])
        again = tmp_path / name / "reruns" / found["trials"][0]["name"] / "model"
        one, other = (load_file(folder / "model.safetensors") for folder in (tmp_path / name / "model", again))
        assert all(torch.equal(one[key], other[key]) for key in one)
        assert "--source-vocab" in words
        assert "identical" in run("rerun", tmp_path / name, "--out", tmp_path / f"{name} again")
    resumed = [
        part for part in (*start, *shared, *layers, "--out", tmp_path / name, "--resume") if part != "--source-vocab"
    ]
    resumed.remove(data / "de")
    run("search", *resumed)


@pytest.mark.parametrize("of_targets", [False, True])
@pytest.mark.parametrize("change", [lambda words: words[:-1], lambda words: [*words[:-2], words[-1], words[-2]]])
def test_a_vocabulary_that_was_changed_by_hand_is_refused(transformer, tmp_path, of_targets, change):
    model = tmp_path / "model"
    shutil.copytree(transformer[0] / "model", model)
    folder = model / "targets" if of_targets else model
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    (folder / "vocab.txt").write_text("\n".join(change(words)) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"model: the source and target vocabularies are not the ones in maskloom"):
        maskloom.load(model)


def test_a_source_has_both_its_sizes_or_none():
    assert BartConfig().with_sources(100).num_source_layers == 6
    with pytest.raises(ValueError, match="must be set together"):
        BartConfig(source_vocab_size=100)
