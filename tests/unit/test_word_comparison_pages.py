"""The comparisons of word vectors: the sense rule, the separation of vectors, bands, rates, and the page."""

import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _benchmarks_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.parametrize(
    ("sentence", "sense"),
    [
        ("They walked along the bank of the river at night", "river"),
        ("The fort lies on the left bank of the Dnieper", "river"),
        ("She left her house and sat upon the bank until noon", None),
        ("He opened an account at the bank in Paris", "money"),
        ("The National Bank was founded there in 1871", "money"),
        ("The South Bank Theatre was built there in 1871", None),
        ("A loan of the bank paid for the house by the river", None),
        ("The river bank belongs to one of the loan societies", None),
        ("The bank was closed on Sunday and on Monday too", None),
        ("In the money trade of those early days stood the bank", None),
    ],
)
def test_the_rule_gives_a_sense_where_words_around_it_are_of_one_sense(sentence, sense):
    from word_senses import sense_of

    words = sentence.split()
    assert sense_of(words, [word.lower() for word in words].index("bank")) == sense


def test_sentences_count_once_and_lose_the_words_of_the_rule(tmp_path):
    from word_senses import draws_of, occurrences, without_rule

    path = tmp_path / "text.txt"
    near = "the western bank of the Nile, opposite"
    path.write_text(
        f"Too short, bank account. Here is {near} a town.\nThere is {near} a village.\n"
        "The bank and the bank of the river are two. A clerk of the Bank took all of it.\n",
        encoding="utf-8",
    )
    found = occurrences(path)
    assert [(sense, " ".join(words), words[place]) for sense, words, place in found] == [
        ("river", "here is the western bank of the nile opposite a town", "bank"),
        ("money", "a clerk of the bank took all of it", "bank"),
    ]
    words, place = without_rule(*found[0][1:])
    assert (" ".join(words), place) == ("here is the bank of the nile a town", 3)
    many = [(sense, [str(number)], 0) for number in range(7) for sense in ("money", "river")]
    draws = draws_of(many, 2, 3)
    assert [[one[0] for one in draw] for draw in draws] == [["river", "river", "money", "money"]] * 3
    assert len({(sense, *words) for draw in draws for sense, words, _ in draw}) == 12


def test_separation_leaves_the_occurrence_out_and_guesses_by_halves():
    from word_senses import separation

    labels = np.array([0, 0, 0, 1, 1, 1])
    apart = np.array([[1.0, 0.0]] * 3 + [[0.0, 2.0]] * 3)
    assert separation(apart, labels) == {"within": 1.0, "across": 0.0, "accuracy": 1.0}
    same = separation(np.ones((6, 2)), labels)
    assert same == pytest.approx({"within": 1.0, "across": 1.0, "accuracy": 0.5})
    mixed = np.array([[1.0, 0.0], [0.0, 1.0]] * 2)  # as part of its centroid, each would be equally near to both
    assert separation(mixed, np.array([0, 0, 1, 1]))["accuracy"] == 0.0


def test_bands_hold_pairs_by_the_count_of_the_rarer_word(tmp_path):
    from word_comparisons import write_bands

    (tmp_path / "vocabulary.txt").write_text("sun 400\nsea 100\nfog 99\nfen 5\n", encoding="utf-8")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("word1,word2,similarity\nSun,sea,9\nsun,fog,5\nfen,sea,4\nsun,unknown,3\n", encoding="utf-8")
    rows = [path.read_text(encoding="utf-8").splitlines()[1:] for path in write_bands(tmp_path, pairs).values()]
    assert rows == [["fen,sea,4.0"], ["sun,fog,5.0"], ["Sun,sea,9.0"]]


def test_rows_of_blanks_are_left_out_and_texts_are_parts_of_the_longest(tmp_path, monkeypatch):
    import word_comparisons as page

    from maskloom.words.evaluation import read_pairs

    (tmp_path / "similarity").mkdir()
    for stem in page.SETS.values():
        rows = ",word1,word2,similarity\n0,sun,sea,9.5\n1,,,\n"
        (tmp_path / "similarity" / f"{stem}.csv").write_text(rows, encoding="utf-8")
    monkeypatch.setattr(page, "SCORED", tmp_path)
    monkeypatch.setattr(page, "write_real_text", lambda path, num_bytes: f"{path.stem} {num_bytes}")
    assert page.write_parts(Namespace(out=tmp_path, megabytes=12.0)) == "long 12000000"
    assert read_pairs(tmp_path / f"{page.SETS[page.MEN]}.csv") == [("sun", "sea", 9.5)]


def test_the_page_gives_scores_and_verdicts(tmp_path):
    import word_comparisons as page

    draw = np.random.default_rng(0)
    columns = [*page.SETS, *page.BANDS, page.ANALOGIES, page.AVERAGE]

    def scores(arm, seed):
        found = dict.fromkeys(columns, 0.5 + 0.001 * seed)
        found[page.MEN] += (arm.model == "skipgram") * 0.1 - (arm.window == 10) * (0.1 + 0.001 * seed)
        found[page.AVERAGE] += draw.normal() * 0.1 if arm.part == "short" else 0.0
        known = dict.fromkeys(columns, 1234)
        return {**found, "pairs of known words": known, "words": {"short": 1e6, "middle": 2.4e6, "long": 6e6}[arm.part]}

    arms = [*dict.fromkeys([*page.MODELS, *page.NOISES, *page.GRID.values()])]
    tries = {(arm, rate): {page.CHOOSES: -abs(rate - 0.1)} for arm in arms for rate in page.RATES[arm.part]}
    rates = page.chosen_rates(tries)
    assert {*rates.values()} == {0.1}
    runs = {(arm, seed): scores(arm, seed) for arm in arms for seed in range(3)}
    measures = [f"whole sentence, {m}" for m in ("within", "across", "accuracy")]
    measures += [f"without the rule's words, {m}" for m in ("within", "across", "accuracy")]
    kinds = ("word vector of *bank*", "mean word vector of the other words", "layer 0", "layer 1")
    told = {kind: {measure: [0.5] * 3 for measure in measures} for kind in kinds}
    told["layer 1"] = {**told["layer 1"], measures[-1]: [0.9, 0.8, 0.9]}
    senses = {"found": {"river": 9, "money": 9}, "drawn": 3, "neighbours": [["money", 0.7]], "beside": {"river": 0.1}}
    options = Namespace(seeds=3, epochs=1, more=" --epochs 1", results=tmp_path / "page")
    page.write_page(options, "a text", rates, runs, {**senses, "scores": told})
    lines = (tmp_path / "page.md").read_text(encoding="utf-8").splitlines()
    assert max(len(line) for line in lines if not line.startswith("|")) <= 120
    assert "| skip-gram is better, 1.0 M words: MEN | shown | +0.100 ± 0.000 |" in lines
    assert "| skip-gram is better, 1.0 M words: RW | not shown | +0.000 ± 0.000 |" in lines
    assert "| a window of 10 is better than one of 2: MEN | denied | -0.101 ± 0.001 |" in lines
    assert "| the last layer tells senses apart better than the word vector | shown | +0.367 ± 0.033 |" in lines
    assert sum(" --epochs 1`" in line for line in lines) == 1
    assert "9% of claims are shown by chance" in " ".join(lines)


def test_the_guide_tells_the_command_that_wrote_the_page():
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("docs/WORDS.md", "results/word_comparisons.md")]
    commands = [re.search(r"python benchmarks/word_comparisons\.py [^`\n]+", page)[0] for page in pages]
    told, used = (re.findall(r"--[a-z]+", command) for command in commands)
    assert told == used
