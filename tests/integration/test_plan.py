"""`maskloom plan`: estimates compared with what the run then takes, and the best size for a time budget."""

import json
import math
import random
import shutil

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from maskloom.config import PretrainRecipe, load_recipe
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.loader import Account
from maskloom.errors import ConfigError
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs import plan as module
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.plan import CURVES, plan_lines, plan_pretraining
from maskloom.runs.pretrain import initial_model, pretrain
from maskloom.runs.pretraining_plan import config_for, phase_plans
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.events import read_events
from maskloom.training.faults import memory

WORDS = "the array list sorted in place of its values and keys returns a new copy".split()  # noqa: SIM905
SETTINGS = [
    *("data.max_length=24", "data.held_out_fraction=0.2", "training.batch_size=4", "training.num_threads=1"),
    "training.max_evaluation_instances=8",
]
CURVE = {
    "architecture": "bert",
    "objective": "masked_lm",
    "text": "some text",
    "recipe": "rows of 24",
    "sizes": {"tiny": [[1, 1, 1200.0], [100, 5e3, 4.0]], "mini": [[1, 10, 5.5], [2, 1e9, 5.0]]},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(0)
    documents = [" ".join(" ".join(draw.choices(WORDS, k=9)) + "." for _ in range(6)) for _ in range(30)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    train_vocabulary_from_files([folder / "text.txt"], VocabularySettings(60), out=folder / "v")
    build_corpus_from_files([folder / "text.txt"], vocab=folder / "v", out=folder / "c")
    return folder / "c"


def recipe(*changes: str) -> PretrainRecipe:
    return load_recipe(PretrainRecipe, None, [*SETTINGS, *changes])


def only(result):
    (row,) = result["sizes"]
    return row


def test_a_plan_says_what_the_run_then_does(corpus, tmp_path):
    chosen = recipe("model.size=tiny", "training.steps=6")
    row = only(plan_pretraining(chosen, corpus=corpus, seconds=0.02))
    pretrain(chosen, corpus=corpus, out=tmp_path / "run")
    account = next(event for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "data")
    assert row["steps"] == 6
    assert row["tokens"] == pytest.approx(6 * 4 * account["tokens_per_instance"])
    assert row["epochs"] == pytest.approx(6 * 4 / account["num_instances"])
    assert row["seconds"] == pytest.approx(row["tokens"] / row["tokens_per_second"])
    assert row["memory"] > 600 * 2**20 + 16 * row["num_parameters"]
    assert not (corpus.parent / "run").exists()


@pytest.mark.parametrize(
    ("more", "num_weights"),
    [
        ((), 2 * (4 * 128**2 + 2 * 128 * 512)),
        (("model.config.gated=true",), 2 * (4 * 128**2 + 3 * 128 * 512)),
        (("model.config.embedding_size=1024",), 2 * (4 * 128**2 + 2 * 128 * 512) + 128 * 1024),
    ],
)
def test_work_is_counted_by_weights_and_tokens(corpus, more, num_weights):
    chosen = recipe("model.size=tiny", "training.steps=1", "training.batch_size=1", "data.next_sentence=false", *more)
    once = only(plan_pretraining(chosen, corpus=corpus, seconds=0.02))
    # without vocabulary and attention, small at this length: 6 FLOPs per token and block weight
    assert once["flops"] == pytest.approx(6 * num_weights * once["tokens"], rel=0.12)
    assert once["flops"] > 6 * num_weights * once["tokens"]


def test_minutes_become_steps_shared_by_phases(corpus):
    phases = "phases=[{max_length=12, steps=30}, {max_length=24, steps=10}]"
    chosen = recipe(phases, "training.minutes=0.1", "model.size=tiny")  # steps take a small part of the minutes
    row = only(plan_pretraining(chosen, corpus=corpus, seconds=0.02))
    assert row["seconds"] == pytest.approx(6, rel=0.1)
    assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])


@pytest.mark.slow
def test_minutes_favour_the_size_whose_reference_run_came_lowest(corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "CURVES", tmp_path / "curves.json")
    (tmp_path / "curves.json").write_text(json.dumps(CURVE))
    found = {}
    for minutes in (0.001, 1):
        chosen = [recipe(f"training.minutes={minutes}", f"model.size={size}") for size in ("tiny", "mini", "small")]
        found[minutes] = plan_pretraining(*chosen, corpus=corpus, seconds=0.02)
    assert [result["favoured"] for result in found.values()] == ["mini", "tiny"]
    rows = found[1]["sizes"]
    assert (rows[0]["reference_loss"], rows[0]["is_beyond"]) == (4.0, True)
    assert 5.0 < rows[1]["reference_loss"] < 5.5  # interpolated, whatever the speed of this machine
    assert rows[2]["reference_loss"] is None
    said = "\n".join(plan_lines(found[1], "maskloom pretrain --corpus DIR --minutes 1"))
    assert "<4.00" in said
    assert "reference: held-out masked-LM loss in nats on some text, rows of 24" in said
    assert "tiny  4.00 at step 100, after 5,000 tokens" in said
    assert "best for 60 seconds: tiny; run: maskloom pretrain --corpus DIR --minutes 1 --size tiny --out RUN" in said
    a_day = recipe("training.minutes=1440", "model.size=tiny")
    day = plan_pretraining(a_day, corpus=corpus, seconds=0.02)  # on any machine
    said = "\n".join(plan_lines(day))
    assert "epochs, more than the paper's 40: more text would help more than more steps" in said
    assert said.count(f"{day['sizes'][0]['epochs']:,.0f}") == 2  # in the table too


