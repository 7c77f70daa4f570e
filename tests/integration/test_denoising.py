"""Denoising and span corruption, from raw text to a decoder that restores texts and to a fine-tuned task."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import maskloom
from maskloom.cli import app
from maskloom.config import PretrainRecipe
from maskloom.data.corpus.opening import Corpus
from maskloom.errors import ConfigError
from maskloom.generation.search import Generation
from maskloom.generation.sources import decode_sources
from maskloom.layers.sequence_layout import SequenceLayout
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.pretrain import pretrain
from maskloom.runs.pretraining_plan import pretraining_data

ANIMALS, VERBS = ["cat", "dog", "bird", "fish", "cow"], ["sees", "likes", "follows", "hears", "fears"]
MODEL = [
    *("--size", "tiny", "--set", "model.config.hidden_size=32", "--set", "model.config.num_attention_heads=2"),
    *("--set", "model.config.hidden_dropout_prob=0.0", "--set", "data.max_length=40"),
    *("--set", "training.batch_size=8", "--set", "training.num_threads=1", "--set", "data.held_out_fraction=0.1"),
]


def invoke(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a corpus that has sentinels and one that has none."""
    folder = tmp_path_factory.mktemp("denoising")
    documents = [
        f"the {a} {v} the {b}. then the {b} runs to the {a}. now the {a} is happy."
        for a in ANIMALS
        for b, v in zip(ANIMALS, VERBS, strict=True)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    (folder / "few.txt").write_text("\n\n".join(documents[::6]), encoding="utf-8")
    for name, sentinels in (("corpus", 12), ("plain", 0)):
        vocab = folder / f"{name}-vocab"
        size = ("--size", 70 + sentinels, "--sentinels", sentinels)
        invoke("vocab", "train", folder / "text.txt", "--out", vocab, *size)
        invoke("corpus", "build", folder / "text.txt", "--vocab", vocab, "--out", folder / name)
    invoke("corpus", "build", folder / "few.txt", "--vocab", folder / "corpus", "--out", folder / "few")
    return folder


def test_sentinels_are_the_last_pieces_and_text_never_holds_one(folder):
    vocabulary = Corpus.open(folder / "corpus").vocabulary
    assert vocabulary.tokens[-12:] == tuple(f"<extra_id_{number}>" for number in reversed(range(12)))
    assert vocabulary.sentinel_ids.tolist() == [*range(len(vocabulary) - 1, len(vocabulary) - 13, -1)]
    assert vocabulary.tokens[:-12] == Corpus.open(folder / "plain").vocabulary.tokens
    tokenizer = Corpus.open(folder / "corpus").tokenizer
    assert not {*tokenizer.token_ids("a <extra_id_0> b")} & {*vocabulary.sentinel_ids.tolist()}
    assert maskloom.text.tokenizer.Tokenizer.load(folder / "corpus-vocab").vocabulary.tokens == vocabulary.tokens
    said = json.loads(invoke("vocab", "inspect", folder / "corpus-vocab", "--json"))
    assert "extra_id" not in said["longest_token"]


@pytest.mark.parametrize(
    ("objective", "part"),
    [("denoising", "denoising"), pytest.param("span_corruption", "spans", marks=pytest.mark.slow)],
)
def test_a_run_resumes_and_its_model_is_fine_tuned(folder, tmp_path, objective, part):
    say = ("pretrain", "--corpus", folder / "corpus", *MODEL, "--set", f"objective={objective}", "--json")
    more = ("--learning-rate", "3e-3", "--set", "training.save_every=4", "--set", "training.evaluate_every=8")
    whole = json.loads(invoke(*say, *more, "--steps", 8, "--out", tmp_path / "whole").splitlines()[-1])
    assert {f"{part}_loss", f"{part}_accuracy", f"{part}_perplexity"} < {*whole}
    small = ("--set", "training.micro_batch_size=3")
    again = json.loads(invoke(*say, *more, *small, "--steps", 8, "--out", tmp_path / "micro").splitlines()[-1])
    assert again[f"{part}_loss"] == pytest.approx(whole[f"{part}_loss"], rel=1e-4)
    weights = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    last = tmp_path / "whole" / "checkpoints" / "phase-1" / "step-00000008"
    shutil.rmtree(last)
    (tmp_path / "whole" / "metrics.json").unlink()
    said = invoke(*say, *more, "--steps", 8, "--out", tmp_path / "whole", "--resume")
    assert "continuing at 4 of 8" in said
    assert (last / "manifest.json").exists()
    resumed = load_file(tmp_path / "whole" / "model" / "model.safetensors")
    assert {*weights} == {*resumed}
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)
    assert any(name.startswith("heads.decoder") for name in weights)

    for name in ("train", "dev"):
        rows = [{"source": f"the {a} runs", "target": a} for a in ANIMALS] * 2
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = ("--train", tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl", "--out", tmp_path / "tuned")
    tuning = ("--task", "seq2seq", "--steps", 2, "--set", "data.max_length=24", "--set", "seq2seq.max_target_length=8")
    invoke("finetune", "--model", tmp_path / "whole", *data, *tuning)
    assert isinstance(maskloom.load(tmp_path / "tuned").predict(["the cat runs"])[0]["text"], str)
    card = (tmp_path / "whole" / "model" / "README.md").read_text()
    assert f"trained with objective = '{objective}'" in card
    assert "text2text-generation" in card


NOISES = {
    "mask": {"mask_rate": 0.3},
    "delete": {"delete_rate": 0.3},
    "infill": {"infill_rate": 0.3},
    "permute": {"permute_sentences": 1.0},
    "rotate": {"rotate_rate": 1.0},
    "spans": None,
}


def restored(corpus, out, noise, **training):
    """Train a tiny model to restore documents; return its output and the targets."""
    objective = "denoising" if NOISES[noise] is not None else "span_corruption"
    quiet = {"permute_sentences": 0.0, "infill_rate": 0.0, "random_rate": 0.0}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "hidden_dropout_prob": 0.0}
    recipe = PretrainRecipe.model_validate(
        {
            "objective": objective,
            "denoising": {**quiet, **(NOISES[noise] or {})},
            "model": {"architecture": "bart", "size": "tiny", "config": sizes},
            "data": {"max_length": 40, "held_out_fraction": 0.0, "short_seq_prob": 0.0, "static_masks": True},
            "training": {"num_threads": 1, "save_every": 10_000, **training},
        }
    )
    pretrain(recipe, corpus=corpus, out=out)
    corpus, model = Corpus.open(corpus), maskloom.load(out).model
    data = pretraining_data(recipe).model_copy(update={"decoder_start": model.config.own_start})
    loader = PRETRAINING[objective].loader(corpus, None, data, batch_size=500, seed=0)
    (batch,) = loader.epoch_batches(0)
    layout = SequenceLayout.from_lengths(batch.lengths, "cpu")
    ids = torch.from_numpy(batch.token_ids)
    with torch.inference_mode():
        hidden = model.encoder.encode_packed(ids, torch.zeros_like(ids), layout).last_hidden_state
        *begin, end = batch.marks[0].tolist()
        found = decode_sources(model, hidden, layout, Generation(temperature=0.0), begin=begin, end=end)
    targets = np.split(batch.labels, np.cumsum(batch.target_lengths)[:-1])
    return [text.token_ids for text in found], [target[len(begin) - 1 : -1].tolist() for target in targets]


