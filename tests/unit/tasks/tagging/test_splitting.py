"""Raw text is split into words the way the training data was."""

import json
import time

import pytest

from maskloom.tasks.examples import ReadingReport
from maskloom.tasks.kinds import KINDS, make_task
from maskloom.tasks.settings import TaggingSettings
from maskloom.tasks.tables import ReadingOptions
from maskloom.tasks.tagging.reading import iterate_sentences
from maskloom.tasks.tagging.splitting import UNKNOWN_TRAINING, WordSplitter

TREEBANK = """\
P. Simmons of Chester-le-Street said " no " .
He did n't meet Anna 's board in the U.S. on 1996-08-22 .
It cost $ 3.50 , or 1,000 yen ( about ) .
Mr. Lee of Acme Corp. is in Washington , D.C.
J. Doe 's group and K. Roe met Mr. Smith , who lives in Rome .
The U.K. said so : 7-6 and 5-4 ; no more .
No , she said No .
No. 5 and No. 6 and No. 7 lost ...
"""
PUNCTUATION_APART = "Anna ' s team - mate in St . Ives , U . K . , won 6 - 4 .\nO ' Neil paid $ 5 . 50 ."
WHITESPACE = "Anna's teammate, in Rome, won.\nSmith (the old) said so: 5%, not 6%."


def learned(text):
    return WordSplitter.learned(line.split() for line in text.splitlines())


def cut(splitter, text):
    return [text[start:end] for start, end in splitter.spans(text)]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("Anna met the board of Acme, in Rome.", "Anna met the board of Acme , in Rome ."),
        ("Q. Simmons of Stratford-upon-Avon.", "Q. Simmons of Stratford-upon-Avon ."),
        ("\"I can't,\" said Lee's aunt (45).", "\" I ca n't , \" said Lee 's aunt ( 45 ) ."),
        ("Mr. Roe of Acme Corp. left the U.N. in 2024.", "Mr. Roe of Acme Corp. left the U.N. in 2024 ."),
        ("It was $5.50 or 2,000 yen...", "It was $ 5.50 or 2,000 yen ..."),
        ("She said No. He lost 7-5.", "She said No. He lost 7-5 ."),
        ("He’s “fine”.", "He ’s “ fine ” ."),
        ("Go to Rome! Now? Yes;", "Go to Rome ! Now ? Yes ;"),
        ("  ", ""),
    ],
)
def test_as_the_penn_treebank_does(raw, words):
    splitter = learned(TREEBANK)
    assert cut(splitter, raw) == words.split()
    assert WordSplitter.model_validate(json.loads(json.dumps(splitter.model_dump()))) == splitter


def test_as_data_that_keeps_every_mark_apart():
    assert cut(learned(PUNCTUATION_APART), "Chester-le-Street's 7-5, U.N.") == [
        "Chester",
        "-",
        "le",
        "-",
        "Street",
        "'",
        "s",
        "7",
        "-",
        "5",
        ",",
        "U",
        ".",
        "N",
        ".",
    ]


def test_as_data_that_is_cut_at_blanks_alone():
    raw = "Acme, in Oslo, lost (the new) 7%, so: yes."
    assert cut(learned(WHITESPACE), raw) == raw.split()


def test_french_articles_are_cut_off_where_training_data_does():
    splitter = learned("l' homme et l' eau d' Anna .\nL' été , qu' il aime .")
    assert cut(splitter, "L'Europe et l'air d'Oslo.") == ["L'", "Europe", "et", "l'", "air", "d'", "Oslo", "."]


@pytest.mark.parametrize("text", [TREEBANK, PUNCTUATION_APART, WHITESPACE])
def test_lines_that_were_cut_before_keep_their_words(text):
    splitter = learned(text)
    assert [cut(splitter, line) for line in text.splitlines()] == [line.split() for line in text.splitlines()]


def test_characters_of_scripts_without_blanks_stay_apart():
    assert cut(UNKNOWN_TRAINING, "今天 is 好day.") == ["今", "天", "is", "好", "day", "."]


