"""Building corpora: the same bytes whichever way, and a clear error for what cannot be built."""

import functools
import gzip
import json
import os
import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from maskloom.data.corpus import building as corpus_building
from maskloom.data.corpus.building import CorpusSettings, DigestSet, build_corpus
from maskloom.data.corpus.documents import source_files
from maskloom.data.corpus.manifest import describe_file
from maskloom.data.corpus.opening import Corpus
from maskloom.data.corpus.sentence_encoding import SentenceEncoder
from maskloom.data.corpus.shards import ShardRecord
from maskloom.errors import ConfigError, DataError
from maskloom.runs.corpus import build_corpus_from_files
from maskloom.system.folder_lock import FolderInUseError, folder_lock
from maskloom.system.worker_processes import Work, results_of_processes
from maskloom.text.vocabulary import Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

WORDS = ["the", "river", "ran", "under", "stone", "bridges", "while", "people", "slept", "."]
TOKENIZER = WordPieceTokenizer(Vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcde", "##s"]))
SMALL = {"settings": CorpusSettings(sentences="lines", shard_tokens=100)}


def random_documents(num_documents: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [
        "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 9)))
        for _ in range(num_documents)
    ]


def write_text(path: Path, documents: list[str]) -> Path:
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def ids_of(folder: Path) -> list[list[list[int]]]:
    corpus = Corpus.open(folder)
    ends = corpus.document_offsets.tolist()
    return [[corpus.sentence(index).tolist() for index in range(first, last)] for first, last in pairwise(ends)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text.txt", random_documents(60))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of the same text, "whole", and one of which four shards were made, "begun"; copy what you change."""
    folder = tmp_path_factory.mktemp("built")
    text = write_text(folder / "text.txt", random_documents(60))
    build_corpus(text, tokenizer=TOKENIZER, out=folder / "whole", **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        build_some_shards(patch, 4, text, tokenizer=TOKENIZER, out=folder / "begun", **SMALL)
    return folder


def build_some_shards(patch: pytest.MonkeyPatch, num_shards: int, *arguments: Any, **options: Any) -> None:
    """Build a corpus and fail after some shards."""
    write = corpus_building.write_shard

    def failing(folder: Path, number: int, *rest: Any) -> ShardRecord:
        if number >= num_shards:
            raise OSError(28, "No space left on device")
        return write(folder, number, *rest)

    patch.setattr(corpus_building, "write_shard", failing)
    with pytest.raises(OSError, match="No space left"):
        build_corpus(*arguments, **options)


@pytest.fixture
def encoded_shards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts in each shard that was encoded in this process."""
    calls: list[int] = []
    encode = SentenceEncoder.parts

    def counted(self: SentenceEncoder, documents: list[bytes]) -> Any:
        calls.append(len(documents))
        return encode(self, documents)

    monkeypatch.setattr(SentenceEncoder, "parts", counted)
    return calls


def test_the_ids_are_those_of_the_tokenizer_in_the_order_of_the_text(text: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(corpus_building, "_LENGTHS_AT_ONCE", 2)
    manifest = build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / "out", **SMALL)
    documents = text.read_text().rstrip("\n").split("\n\n")
    assert ids_of(tmp_path / "out") == [
        [TOKENIZER.token_ids(line) for line in document.split("\n")] for document in documents
    ]
    assert len(manifest["shards"]) > 5
    assert not (tmp_path / "out" / "building").exists()


def test_sentences_are_found_when_asked_for(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", ["The river ran. People slept\nunder bridges."])
    build_corpus(path, tokenizer=TOKENIZER, out=tmp_path / "out")
    expected = [TOKENIZER.token_ids("The river ran."), TOKENIZER.token_ids("People slept under bridges.")]
    assert ids_of(tmp_path / "out") == [expected]


def test_a_paragraph_separated_book_can_be_one_document(tmp_path: Path) -> None:
    book = write_text(tmp_path / "a.txt", ["The river ran\nunder stone bridges.", "People slept. The river ran."])
    options = {"tokenizer": TOKENIZER, "out": tmp_path / "out"}
    manifest = build_corpus(book, settings=CorpusSettings(documents="file"), **options)
    sentences = ["The river ran under stone bridges.", "People slept.", "The river ran."]
    assert ids_of(tmp_path / "out") == [[TOKENIZER.token_ids(sentence) for sentence in sentences]]
    assert manifest["settings"]["documents"] == "file"
    assert build_corpus(book, settings=CorpusSettings(documents="file"), **options)["already_built"]
    with pytest.raises(ConfigError, match=r"built differently \(documents differ\)"):
        build_corpus(book, **options)
    paragraphs = build_corpus(book, tokenizer=TOKENIZER, out=tmp_path / "paragraphs")
    # the manifest of a default build is the same as before the setting existed
    assert "documents" not in paragraphs["settings"]
    with pytest.raises(ConfigError, match=r"built differently \(documents differ\)"):
        build_corpus(book, tokenizer=TOKENIZER, out=tmp_path / "paragraphs", settings=CorpusSettings(documents="file"))


def test_the_manifest_tells_the_sums_of_the_text(text: Path, tmp_path: Path) -> None:
    manifest = build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / "out", **SMALL)
    files = source_files(text)
    assert manifest["sources"] == [{"name": file.name, **describe_file(file.path)} for file in files]


def test_an_output_in_a_folder_of_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    write_text(tmp_path / "texts" / "a.txt", ["the river"])
    (tmp_path / "link").symlink_to(tmp_path / "texts")
    for out in (tmp_path / "texts" / "corpus", tmp_path / "link" / "corpus", tmp_path / "texts"):
        with pytest.raises(ConfigError, match=r"lies inside .*texts, which is read as text"):
            build_corpus(tmp_path / "texts", tokenizer=TOKENIZER, out=out)
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["a.txt"]


def test_text_that_changes_during_a_build_leaves_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "a.txt", random_documents(20))
    add = corpus_building.DigestSet.add

    def changing(self: Any, digest: bytes) -> bool:
        os.utime(path, ns=(0, 0))
        return add(self, digest)

    monkeypatch.setattr(corpus_building.DigestSet, "add", changing)
    with pytest.raises(DataError, match=r"a\.txt: changed while being read"):
        build_corpus(path, tokenizer=TOKENIZER, out=tmp_path / "out", **SMALL)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_shard_is_made_of_a_bounded_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_building, "MAX_SHARD_BYTES", 100)
    path = write_text(tmp_path / "a.txt", ["é" * 40, "the", "ran", "中" * 50, "x" * 30])
    documents = corpus_building._unique_documents(corpus_building.read_documents(path), DigestSet())
    tasks = list(corpus_building._shard_tasks(documents, {"shard_tokens": 250}))
    assert [[len(content) for content in task.documents] for task in tasks] == [[80, 3, 3], [150], [30]]


def test_any_number_of_workers_gives_the_same_bytes(text: Path, tmp_path: Path) -> None:
    for num_workers in (1, 2):
        build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / str(num_workers), work=Work(num_workers), **SMALL)
    assert folder_bytes(tmp_path / "1") == folder_bytes(tmp_path / "2")


def test_every_kind_of_file_gives_the_same_tokens(tmp_path: Path) -> None:
    documents = random_documents(12)
    plain = write_text(tmp_path / "a.txt", documents)
    rows = "".join(json.dumps({"text": document}) + "\n" for document in documents).encode()
    (tmp_path / "b.jsonl").write_bytes(rows)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "d.jsonl.zst").write_bytes(zstandard.compress(rows))
    (tmp_path / "e").mkdir()
    write_text(tmp_path / "e" / "1.txt", documents[:5])
    write_text(tmp_path / "e" / "2.txt", documents[5:])
    names = ["a.txt", "b.jsonl", "c.txt.gz", "d.jsonl.zst", "e"]
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": documents}), tmp_path / "f.parquet")
    found = []
    for name in [*names, "f.parquet"]:
        build_corpus(tmp_path / name, tokenizer=TOKENIZER, out=tmp_path / f"{name}.out", **SMALL)
        found.append(ids_of(tmp_path / f"{name}.out"))
    assert found == [found[0]] * 6


def test_exact_duplicates_are_dropped_and_counted(tmp_path: Path) -> None:
    documents = random_documents(30)
    first = write_text(tmp_path / "a.txt", [*documents, documents[3], documents[0]])
    second = write_text(tmp_path / "b.txt", [documents[7], "another stone", documents[7] + " ."])
    manifest = build_corpus([first, second], tokenizer=TOKENIZER, out=tmp_path / "out", **SMALL)
    assert manifest["num_duplicate_documents"] == 3
    assert manifest["num_documents"] == 32
    unique = write_text(tmp_path / "c.txt", [*documents, "another stone", documents[7] + " ."])
    build_corpus(unique, tokenizer=TOKENIZER, out=tmp_path / "unique", **SMALL)
    assert ids_of(tmp_path / "out") == ids_of(tmp_path / "unique")


def test_bad_text_is_an_error_with_its_place_or_is_counted_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"the river\n\nbad \xff text\n\npeople slept\n\n\x01\n")
    (tmp_path / "empty.txt").write_bytes(b"")
    TOKENIZER.save(tmp_path / "vocab")
    options = {"vocab": tmp_path / "vocab", "out": tmp_path / "out"}
    with pytest.raises(DataError, match=r"a\.txt, document at line 3: byte 16 \(0xff\) is not UTF-8"):
        build_corpus_from_files([path], **options)
    shown = build_corpus_from_files(
        [path, tmp_path / "empty.txt"], settings=CorpusSettings(on_bad_text="skip"), **options
    )
    assert shown["num_skipped_documents"] == 1
    assert "a.txt, document at line 3: byte 16" in shown["skipped_documents"][0]
    assert (shown["num_documents"], shown["num_empty_documents"]) == (2, 1)
    assert shown["empty_files"] == [str(tmp_path / "empty.txt")]


def test_shards_without_a_token_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_building, "_SMALLEST_SHARD", 0)
    path = write_text(tmp_path / "a.txt", ["the river", "\u200b" * 40, "ran ."])
    manifest = build_corpus(
        path, tokenizer=TOKENIZER, out=tmp_path / "out", settings=CorpusSettings(sentences="lines", shard_tokens=1)
    )
    assert [shard["file"] for shard in manifest["shards"]] == ["shards/00000.tokens", "shards/00002.tokens"]
    assert ids_of(tmp_path / "out") == [[[5, 6]], [[7, 14]]]


def test_a_task_says_where_its_documents_stand(tmp_path: Path) -> None:
    first = write_text(tmp_path / "a.txt", ["the river", "ran"])
    second = write_text(tmp_path / "b.txt", ["under", "stone"])
    documents = corpus_building._unique_documents(corpus_building.read_documents([first, second]), DigestSet())
    tasks = corpus_building._shard_tasks(documents, {"shard_tokens": 2.5})
    places = [f"{first}, line {1}", f"{first}, line {3}", f"{second}, line {1}", f"{second}, line {3}"]
    assert list(map(str, tasks)) == [
        f"shard 0 (documents from {places[0]} to {places[1]})",
        f"shard 1 (documents from {places[2]} to {places[3]})",
    ]


def test_a_large_vocabulary_takes_four_bytes_a_token(tmp_path: Path) -> None:
    tokens = [*TOKENIZER.vocabulary.tokens, *(f"w{index}" for index in range(70_000))]
    path = write_text(tmp_path / "a.txt", ["w5 w69999 the"])
    manifest = build_corpus(path, tokenizer=WordPieceTokenizer(Vocabulary(tokens)), out=tmp_path / "out")
    assert manifest["token_type"] == "<u4"
    assert ids_of(tmp_path / "out") == [[[tokens.index("w5"), tokens.index("w69999"), 5]]]


def test_progress_ends_at_the_size_of_the_text(text: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / "out", progress=lambda *now: seen.append(now), **SMALL)
    size = text.stat().st_size
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("reading and encoding", size, size)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_interrupted_build_continues_to_the_same_bytes(
    text: Path, tmp_path: Path, built: Path, encoded_shards: list[int], num_workers: int
) -> None:
    options = {"tokenizer": TOKENIZER, **SMALL}
    whole, out = Corpus.open(built / "whole").manifest, shutil.copytree(built / "begun", tmp_path / "out")
    with pytest.raises(DataError, match="is unfinished; run the same build again"):
        Corpus.open(out)
    encoded_shards.clear()
    assert build_corpus(text, out=out, work=Work(num_workers), **options)["num_kept_shards"] == 4
    assert folder_bytes(out) == folder_bytes(built / "whole")
    if num_workers == 1:
        assert len(encoded_shards) == len(whole["shards"]) - 4


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["shards/00002.tokens", "building/00002.lengths", "building/00002.json"])
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_finished_shard_that_was_damaged_is_made_again(
    text: Path, tmp_path: Path, built: Path, encoded_shards: list[int], name: str, damage
) -> None:
    whole, out = Corpus.open(built / "whole").manifest, shutil.copytree(built / "begun", tmp_path / "out")
    damage(out / name)
    encoded_shards.clear()
    build_corpus(text, out=out, tokenizer=TOKENIZER, **SMALL)
    assert folder_bytes(out) == folder_bytes(built / "whole")
    assert len(encoded_shards) == len(whole["shards"]) - 3


def test_nothing_of_an_interrupted_build_of_something_else_is_left(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        build_some_shards(patch, 9, text, out=tmp_path / "out", tokenizer=TOKENIZER, **SMALL)
    for name in (".vocab.txt.1234.tmp", "shards/.00000.tokens.99.tmp"):
        (tmp_path / "out" / name).write_bytes(b"half writ")
    cased = WordPieceTokenizer(TOKENIZER.vocabulary, lowercase=False)
    other = write_text(tmp_path / "other.txt", random_documents(20, seed=1))
    for out in (tmp_path / "out", tmp_path / "whole"):
        build_corpus(other, out=out, tokenizer=cased, **SMALL)
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")


def test_a_finished_corpus_is_checked_and_left_alone(text: Path, tmp_path: Path, encoded_shards: list[int]) -> None:
    out = tmp_path / "out"
    manifest = build_corpus(text, tokenizer=TOKENIZER, out=out, **SMALL)
    before = folder_bytes(out)
    encoded_shards.clear()
    again = build_corpus(text, tokenizer=TOKENIZER, out=out, work=Work(2), **SMALL)
    assert again == {"already_built": True, **manifest, "num_kept_shards": len(manifest["shards"])}
    assert encoded_shards == []
    assert folder_bytes(out) == before
    flip(out / "shards" / "00001.tokens")
    with pytest.raises(DataError, match=r"shards/00001\.tokens: its SHA-256"):
        build_corpus(text, tokenizer=TOKENIZER, out=out, **SMALL)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer": WordPieceTokenizer(TOKENIZER.vocabulary, lowercase=False)}, "lowercase"),
        ({"tokenizer": WordPieceTokenizer(Vocabulary([*TOKENIZER.vocabulary.tokens, "x"]))}, "vocabulary_sha256"),
        ({"settings": replace(SMALL["settings"], sentences="split")}, "sentences"),
        ({"settings": replace(SMALL["settings"], shard_tokens=101)}, "shard_tokens"),
        ({"settings": replace(SMALL["settings"], on_bad_text="skip")}, "on_bad_text"),
        ({"settings": replace(SMALL["settings"], language="de")}, "language"),
        ({"settings": replace(SMALL["settings"], documents="file")}, "documents"),
    ],
)
def test_a_corpus_of_other_settings_is_refused_by_name(text: Path, built: Path, changes, named: str) -> None:
    options = {"tokenizer": TOKENIZER, "out": built / "whole", **SMALL}
    before = folder_bytes(built / "whole")
    with pytest.raises(ConfigError, match=rf"whole: already contains a corpus that was built differently \(.*{named}"):
        build_corpus(text, **(options | changes))
    assert folder_bytes(built / "whole") == before


def test_a_corpus_of_other_text_is_refused(text: Path, tmp_path: Path) -> None:
    build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / "out", **SMALL)
    write_text(text, random_documents(60, seed=1))
    with pytest.raises(ConfigError, match=r"built differently .the text files differ"):
        build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / "out", **SMALL)


def test_a_folder_of_anything_else_is_refused_and_left_alone(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    WordPieceTokenizer(Vocabulary([*TOKENIZER.vocabulary.tokens, "other"])).save(out)
    before = folder_bytes(out)
    with pytest.raises(ConfigError, match=r"model: the folder contains other files, such as special_tokens_map\.json"):
        build_corpus(text, tokenizer=TOKENIZER, out=out)
    assert folder_bytes(out) == before
    (out / "manifest.json").write_text('{"name": "a web page"}')
    with pytest.raises(DataError, match=r"manifest\.json: not the manifest of a maskloom corpus"):
        build_corpus(text, tokenizer=TOKENIZER, out=out)
    with pytest.raises(ConfigError, match=r"text\.txt: is a file; a corpus needs a folder"):
        build_corpus(text, tokenizer=TOKENIZER, out=text)


@pytest.mark.parametrize("rank", [None, "1"])
def test_two_builds_of_one_folder_do_not_meet(text: Path, tmp_path: Path, monkeypatch, rank: str | None) -> None:
    out = tmp_path / "out"
    if rank is not None:  # a script started by torchrun or srun: ranks do not share the folder of a build
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
    with folder_lock(out), pytest.raises(FolderInUseError, match=f"out is in use by PID {os.getpid()} on"):
        build_corpus(text, tokenizer=TOKENIZER, out=out)
    assert build_corpus(text, tokenizer=TOKENIZER, out=out)["num_documents"] == 60
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("content", ["", " \n\n \n", "\x01\n\n\u200b\n"])
def test_text_without_a_word_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=r"a\.txt: found no documents with any tokens"):
        build_corpus(tmp_path / "a.txt", tokenizer=TOKENIZER, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentences": "words"}, "sentences is 'words'"),
        ({"shard_tokens": 0}, "shard_tokens is 0"),
        ({"on_bad_text": "ignore"}, "on_bad_text is 'ignore'"),
        ({"documents": "page"}, "documents is 'page'"),
        ({"language": "german"}, r"language is 'german', .* de, "),
    ],
)
def test_wrong_settings_are_named(text: Path, tmp_path: Path, options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_corpus(text, tokenizer=TOKENIZER, out=tmp_path / "out", settings=CorpusSettings(**options))


def test_what_a_worker_raises_is_raised_here() -> None:
    results = results_of_processes(functools.partial, (float,), iter(["4", "9"]), 2)
    assert sorted(results) == [4.0, 9.0]
    with pytest.raises(ValueError, match="could not convert string to float: 'x'"):
        list(results_of_processes(functools.partial, (float,), iter(["4", "x", "9"]), 2))


def test_a_worker_that_dies_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(
        ChildProcessError, match=r"worker process \d+, the second one for 7, died.* code 7; run it again"
    ):
        list(results_of_processes(functools.partial, (os._exit,), iter([7]), 2))


def test_ids_on_disk_are_little_endian(tmp_path: Path) -> None:
    build_corpus(write_text(tmp_path / "a.txt", ["the river"]), tokenizer=TOKENIZER, out=tmp_path / "out")
    assert np.fromfile(tmp_path / "out" / "shards" / "00000.tokens", "<u2").tolist() == [5, 6]


def test_the_vocabulary_comes_from_any_folder_that_has_one(text: Path, tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "vocab")
    TOKENIZER.save(tmp_path / "run" / "model")
    TOKENIZER.save(tmp_path / "only_json")
    (tmp_path / "only_json" / "vocab.txt").unlink()
    found = []
    for name in ("vocab", "run", "run/model", "only_json"):
        shown = build_corpus_from_files(text, vocab=tmp_path / name, out=tmp_path / "out" / name)
        found.append((ids_of(tmp_path / "out" / name), shown["num_bytes"]))
    assert found == [found[0]] * 4
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.toml").write_text("")
    for name, message in {
        "begun": "this run has no model/ yet",
        "absent": "absent: no such folder; expected a vocabulary, model, corpus or run folder",
        "out": r"none of vocab\.txt, vocab\.json, tokenizer\.json here or in .* found: only_json, run, vocab",
    }.items():
        with pytest.raises(DataError, match=message):
            build_corpus_from_files(text, vocab=tmp_path / name, out=tmp_path / "other")


def test_sizes_are_said_before_anything_is_written(text: Path, tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "vocab")
    said: list[str] = []

    def say(line: str) -> None:
        assert not (tmp_path / "out").exists()
        said.append(line)

    build = functools.partial(build_corpus_from_files, text, vocab=tmp_path / "vocab", out=tmp_path / "out", say=say)
    shown = build()
    assert said[0].startswith(f"corpus: about {shown['num_tokens']:,} tokens in {shown['num_sentences']} sentences, ")
    del said[:]
    build()
    assert said == []


def test_the_language_decides_where_sentences_end(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", ["The river ran bzw. Stone slept. People ran."])
    lengths = {}
    for language in ("en", "de"):
        manifest = build_corpus(
            path, tokenizer=TOKENIZER, out=tmp_path / language, settings=CorpusSettings(language=language)
        )
        assert manifest["settings"]["language"] == language
        lengths[language] = [len(sentence) for sentence in ids_of(tmp_path / language)[0]]
    assert lengths["de"] != lengths["en"]
    assert len(lengths["de"]) == 2


def test_a_name_that_no_manifest_could_hold_is_refused_at_the_start(text: Path, tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "vocab")
    for out in (tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / os.fsdecode(b"caf\xe9") / "corpus"):
        with pytest.raises(DataError, match=r"caf\\xe9.*: the name is not UTF-8"):
            build_corpus_from_files(text, vocab=tmp_path / "vocab", out=out)


def test_options_that_would_change_nothing_are_refused(text: Path, tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "vocab")
    rows = tmp_path / "rows.jsonl.gz"
    rows.write_bytes(gzip.compress(b'{"text": "the river ran ."}\n'))
    build = functools.partial(build_corpus_from_files, vocab=tmp_path / "vocab", out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--documents file: the text has no \.txt file, .*leave it out"):
        build(rows, settings=CorpusSettings(documents="file"))
    with pytest.raises(ConfigError, match="--language de: --sentences lines does not split text into sentences"):
        build(rows, settings=CorpusSettings(sentences="lines", language="de"))
    assert not (tmp_path / "out").exists()
    assert build([rows, text], settings=CorpusSettings(documents="file"))["num_documents"] == 2