@pytest.mark.parametrize(
    "noise",
    [noise if noise == "infill" else pytest.param(noise, marks=pytest.mark.slow) for noise in NOISES],
)
def test_a_handful_of_documents_is_restored_exactly(folder, tmp_path, noise):
    """Greedy decoding of the training sources returns the documents."""
    found, targets = restored(folder / "few", tmp_path / "run", noise, steps=60, batch_size=5, learning_rate=5e-3)
    assert len(targets) == 5
    assert found == targets


@pytest.fixture(scope="module")
def hundred(folder):
    """Return a corpus of 100 documents, each of three sentences of random words."""
    draw = np.random.default_rng(0)
    words = [f"{first}{vowel}{last}" for first in "bdfgklmnprst" for vowel in "aeiou" for last in "nrst"]
    texts = [" ".join(draw.choice(words, draw.integers(4, 8))) + "." for _ in range(300)]
    documents = [" ".join(texts[number : number + 3]) for number in range(0, 300, 3)]
    (folder / "hundred.txt").write_text("\n\n".join(documents), encoding="utf-8")
    invoke("vocab", "train", folder / "hundred.txt", "--out", folder / "hundred-vocab", "--size", 300)
    invoke("corpus", "build", folder / "hundred.txt", "--vocab", folder / "hundred-vocab", "--out", folder / "hundred")
    return folder / "hundred"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [name for name in NOISES if NOISES[name]])
