"""GPT from raw text to continuations and fine-tuned tasks, on the command line."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer, OpenAIGPTForSequenceClassification, OpenAIGPTLMHeadModel
from typer.testing import CliRunner

import maskloom
from maskloom.checkpoints.huggingface import save_model
from maskloom.cli import app
from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.data.corpus.opening import Corpus
from maskloom.generation.search import Generation
from maskloom.models.assembled import build_model
from maskloom.models.gpt_config import GptConfig
from maskloom.runs.recipes import with_epochs
from maskloom.text.byte_pair_tokenizer import BytePairTokenizer
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import Vocabulary

MODEL = [
    *("--set", "model.config.hidden_size=32", "--set", "model.config.num_attention_heads=2"),
    *("--set", "model.config.num_hidden_layers=2", "--set", "model.config.initializer_range=0.1"),
]
TRAINING = [
    *("--set", "data.max_length=24", "--set", "data.held_out_fraction=0.2", "--set", "training.batch_size=8"),
    *("--set", "training.num_threads=1", "--set", "training.save_every=5", "--set", "training.evaluate_every=10"),
]
COLORS = ["red", "green", "blue", "black", "white"]


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    texts = [f"the {a} cat sees the {b} dog. then the {b} dog sees the {a} cat." for a in COLORS for b in COLORS]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    invoke("vocab", "train", folder / "text.txt", "--out", folder / "vocab", "--model", "bpe", "--size", 60)
    invoke("corpus", "build", folder / "text.txt", "--vocab", folder / "vocab", "--out", folder / "corpus")
    return folder / "corpus"


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "gpt"
    steps = ("--steps", 60, "--learning-rate", "5e-3")
    invoke("pretrain", "--corpus", corpus, "--recipe", "gpt-mini", *MODEL, *TRAINING, *steps, "--out", out)
    return out


def test_it_learns_and_says_how_well(run):
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["lm_loss"] < metrics["unigram_cross_entropy"] - 0.5
    assert 0 < metrics["lm_bits_per_character"] < metrics["lm_loss"] / 0.693
    assert "nsp_loss" not in metrics


def test_epochs_are_of_the_running_text(corpus):
    recipe = PretrainRecipe.model_validate(
        {
            "objective": "causal_lm",
            "data": {"max_length": 24, "next_sentence": False, "held_out_fraction": 0.0},
            "training": {"batch_size": 1},
        }
    )
    opened = Corpus.open(corpus)
    num_tokens = opened.num_tokens + opened.num_documents  # with the end token after each text
    assert with_epochs(recipe, 2.0, None, corpus).training.steps == 2 * ((num_tokens - 1) // 24)


def test_a_resumed_run_has_the_weights_of_one_left_alone(run, corpus, tmp_path):
    again = tmp_path / "gpt"
    shutil.copytree(run, again)
    shutil.rmtree(again / "model")
    (again / "metrics.json").unlink()
    newest = max((again / "checkpoints" / "phase-1").iterdir())
    shutil.rmtree(newest)
    recipe = again / "recipe.toml"
    output = invoke("pretrain", "--corpus", corpus, "--recipe", recipe, "--out", again, "--resume")
    assert "continuing at 55 of 60" in output
    first, second = (load_file(folder / "model" / "model.safetensors") for folder in (run, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


@torch.no_grad()
def ids_of_both(folder):
    """Return the ids of a text by transformers and by the tokenizer here, after checking that the logits are equal."""
    peer, ours, text = OpenAIGPTLMHeadModel.from_pretrained(folder), maskloom.load(folder), "the red cat sees."
    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    hidden = ours.model.encoder(torch.tensor([ids])).last_hidden_state
    assert (ours.model.heads["lm"](hidden) - peer.eval()(torch.tensor([ids])).logits).abs().max() < 1e-5
    return ids, ours.tokenizer.token_ids(text)


@pytest.mark.parity
@pytest.mark.parametrize("step", [None, 55, 60])
def test_transformers_opens_the_model_of_a_run_and_what_is_exported(run, tmp_path, step):
    folder = run / "model"
    if step is not None:
        folder = tmp_path / "exported"
        invoke("export", run, "--step", step, "--out", folder)
    theirs, ours = ids_of_both(folder)
    assert theirs == ours


@pytest.mark.parity
def test_on_word_pieces_it_reads_sentences_and_never_predicts_their_marks(corpus, tmp_path):
    text = corpus.parent / "text.txt"
    invoke("vocab", "train", text, "--out", tmp_path / "vocab", "--size", 60)
    invoke("corpus", "build", text, "--vocab", tmp_path / "vocab", "--out", tmp_path / "corpus")
    how = (*MODEL, *TRAINING, "--steps", 40, "--learning-rate", "5e-3")
    out = tmp_path / "gpt"
    invoke("pretrain", "--corpus", tmp_path / "corpus", "--recipe", "gpt-mini", *how, "--out", out)
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["lm_loss"] < metrics["unigram_cross_entropy"] - 0.5
    prompt = ("--prompt", "the red cat sees", "--max-tokens", 40, "--json")
    found = json.loads(invoke("generate", "--model", out, *prompt).splitlines()[-1])
    assert (found["num_tokens"], found["finish"]) == (40, "length")
    assert "[" not in found["text"]
    theirs, ours = ids_of_both(out / "model")
    assert theirs == [2, *ours, 3]  # [CLS] and [SEP]


def test_a_prompt_is_continued_by_what_it_has_read(run):
    output = invoke(
        "generate", "--model", run / "model", "--prompt", "the red cat sees the", "--max-tokens", 8, "--beam", 3
    )
    assert any(color in output for color in COLORS)
    how = ("--prompt", "then the", "--temperature", 0, "--max-tokens", 3, "--json")
    found = json.loads(invoke("generate", "--model", run, *how).splitlines()[-1])
    assert found["prompt"] == "then the"
    assert found["num_tokens"] == 3
    assert found["finish"] == "length"


def test_a_file_is_continued_in_its_order_whatever_the_batches(run, tmp_path):
    prompts = ["the red cat", "then", "the black dog sees the", "the blue"]
    (tmp_path / "p.txt").write_text("\n".join(prompts) + "\n")
    rows = []
    for size in (1, 4):
        out = tmp_path / f"{size}.jsonl"
        how = ("--seed", 3, "--max-tokens", 12, "--batch-size", size)
        invoke("generate", "--model", run, "--input", tmp_path / "p.txt", "--output", out, *how)
        rows.append([json.loads(line) for line in out.read_text().splitlines()])
    assert [row["prompt"] for row in rows[0]] == prompts
    assert [row["text"] for row in rows[0]] == [row["text"] for row in rows[1]]
    in_python = maskloom.load(run).generate(prompts, Generation(max_tokens=12, seed=3))
    assert [row["text"] for row in in_python] == [row["text"] for row in rows[0]]
    assert any(row["finish"] == "end" for row in rows[0]) or all(row["num_tokens"] == 12 for row in rows[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", ""], "'' has no tokens; a prompt needs at least one"),
        (["--prompt", "the red cat " * 400], "tokens, but the model reads 512"),
        (["--prompt", "the", "--top-p", "2"], "top_p 2.0: expected a number above 0 and at most 1"),
        (["--prompt", "the", "--top-p", "0"], "top_p 0.0: expected a number above 0 and at most 1"),
        (["--prompt", "the", "--temperature", "-1"], "temperature -1.0: expected a number from 0 to 1e+06"),
        (["--prompt", "the", "--beam", "2", "--top-k", "3"], "beam = 2 with top_k: beam search does not sample"),
        (["--prompt", "the", "--beam", "2", "--seed", "3"], "beam = 2 with seed: beam search does not sample"),
        (["--prompt", "the", "--beam", "2", "--seed", "0"], "beam = 2 with seed: beam search does not sample"),
        (["--prompt", "the", "--temperature", "0", "--seed", "0"], "temperature = 0 with seed: the most likely"),
        (["--prompt", "the", "--temperature", "0", "--top-p", "0.5"], "temperature = 0 with top_p: the most likely"),
        (["--prompt", "the", "--output", "x.jsonl"], "--input FILE and --output FILE go together"),
        (["--prompt", "the", "--text-column", "y"], "--text-column: it is for --input FILE, not for --prompt TEXT"),
        (["--prompt", "the", "--on-bad-rows", "error"], "--on-bad-rows: it is for --input FILE, not for --prompt TEXT"),
        ([], "pass either --prompt TEXT or --input FILE"),
    ],
)
def test_wrong_calls_are_said(run, arguments, message):
    result = CliRunner().invoke(app, ["generate", "--model", str(run / "model"), *arguments])
    assert result.exit_code != 0
    assert message in f"{result.output} {result.exception}"


def test_an_empty_line_of_a_file_is_named(run, tmp_path):
    (tmp_path / "p.txt").write_text("the\n\nred\n")
    arguments = [
        "generate",
        "--model",
        str(run),
        "--input",
        str(tmp_path / "p.txt"),
        "--output",
        str(tmp_path / "o.jsonl"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert "p.txt: line 2: empty prompt or source" in f"{result.output} {result.exception}"
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--set", "data.next_sentence=true"], "data.next_sentence = true"),
        (["--set", "objective=masked_lm", "--set", "data.next_sentence=false"], "the model is left-to-right"),
        (["--set", "data.short_seq_prob=0.3"], "data.short_seq_prob = 0.3: "),
        (["--set", "model.config.hidden_act=tanh"], "hidden_act 'tanh': without pre_norm a GPT has one of gelu_new"),
    ],
)
def test_what_a_gpt_cannot_do_is_refused_before_any_work(corpus, tmp_path, changes, message):
    arguments = ["pretrain", "--corpus", str(corpus), "--recipe", "gpt-mini", "--out", str(tmp_path / "run"), *changes]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert message in f"{result.output} {result.exception}"
    assert not (tmp_path / "run").exists()


def sentences(folder):
    rows = [(f"the {color} {animal} runs", animal) for color in COLORS for animal in ("cat", "dog")]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))


def pairs(folder):
    rows = [(f"the {a} cat", f"the {b} cat", float(a == b)) for a in COLORS for b in COLORS]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("text,pair,label\n" + "".join(f"{a},{b},{label}\n" for a, b, label in rows))


def choices(folder):
    rows = [
        {
            "context": f"the {a} cat sees",
            "choices": [f"a {a} dog", f"a {b} dog"][:: 1 if a < b else -1],
            "label": int(a > b),
        }
        for a in COLORS
        for b in COLORS
        if a != b
    ]
    for name in ("train", "dev"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def answers(folder):
    paragraphs = []
    for a in COLORS:
        for b in COLORS:
            context = f"the {a} cat sees the {b} dog."
            questions = [(animal, color) for animal, color in (("cat", a), ("dog", b), ("bird", None)) if a != b]
            qas = [
                {
                    "id": f"{a}-{b}-{animal}",
                    "question": f"which {animal}?",
                    "answers": [{"text": color, "answer_start": context.index(f" {color} ") + 1}] if color else [],
                    "is_impossible": color is None,
                }
                for animal, color in questions
            ]
            paragraphs.append({"context": context, "qas": qas})
    for name in ("train", "dev"):
        content = {"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{name}.json").write_text(json.dumps(content))


def tags(folder):
    tag = {"cat": "B-ANIMAL", "dog": "B-ANIMAL", **dict.fromkeys(COLORS, "B-COLOR")}
    texts = [f"the {a} cat sees the {b} dog .".split() for a in COLORS for b in COLORS]
    content = "\n\n".join("\n".join(f"{word} {tag.get(word, 'O')}" for word in words) for words in texts)
    for name in ("train", "dev"):
        (folder / f"{name}.conll").write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("task", "write", "more"),
    [
        ("single", sentences, ["--set", "auxiliary_lm=0.5"]),
        ("regression", pairs, ["--set", "pair.both_orders=true"]),
        ("regression", pairs, ["--set", "pair.both_orders=true", "--set", "auxiliary_lm=0.5"]),
        ("pair", pairs, ["--set", "pair.both_orders=true", "--set", "auxiliary_lm=0.5"]),
        ("choice", choices, ["--set", "auxiliary_lm=0.5"]),
    ],
)
def test_it_is_fine_tuned_with_a_language_model_beside_the_task(run, tmp_path, task, write, more):
    write(tmp_path)
    suffix = ".jsonl" if task == "choice" else ".csv"
    files = ("--train", tmp_path / f"train{suffix}", "--dev", tmp_path / f"dev{suffix}")
    how = ("--epochs", 2, "--batch-size", 4, "--max-length", 24, "--learning-rate", "1e-3")
    out = tmp_path / "run"
    invoke("finetune", "--model", run / "model", "--task", task, *files, *how, *more, "--out", out)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    losses = next(event["losses"] for event in events if event["event"] == "step")
    assert ("lm" in losses) == ("auxiliary_lm=0.5" in more)
    best = json.loads((out / "metrics.json").read_text())["best"]["scores"]
    evaluated = json.loads(invoke("evaluate", "--model", out / "model", "--data", files[3], "--json").splitlines()[-1])
    assert evaluated["loss"] == pytest.approx(best["loss"], rel=1e-5)
    invoke("export", out, "--out", tmp_path / "exported")


@pytest.mark.parity
def test_transformers_opens_an_exported_classifier(run, tmp_path):
    sentences(tmp_path)
    files = ("--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv", "--epochs", 1, "--max-length", 24)
    invoke("finetune", "--model", run, *files, "--out", tmp_path / "run")
    invoke("export", tmp_path / "run", "--out", tmp_path / "exported")
    ours = maskloom.load(tmp_path / "exported")
    ids = torch.tensor([ours.tokenizer.encode("the red cat runs").ids])
    peer = OpenAIGPTForSequenceClassification.from_pretrained(tmp_path / "exported").eval()
    assert peer.config.id2label == dict(enumerate(ours.task.labels))
    with torch.no_grad():
        logits = ours.model.heads["classifier"](ours.model.encoder(ids).pooled)
        assert (logits - peer(ids).logits).abs().max() < 1e-5


def fine_tuned_on_tokens(run, folder, task, write, suffix, epochs):
    """Fine-tune on a token-level task, export, and return the scores and the exported model."""
    write(folder)
    files = ("--train", folder / f"train{suffix}", "--dev", folder / f"dev{suffix}")
    how = ("--epochs", epochs, "--batch-size", 8, "--max-length", 24, "--learning-rate", "4e-3")
    invoke("finetune", "--model", run / "model", "--task", task, *files, *how, "--out", folder / "run")
    best = json.loads((folder / "run" / "metrics.json").read_text())["best"]["scores"]
    evaluated = invoke("evaluate", "--model", folder / "run", "--data", files[3], "--json")
    assert json.loads(evaluated.splitlines()[-1])["loss"] == pytest.approx(best["loss"], rel=1e-5)
    invoke("export", folder / "run", "--out", folder / "exported")
    (named,) = json.loads((folder / "exported" / "config.json").read_text())["architectures"]
    assert named.startswith("MaskloomOpenAIGPTFor")
    assert not hasattr(transformers, named.removeprefix("Maskloom"))
    card = (folder / "exported" / "README.md").read_text(encoding="utf-8")
    assert "with transformers" not in card
    return best, maskloom.load(folder / "exported")


def test_answers_are_found_and_missed_where_there_are_none(run, tmp_path):
    """The last token stands for no answer, because the first sees neither question nor context."""
    scores, model = fine_tuned_on_tokens(run, tmp_path, "span", answers, ".json", epochs=10)
    assert scores["exact_match"] > 90
    context = "The RED  cat sees the blue dog."
    found = model.predict([(f"which {animal}?", context) for animal in ("cat", "dog", "bird")])
    assert [row["answer"] for row in found] == ["RED", "blue", ""]
    assert [context[row["start"] : row["end"]] for row in found[:2]] == ["RED", "blue"]


def test_words_are_tagged(run, tmp_path):
    scores, model = fine_tuned_on_tokens(run, tmp_path, "tagging", tags, ".conll", epochs=8)
    assert scores["f1"] > 0.9
    (found,) = model.predict([["the", "red", "cat", "sees", "the", "white", "dog", "."]])
    assert [entity["text"] for entity in found["entities"]] == ["red", "cat", "white", "dog"]


@pytest.mark.parametrize("task", ["span", "tagging"])
def test_a_language_model_beside_a_task_on_tokens_is_refused(task):
    with pytest.raises(ValueError, match=rf"auxiliary_lm = 0.5: task = '{task}' reads tokens"):
        FinetuneRecipe(task=task, auxiliary_lm=0.5)


def test_both_orders_make_a_pair_the_same_as_its_mirror_image(run, tmp_path):
    pairs(tmp_path)
    files = ("--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv", "--epochs", 1, "--max-length", 24)
    for name, more in (("both", ["--set", "pair.both_orders=true"]), ("one", [])):
        invoke("finetune", "--model", run, "--task", "regression", *files, *more, "--out", tmp_path / name)
        model = maskloom.load(tmp_path / name)
        scores = [
            model.predict([pair])[0]["score"] for pair in (("the red cat", "the dog"), ("the dog", "the red cat"))
        ]
        assert (abs(scores[0] - scores[1]) < 1e-5) == (name == "both")


def test_a_published_gpt_gets_the_marks_of_a_task(run, tmp_path):
    sentences(tmp_path)
    full = Tokenizer.load(run / "model")
    assert isinstance(full, BytePairTokenizer)
    old = full.vocabulary
    special = replace(old.special, begin=None, separator=None, classify=None)
    marks = set(old.special.tokens) - set(special.tokens)
    tokens = [token for token in old.tokens if token not in marks]
    bare = replace(full, vocabulary=Vocabulary(tokens, special, prefix=old.prefix, suffix=old.suffix))
    published, out = tmp_path / "published", tmp_path / "out"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = GptConfig(vocab_size=len(tokens), **sizes)
    save_model(build_model(config, ("lm",), seed=0), published)
    bare.save(published)
    files = ("--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv", "--epochs", 1, "--max-length", 24)
    invoke("finetune", "--model", published, *files, "--out", out)
    opened = Tokenizer.load(out / "model")
    assert opened.vocabulary.tokens == (*tokens, "<start>", "<delimiter>", "<extract>")
    assert opened.encode("the red cat").ids[-1] == len(tokens) + 2
    assert maskloom.load(out).model.config.vocab_size == len(tokens) + 3
    invoke("export", out, "--out", tmp_path / "exported")
