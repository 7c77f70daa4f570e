"""From files to a vocabulary folder: equal bytes for equal text, correct figures, and errors with their location."""

import gzip
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskloom.errors import ConfigError, DataError
from maskloom.runs.corpus import REPORT, inspect_vocabulary, train_vocabulary_from_files
from maskloom.system.worker_processes import Work
from maskloom.text.tokenizer import Tokenizer
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings

PARTS = {
    "a.txt": "The quick brown fox jumps over the lazy dog.\n\nThe dog sleeps; the fox runs quickly.\n" * 3,
    "b.txt": "Running, runner, runs: “walking” and walked – the Walker walks.\r\nÜnïcode, naïve café!\r\n" * 3,
    "c.txt": "她 说 中文 and ΟΔΟΣ, ΟΔΟΣ εν οδω. 1234 24 2400\n" * 3,
}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in PARTS.items():
        (folder / name).write_bytes(text.encode())
    return folder


def train(paths: Any, out: Path, **options: Any) -> dict[str, Any]:
    settings = {"size": 130, **options}
    work, on_bad_text = Work(settings.pop("num_workers", 1)), settings.pop("on_bad_text", "error")
    settings = VocabularySettings(**settings)
    return train_vocabulary_from_files(paths, settings, out=out, work=work, on_bad_text=on_bad_text)