def test_a_hundred_documents_are_restored_exactly_from_each_noise(hundred, tmp_path, noise):
    found, targets = restored(hundred, tmp_path / "run", noise, steps=600, batch_size=25, learning_rate=3e-3)
    assert len(targets) == 100
    assert found == targets


@pytest.mark.parametrize(
    ("corpus", "settings", "said"),
    [
        (
            "plain",
            ["objective=span_corruption"],
            "data.max_length = 128 needs 6 sentinels, <extra_id_0> to <extra_id_5>",
        ),
        ("corpus", ["objective=span_corruption", "span_corruption.noise_density=0.5"], "needs 21 sentinels"),
        (
            "plain",
            ["objective=denoising", "model.architecture=bert"],
            "'denoising' trains a decoder, but a bert has none",
        ),
        (
            "plain",
            ["objective=denoising", "model.architecture=gpt"],
            "'denoising' trains a decoder, but a gpt has none",
        ),
        ("plain", ["objective=denoising", "denoising.mask_rate=1.5"], "denoising.mask_rate = 1.5"),
        ("plain", ["objective=denoising", "denoising.mask_rate=0.9"], "mask_rate + delete_rate + infill_rate = 1.2"),
        ("plain", ["objective=span_corruption", "span_corruption.noise_density=0"], "noise_density = 0"),
    ],
)
def test_wrong_input_is_refused_before_any_work(folder, tmp_path, corpus, settings, said):
    given = [part for setting in settings for part in ("--set", setting)]
    arguments = ("pretrain", "--corpus", folder / corpus, *given, "--out", tmp_path / "run")
    refused = CliRunner().invoke(app, [*map(str, arguments)]).exception
    assert isinstance(refused, ConfigError)
    assert said in str(refused)
    assert not (tmp_path / "run").exists()


def test_an_encoder_gets_a_new_decoder_and_that_is_told(folder, tmp_path):
    say = ("pretrain", "--corpus", folder / "corpus", *MODEL, "--steps", 2)
    one = ("--set", "model.architecture=transformer", "--set", "data.next_sentence=false")
    invoke(*say, *one, "--out", tmp_path / "encoder")
    start = ("--set", "objective=denoising", "--init", tmp_path / "encoder")
    output = invoke(*say[:3], "--steps", 2, "--set", "data.max_length=40", *start, "--out", tmp_path / "both")
    assert "random weights, missing from the initial model: " in output
    assert "model.architecture" not in output
    before, after = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("encoder", "both"))
    assert {name for name in before if name.startswith("encoder")} < {*after}


def test_a_plan_counts_the_decoder(folder):
    plans = []
    for objective in ("masked_lm", "denoising"):
        more = ("--set", f"objective={objective}", "--set", "data.next_sentence=false", "--set", "data.max_length=40")
        given = ("--set", "model.architecture=transformer", "--size", "tiny", "--seconds", 0.1, "--json")
        plans.append(json.loads(invoke("plan", "--corpus", folder / "plain", *more, *given).splitlines()[-1]))
    first, second = (plan["sizes"][0] for plan in plans)
    assert second["flops"] / second["steps"] > 2 * first["flops"] / first["steps"]