@pytest.mark.parametrize("precision", ["fastest", "bf16", pytest.param("fp16", marks=pytest.mark.slow)])
def test_steps_are_timed_in_the_precision_of_the_recipe(corpus, precision):
    row = only(
        plan_pretraining(recipe("model.size=tiny", f"training.precision={precision}"), corpus=corpus, seconds=0.02)
    )
    assert row["tokens_per_second"] > 0


def test_steps_are_timed_with_the_threads_of_the_recipe(corpus, monkeypatch):
    asked = []
    monkeypatch.setattr(module.torch, "set_num_threads", asked.append)
    plan_pretraining(recipe("model.size=tiny", "training.num_threads=2"), corpus=corpus, seconds=0.02)
    assert asked == [2]


def test_steps_are_timed_by_the_loop_of_the_device(corpus, monkeypatch):
    told, plain = [], module.train_steps

    def train_steps(*given, ranks, **more):
        told.append(ranks.device)
        return plain(*given, ranks=ranks, **more)

    monkeypatch.setattr(module, "train_steps", train_steps)
    only(plan_pretraining(recipe("model.size=tiny"), corpus=corpus, seconds=0.02))
    assert {*told} == {module.chosen_device()}


def test_a_left_to_right_run_is_not_like_the_reference(corpus):
    row = only(
        plan_pretraining(
            recipe("model.size=tiny", "objective=causal_lm", "data.next_sentence=false"), corpus=corpus, seconds=0.02
        )
    )
    assert row["reference_loss"] is None


@pytest.mark.parametrize("architecture", ["transformer", "bart"])
def test_a_decoder_is_planned_as_it_is_trained(corpus, architecture):
    changes = ("objective=denoising", f"model.architecture={architecture}", "model.size=tiny", "training.steps=2")
    result = plan_pretraining(recipe(*changes), corpus=corpus, seconds=0.02)
    assert (only(result)["reference_loss"], result["milestones"], result["reference"]) == (None, {}, {})
    assert not any("reference:" in line for line in plan_lines(result))
    (plan,) = phase_plans(recipe(*changes))
    opened = Corpus.open(corpus)
    config = config_for(recipe(*changes), opened.tokenizer)
    train, _ = split_documents(opened, 0.2, seed=recipe().seed)
    loader = PRETRAINING["denoising"].loader(opened, train, plan.data_for(config), batch_size=4, seed=0)
    account = loader.account()
    # BART puts its own start token before targets, and predicts both special tokens of a text instead of one
    predicted = account.tokens_per_instance - (1 if architecture == "transformer" else 0)
    assert account.predictions_per_instance == pytest.approx(predicted)
    flops = 2 * 4 * module._flops(config, account, has_decoder=True)
    assert only(result)["flops"] == pytest.approx(flops)


