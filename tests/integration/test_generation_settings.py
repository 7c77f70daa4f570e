"""Options of `maskloom generate` that override the settings a decoder was fine-tuned with."""

import json
import re

import pytest
from tests.unit.inference.generators import generator_folder

import maskloom

OWN = {"max_target_length": 128, "beam": 3, "min_tokens": 24, "no_repeat_ngram": 1, "length_penalty": 0.6}
TEXT = " ".join(["one two three four five six seven eight"] * 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Write a Transformer with a vocabulary of eight words and five special tokens."""
    return generator_folder(tmp_path_factory.mktemp("model"), "transformer")


def store(model, **settings):
    """Store fine-tuning settings next to the model."""
    stored = {"kind": "seq2seq", "settings": {**OWN, **settings}}
    (model / "maskloom.json").write_text(json.dumps(stored), encoding="utf-8")


@pytest.fixture
def generated(model, run):
    def by(*flags, text=TEXT):
        return json.loads(run("generate", "--model", model, "--prompt", text, *flags, "--json").splitlines()[0])

    return by


def test_a_temperature_of_one_draws_in_place_of_the_search(model, generated):
    store(model, no_repeat_ngram=0)
    searched = generated()
    one, other, again = (generated("--temperature", 1, "--seed", seed) for seed in (1, 2, 1))
    assert one == again
    assert len({text["text"] for text in (searched, one, other)}) == 3
    predictor = maskloom.load(model)
    assert predictor.generate([TEXT], temperature=1.0, seed=2)[0]["text"] == other["text"]
    assert predictor.generate([TEXT])[0]["text"] == searched["text"]
    assert generated("--top-p", 1, "--seed", 2)["text"] == other["text"]


def test_usual_values_change_those_of_the_model(model, generated):
    store(model, no_repeat_ngram=0, min_tokens=30)
    assert generated()["num_tokens"] >= 30
    assert generated("--min-tokens", 27, "--max-tokens", 27)["num_tokens"] == 27
    assert generated("--min-tokens", 0)["num_tokens"] < 30
    store(model, min_tokens=0)
    assert generated()["num_tokens"] <= 13  # no token occurs twice
    assert generated("--no-repeat-ngram", 0, "--min-tokens", 20)["num_tokens"] >= 20
    store(model, no_repeat_ngram=0, min_tokens=10)
    (text,) = maskloom.load(model).generate([TEXT], min_tokens=0, max_tokens=4)
    assert text["num_tokens"] <= 4


def test_a_file_and_a_page_follow_the_same_settings(model, run, tmp_path):
    store(model, no_repeat_ngram=0)
    (tmp_path / "in.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    found = []
    for seed in (1, 2):
        files = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl", "--report", tmp_path / "page.html")
        run("generate", "--model", model, *files, "--temperature", 1, "--seed", seed, "--max-tokens", 30)
        found.append(json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["text"])
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        facts = re.findall(r"<td[^>]*>([^<]*)</td>\s*<td[^>]*>([^<]*)</td>", page)
        assert {("temperature", "1.0"), ("top p", "1.0"), ("seed", str(seed))} <= {*facts}
    assert found[0] != found[1]


def test_the_next_best_are_told_with_the_scores_that_rank_them(model, run, tmp_path):
    store(model, no_repeat_ngram=0, min_tokens=0)
    (tmp_path / "in.txt").write_text(f"{TEXT}\n", encoding="utf-8")
    files = ("--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl")
    how = ("--beam", 6, "--num-best", 6, "--max-tokens", 30)
    orders = set()
    for penalty in (0.0, 2.0):
        run("generate", "--model", model, *files, *how, "--length-penalty", penalty)
        best = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
        texts = [best, *best["others"]]
        scores = [text["score"] for text in texts]
        assert len(texts) == 6
        assert scores == sorted(scores, reverse=True)
        for text in texts:
            length = text["num_tokens"] + (text["finish"] == "end")
            assert text["score"] == pytest.approx(text["log_probability"] / ((5 + length) / 6) ** penalty)
        orders.add(tuple(text["text"] for text in texts))
    assert len(orders) == 2
    said = run("generate", "--model", model, "--prompt", TEXT, *how, "--length-penalty", 2)
    assert said.splitlines()[:6] == [f"{text['score']:.3f}  {text['text']}" for text in texts]
    assert "score" not in maskloom.load(model).generate([TEXT], temperature=0.0)[0]


def test_settings_that_do_not_go_together_are_refused(model, run):
    store(model)
    said = run("generate", "--model", model, "--prompt", TEXT, "--max-tokens", 20, code=3)
    assert "min_tokens 24: it may not exceed max_tokens, 20" in said
    said = run("generate", "--model", model, "--prompt", TEXT, "--min-tokens", 80, code=3)
    assert "source 1: min_tokens 80: a target has at most 79 tokens, the most that its decoder reads" in said
    said = run("generate", "--model", model, "--prompt", TEXT, "--temperature", 1, "--num-best", 2, code=3)
    assert "num_best 2 exceeds the beam, 1; give a wider beam" in said
    said = run("generate", "--model", model, "--prompt", TEXT, "--seed", 2, code=3)
    assert "beam = 3 with seed: beam search does not sample; to sample, give a temperature above 0 and no beam" in said
    with pytest.raises(TypeError, match="temprature"):
        maskloom.load(model).generate([TEXT], temprature=1.0)