def test_a_letter_that_is_two_in_lower_case_is_cut_where_it_stands():
    splitter = learned("Ankara 'İn güzel evi .\n" * 60)
    assert cut(splitter, "Ankara'İn güzel evi.") == ["Ankara", "'İn", "güzel", "evi", "."]


def test_runs_without_a_blank_take_no_longer_than_their_length():
    splitter, started = learned(TREEBANK), time.process_time()
    for chunk in ("!" * 30_000, "a.b-" * 10_000, "'s" * 10_000, "(" * 255, "'s" * 127, "a!" * 127):
        spans = splitter.spans(chunk)
        assert "".join(chunk[start:end] for start, end in spans) == chunk
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "values", [[], {"odd": []}, {"kept": "a"}, {"kept": [1]}, {"kept": [""]}, {"whole": {"a": 1}}, {"inner": None}, 7]
)
def test_settings_of_another_form_are_refused(values):
    values = {**UNKNOWN_TRAINING.model_dump(), **values} if isinstance(values, dict) else values
    for words in (values, {"kept": [], "clitics": ["'s"]}):
        with pytest.raises(ValueError, match="words"):
            make_task("tagging", ("O", "B-X", "I-X"), settings={"words": words})


def read(path, text, splitter):
    path.write_text(text, encoding="utf-8")
    report, settings = ReadingReport(path), TaggingSettings(words=splitter)
    found = list(iterate_sentences(path, ReadingOptions(), settings, needs_label=False, report=report))
    return [list(sentence.words) for sentence in found], report.notes


def test_columns_and_lines_give_the_same_words(tmp_path):
    """Even if a single line does not show that it was already split into words: the file does."""
    sentences = [*(line.split() for line in TREEBANK.splitlines()), ["Unseen", "assoc.", "profits"]]
    splitter = learned(TREEBANK)
    columns = "\n\n".join("\n".join(f"{word} O" for word in words) for words in sentences)
    assert read(tmp_path / "a.conll", columns, splitter) == (sentences, [])
    lines, notes = read(tmp_path / "a.txt", "\n".join(map(" ".join, sentences)), splitter)
    assert lines == sentences
    assert notes == ["its lines are already split into words, and are split only at blanks"]
    raw, notes = read(tmp_path / "b.txt", "Unseen assoc. profits fell.\nSo did Acme's.\n", splitter)
    assert raw == [["Unseen", "assoc", ".", "profits", "fell", "."], ["So", "did", "Acme", "'s", "."]]
    assert notes == []


def test_what_differs_from_training_is_said(tmp_path):
    splitter = learned(TREEBANK)
    words = ["Anna's", "board,", "in", "Rome,", "met."]
    columns = "\n".join(f"{word} O" for word in words)
    _, (note,) = read(tmp_path / "a.conll", columns, splitter)
    assert note.startswith("4 of 5 words contain punctuation that is a separate word in the training data")
    parted = "Mr . Low - Beer of the U . S . met her"
    for name, lines in (("c.conll", "\n".join(f"{word} O" for word in parted.split())), ("c.txt", f"{parted} .\n")):
        _, notes = read(tmp_path / name, lines, splitter)
        assert notes[-1].startswith("4 punctuation marks are separate words, but parts of words in the training data")
    _, (note,) = read(tmp_path / "b.txt", "Anna's board met.\n", None)
    assert note.startswith("the model does not record how its training data was split into words")


@pytest.mark.slow
@pytest.mark.realdata
def test_conll_2003_written_as_lines(data_folder, tmp_path):
    train, test = (
        KINDS["tagging"].read(data_folder / "conll2003" / f"{part}.txt").examples for part in ("train", "test")
    )
    splitter = WordSplitter.learned(sentence.words for sentence in train)
    assert len(json.dumps(splitter.model_dump())) < 10_000
    sentences = [list(sentence.words) for sentence in test]
    assert read(tmp_path / "test.txt", "\n".join(map(" ".join, sentences)), splitter)[0] == sentences
    alone = [cut(splitter, " ".join(words)) == words for words in sentences]
    assert sum(alone) >= len(alone) - 10