def fingerprints(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("score", ["frequency", "likelihood"])
def test_vocab_txt_is_the_same_byte_for_byte(texts: Path, tmp_path: Path, score: str) -> None:
    report = train([texts], tmp_path / "first", score=score)
    expected = (tmp_path / "first" / "vocab.txt").read_bytes()
    assert len(expected.splitlines()) == report["size"] == 130
    for number, names in enumerate([*itertools.permutations(PARTS)][1::2]):
        paths = [texts / name for name in names]
        train(paths, tmp_path / f"order{number}", score=score, num_workers=1 + number % 2)
        assert (tmp_path / f"order{number}" / "vocab.txt").read_bytes() == expected
    # nor does it matter how the text is divided into files, rows and archives
    joined = tmp_path / "joined.jsonl.gz"
    rows = [json.dumps({"text": PARTS[name]}) for name in ("c.txt", "a.txt", "b.txt")]
    joined.write_bytes(gzip.compress("\n".join(rows).encode()))
    again = train([joined], tmp_path / "joined", score=score, num_workers=2)
    assert (tmp_path / "joined" / "vocab.txt").read_bytes() == expected
    assert again["sha256"] == report["sha256"] == hashlib.sha256(expected).hexdigest()


def test_a_cap_above_the_distinct_words_changes_nothing_and_one_below_drops_the_rarest(
    texts: Path, tmp_path: Path
) -> None:
    free = train([texts], tmp_path / "free")
    distinct = free["num_distinct_words"]
    exact = train([texts], tmp_path / "exact", max_distinct_words=distinct)
    assert exact["sha256"] == free["sha256"]
    assert (free["num_pruned_words"], exact["num_pruned_words"]) == (0, 0)
    capped = [
        train([texts], tmp_path / f"capped{workers}", max_distinct_words=distinct - 9, num_workers=workers)
        for workers in (1, 2)
    ]
    assert capped[0]["sha256"] == capped[1]["sha256"] != free["sha256"]
    for report in capped:
        assert report["num_pruned_distinct_words"] == 9
        assert report["num_spilled_runs"] > 0
        assert report["num_words"] == free["num_words"]


def test_the_folder_is_a_tokenizer_of_the_case_asked_for(texts: Path, tmp_path: Path) -> None:
    train([texts], tmp_path / "uncased")
    train([texts], tmp_path / "cased", lowercase=False, size=170)
    uncased, cased = Tokenizer.load(tmp_path / "uncased"), Tokenizer.load(tmp_path / "cased")
    assert (uncased.lowercase, cased.lowercase) == (True, False)
    assert (uncased.max_length, cased.max_length) == (512, 512)
    assert uncased.tokens("The CAFÉ") == uncased.tokens("the cafe")
    assert "".join(cased.tokens("The café")).replace("##", "") == "Thecafé"
    assert uncased.vocabulary.tokens[:5] == cased.vocabulary.tokens[:5] == SPECIAL_TOKENS
    assert (tmp_path / "cased" / REPORT).exists()


def test_the_report_is_what_a_person_counts(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abab ab, ab\n\nab zab ☃\n", encoding="utf-8")
    report = train([tmp_path / "text.txt"], tmp_path / "out", size=11, alphabet_limit=3)
    # characters by frequency: a and b (6 each), then the comma, z and ☃ (once each, so by code point)
    tokens = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8").split()
    # "a ##b" occurs once in abab and three times in ab, every other pair once
    assert tokens == [*SPECIAL_TOKENS, ",", "a", "##a", "##b", "ab"]
    expected = {
        "requested_size": 11,
        "size": 10,
        "num_texts": 2,
        "num_words": 7,
        "num_distinct_words": 5,
        "alphabet_size": 3,
        "num_dropped_characters": 2,
        "dropped_characters": "z☃",
        "num_word_starts": 3,
        "num_continuations": 2,
        "longest_token": "ab",
        # abab = ab ##a ##b, ab, comma, ab, ab, and two unknown words
        "unknown_rate": pytest.approx(2 / 7),
        "single_piece_rate": pytest.approx(4 / 7),
        "pieces_per_word": pytest.approx(9 / 7),
        "characters_per_piece": pytest.approx((4 + 2 + 1 + 2 + 2 + 3 + 1) / 9),
    }
    assert {name: report[name] for name in expected} == expected
    assert report["why_smaller"] == "no pair of symbols that occurs at least 2 times is left to merge"
    assert report["reading"]["num_documents"] == 2
    written = json.loads((tmp_path / "out" / REPORT).read_text(encoding="utf-8"))
    assert {"folder": str(tmp_path / "out"), **written} == report


def test_inspection_counts_the_vocabulary_and_its_cover_of_other_text(tmp_path: Path) -> None:
    Vocabulary([*SPECIAL_TOKENS, "[unused0]", "a", "b", "##b", "abb", "##abb", ","]).save(tmp_path / "vocab.txt")
    (tmp_path / "other.txt").write_text("ABB, abb ab\n\nb x abbb\n", encoding="utf-8")
    found = inspect_vocabulary(tmp_path, [tmp_path / "other.txt"])
    assert (found["size"], found["lowercase"], found["num_unused"]) == (12, True, 1)
    assert (found["num_continuations"], found["alphabet"]) == (2, ",ab")
    assert found["special_ids"]["[MASK]"] == 4
    coverage = found["coverage"]
    assert (coverage["num_documents"], coverage["num_words"], coverage["num_distinct_words"]) == (2, 7, 6)
    assert coverage["unknown_rate"] == pytest.approx(1 / 7)
    assert coverage["single_piece_rate"] == pytest.approx(4 / 7)
    # abb , abb a ##b b [UNK] abb ##b
    assert coverage["pieces_per_word"] == pytest.approx(9 / 7)
    assert inspect_vocabulary(tmp_path / "vocab.txt")["size"] == 12
    (tmp_path / "run").mkdir()
    (tmp_path / "vocab.txt").replace(tmp_path / "run" / "vocab.txt")
    (tmp_path / "run").rename(tmp_path / "model")
    assert inspect_vocabulary(tmp_path)["size"] == 12  # a run has its vocabulary in model/
    with pytest.raises(DataError, match="rnu: no such folder; expected a vocabulary, model, corpus or run folder"):
        inspect_vocabulary(tmp_path / "rnu")
    with pytest.raises(DataError, match="absent"):
        inspect_vocabulary(tmp_path, [tmp_path / "absent.txt"])


# Wrong input: the error says what is wrong and where, and nothing is written


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"fine\n\nbad \xff here\n", r"bad\.txt, document at line 3: byte 11 \(0xff\) is not UTF-8"),
        (b"\xef\xbb\xbfcaf\xc3\n", r"bad\.txt, document at line 1: byte 7 \(0xc3\) is not UTF-8"),
        ("abc".encode("utf-16"), r"bad\.txt, document at line 1: byte 1 \(0xff\).*UTF-16"),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_bad_utf8_is_named_by_file_and_byte(
    texts: Path, tmp_path: Path, content: bytes, place: str, num_workers: int
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=place):
        train([texts, tmp_path / "bad.txt"], tmp_path / "out", num_workers=num_workers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.txt", "texts"]


def test_bad_utf8_is_skipped_and_counted_when_asked(texts: Path, tmp_path: Path) -> None:
    expected = train([texts], tmp_path / "expected")
    (tmp_path / "bad.txt").write_bytes(b"one \xff\n\ntwo \xfe\n\n\x80three\n")
    report = train([tmp_path / "bad.txt", texts], tmp_path / "out", on_bad_text="skip")
    assert report["sha256"] == expected["sha256"]
    assert report["reading"]["num_skipped_documents"] == 3
    assert "bad.txt, document at line 1: byte 5 (0xff)" in report["reading"]["skipped"][0]
    assert "document at line 5: byte 15 (0x80)" in report["reading"]["skipped"][2]
    with pytest.raises(DataError, match=r"no text \(documents: 0 empty, 3 skipped\)"):
        train([tmp_path / "bad.txt"], tmp_path / "none", on_bad_text="skip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"empty\.txt: no text \(documents: 0 empty, 0 skipped\)"),
        ("\n \n\t\n", r"empty\.txt: no text \(documents: 0 empty, 0 skipped\)"),
        ("\u3000\n", r"empty\.txt: no text \(documents: 1 empty"),
        ("\u00ad\u200b\n", "no words in 1 text;"),
    ],
)
def test_text_without_words_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "empty.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        train([tmp_path / "empty.txt"], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 40}, r"size = 40: 5 special tokens and \d+ symbols for \d+ characters need 67; use --size 67"),
        ({"size": 5}, "size = 5: it must be at least 6"),
        ({"num_workers": 0}, "num_workers = 0"),
    ],
)
def test_impossible_settings_are_named(texts: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train([texts], tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_size_that_the_text_cannot_fill_is_reported(texts: Path, tmp_path: Path) -> None:
    report = train([texts], tmp_path / "out", size=30_000)
    assert report["requested_size"] == 30_000
    assert report["size"] == len(Vocabulary.load(tmp_path / "out")) < 400
    assert "no pair of symbols" in report["why_smaller"]


def test_missing_and_unknown_files_are_named(texts: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path / "texts" / "picture.png"):
        if path.suffix == ".png":
            path.write_bytes(b"x")
        with pytest.raises(DataError, match=path.name):
            train([texts / "a.txt", path], tmp_path / "out")
    with pytest.raises(DataError, match="no text files were given"):
        train([], tmp_path / "out")
    # in a folder it is skipped, and the report lists it
    report = train([texts], tmp_path / "out")
    assert report["reading"]["ignored_files"] == [str(texts / "picture.png")]


def test_an_output_in_a_folder_of_text_is_refused(texts: Path) -> None:
    with pytest.raises(ConfigError, match=r"lies inside .*texts, which is read as text"):
        train([texts], texts / "vocab")
    assert {path.name for path in texts.iterdir() if not path.name.startswith(".")} == set(PARTS)


def test_an_earlier_vocabulary_and_anything_else_is_left_alone(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    train([texts], out)
    first = fingerprints(out)
    with pytest.raises(ConfigError):
        train([texts], out, size=20)
    assert fingerprints(out) == first
    for other, named in (({"size": 120}, "size"), ({"lowercase": False, "score": "likelihood"}, "lowercase, score")):
        with pytest.raises(ConfigError, match=rf"different vocabulary \(differences: {named}\).*choose another --out"):
            train([texts], out, **other)
    with pytest.raises(ConfigError, match=r"\(differences: text\)"):
        train([texts / "a.txt"], out)
    assert fingerprints(out) == first
    again = train([texts], out, num_workers=2)
    assert (again["already_trained"], again["size"]) == (True, 130)
    assert fingerprints(out) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "texts"]
    (out / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ConfigError, match=r"contains model\.safetensors.*choose another --out"):
        train([texts], out)
    with pytest.raises(ConfigError, match="contains"):
        train([texts], texts)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="is a file"):
        train([texts], tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert train([texts], tmp_path / "empty")["size"] == 130


def test_the_commands(run: Callable[..., str], texts: Path, tmp_path: Path) -> None:
    options = ["--size", 150, "--out", tmp_path / "out", "--cased", "--workers", 2, "--score", "likelihood", "--json"]
    report = json.loads(run("vocab", "train", texts, *options, "--max-distinct-words", 39).splitlines()[0])
    assert (report["size"], report["lowercase"], report["score"]) == (150, False, "likelihood")
    assert report["num_distinct_words"] - report["num_pruned_distinct_words"] == 39
    seen = json.loads(run("vocab", "inspect", tmp_path / "out", texts / "a.txt", "--json").splitlines()[0])
    assert (seen["size"], seen["lowercase"], seen["coverage"]["unknown_rate"]) == (150, False, 0)
    limited = run("vocab", "train", texts, "--size", 150, "--out", tmp_path / "few", "--alphabet-limit", 20, "--json")
    assert json.loads(limited.splitlines()[0])["alphabet_size"] == 20
    (texts / "bad.txt").write_bytes(b"a\n\xff")
    failed = run("vocab", "train", texts, "--size", 170, "--out", tmp_path / "new", code=3)
    assert "bad.txt, document at line 1: byte 3 (0xff) is not UTF-8" in failed
    assert "--on-bad-text skip leaves such documents out" in failed
    assert "Traceback" not in failed
    skipping = ("--on-bad-text", "skip", "--json")
    skipped = run("vocab", "train", texts, "--size", 170, "--out", tmp_path / "new", *skipping).splitlines()[0]
    assert json.loads(skipped)["reading"]["num_skipped_documents"] == 1