@pytest.mark.parametrize("architecture", ["lstm", "lstm, model.config.decoder_attention=none", "gru", "transformer"])
def test_the_work_of_a_decoder_is_what_torch_counts(corpus, architecture):
    changes = f"objective=denoising, model.size=tiny, training.steps=2, model.architecture={architecture}".split(", ")
    chosen = recipe(*changes, "model.config.num_hidden_layers=3")
    (plan,), opened = phase_plans(chosen), Corpus.open(corpus)
    model, _ = initial_model(chosen, opened, None)
    row, (train, _) = PRETRAINING["denoising"], split_documents(opened, 0.2, seed=0)
    loader = row.loader(opened, train, plan.data_for(model.config), batch_size=4, seed=0)
    batch = loader.next_batch({})[0]
    in_place = {torch.ops.aten.baddbmm_: lambda _, left, right, **__: 2 * math.prod(left) * right[2]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter, torch.no_grad():
        row.objective(row.part, plan.data).loss_sums(model, batch)
    account = Account(0, batch.lengths.mean(), len(batch.labels) / len(batch.lengths), 0.0)
    counted = 3 * counter.get_total_flops() / len(batch.lengths)
    assert module._flops(model.config, account, has_decoder=True) == pytest.approx(counted, rel=0.02)


def test_a_size_beyond_memory_is_left_out_and_said(corpus, monkeypatch):
    monkeypatch.setattr(module, "available_memory", lambda: 10_000_000)
    recipes = [recipe("training.steps=1", f"model.size={size}") for size in ("tiny", "base")]
    result = plan_pretraining(*recipes, corpus=corpus, seconds=0.02)
    assert ([row["size"] for row in result["sizes"]], result["too_large"]) == (["tiny"], ["base"])
    lines = plan_lines(result)
    assert "base: its weights, gradients and moments take more memory than is free" in lines
    told = "tiny: needs more memory than is free; a training.micro_batch_size below the batch size needs less"
    assert told in lines
    monkeypatch.setattr(module, "available_memory", lambda: None)
    assert told not in plan_lines(plan_pretraining(recipe("model.size=tiny"), corpus=corpus, seconds=0.02))


def test_a_batch_beyond_memory_is_refused_before_anything_is_written(corpus, tmp_path, monkeypatch):
    """Regression: reading and computing it filled the memory, until the system ended the process."""
    free = [4 << 30]
    monkeypatch.setattr(memory, "available_memory", lambda: free[0])

    def start(*changes, **how):
        pretrain(recipe("model.size=tiny", "training.steps=1", *changes), corpus=corpus, out=tmp_path / "run", **how)

    large = (
        r"phase-1: a batch of 1,000,000 sequences, about 2\d,\d{3},\d{3} tokens, takes about [\d,]+\.\d GiB of memory"
    )
    with pytest.raises(ConfigError, match=rf"{large}, but 4\.0 are available; set training\.micro_batch_size \("):
        start("training.batch_size=1000000")
    free[0] = 1 << 30
    with pytest.raises(ConfigError, match=rf"{large}, but 1\.0 are available; set a smaller batch size"):
        start("training.batch_size=1000000", "training.micro_batch_size=8")
    free[0] = 4_000_000
    with pytest.raises(ConfigError, match=r"a batch of 40 sequences"):
        start("training.batch_size=40")
    assert not (tmp_path / "run").exists()
    start("training.batch_size=4")  # it looks too large, but is not
    shutil.rmtree(tmp_path / "run")
    start("training.batch_size=40", "training.micro_batch_size=8")
    free[0] = 1000
    start("training.batch_size=40", "training.micro_batch_size=8", resume=True)  # whose recipe may not change


def test_free_memory_is_that_of_the_device(monkeypatch):
    monkeypatch.setattr(module, "available_memory", lambda: 3)
    monkeypatch.setattr(module.torch.cuda, "mem_get_info", lambda device: (5, 9))
    assert [module.free_memory(module.torch.device(name)) for name in ("cpu", "cuda:0")] == [3, 5]


def test_the_command_prints_a_table_and_refuses_what_pretraining_refuses(run, corpus, tmp_path):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    text = run("plan", "--corpus", corpus, "--size", "tiny", "--steps", 5, "--seconds", 0.1, *settings)
    assert "tokens in 30 documents; device: cpu" in text
    assert "tiny" in text
    said = run("plan", "--corpus", corpus, "--size", "tiny", "--seconds", 0.1, "--json", *settings)
    result = json.loads(said.splitlines()[0])
    assert [row["size"] for row in result["sizes"]] == ["tiny"]
    said = run("plan", "--corpus", corpus, "--size", "tiny", "--epochs", 2, "--seconds", 0.1, "--json", *settings)
    assert json.loads(said.splitlines()[0])["sizes"][0]["epochs"] == pytest.approx(2, rel=0.1)
    assert "max_position_embeddings" in run("plan", "--corpus", corpus, "--size", "tiny", "--max-length", 600, code=3)
    assert "no such folder" in run("plan", "--corpus", tmp_path / "absent", code=3)
    text = tmp_path / "my.txt"
    text.write_text("a text", encoding="utf-8")
    assert f"{text}: no manifest.json, so it is not a corpus; `maskloom corpus build` makes one" in run(
        "plan", "--corpus", text, code=3
    )
    assert "training.minutes = 1 is also set" in run("plan", "--corpus", corpus, "--minutes", 1, "--steps", 5, code=3)


def test_the_command_for_the_favoured_size_keeps_the_recipe_and_what_was_set(run, corpus, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "CURVES", tmp_path / "curves.json")
    (tmp_path / "curves.json").write_text(json.dumps(CURVE))
    monkeypatch.setattr(module, "available_memory", lambda: 100_000_000)  # for tiny and mini only
    mine = tmp_path / "mine.toml"
    mine.write_text('kind = "pretrain"\n')
    given = ("--corpus", corpus, "--recipe", mine, "--minutes", 1, "--max-length", 24, "--device", "cpu")
    settings = [part for setting in SETTINGS[1:] for part in ("--set", setting)]
    said = run("plan", *given, "--seconds", 0.1, *settings)
    command = " ".join(map(str, ("maskloom pretrain", *given, *settings, "--size tiny --out RUN")))
    assert command in " ".join(said.split())


def test_the_shipped_curves_are_runs_whose_loss_falls():
    curves = json.loads(CURVES.read_text())
    assert curves["sizes"]
    for points in curves["sizes"].values():
        steps, tokens, losses = zip(*points, strict=True)
        assert list(steps) == sorted(set(steps))
        assert list(tokens) == sorted(set(tokens))
        assert losses[-1] == min(losses)
