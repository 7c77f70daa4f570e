"""Reading documents: every kind of file, and every invalid input."""

import gzip
import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
import zstandard

from maskloom.data.corpus import documents
from maskloom.data.corpus.documents import Document, ReadingReport, check_rule, read_documents, source_files
from maskloom.errors import ConfigError, DataError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(*texts: str) -> str:
    return "".join(json.dumps({"text": text, "other": 1}) + "\n" for text in texts)


def texts(*paths: Path, **options) -> list[str]:
    return [document.text for document in read_documents(paths, **options)]


def test_a_blank_line_ends_a_document_of_a_text_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n\n \t\nthree\n")
    assert list(read_documents([path])) == [Document(b"one\ntwo", str(path), 1), Document(b"three", str(path), 5)]


def test_a_file_without_blank_lines_is_one_document(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", "one\ntwo\nthree")) == ["one\ntwo\nthree"]


@pytest.mark.parametrize("content", ["\ufeffone\r\ntwo\r\n\r\nthree\r\n", "\ufeff\n\none\ntwo\n\n\nthree\n\n"])
def test_byte_order_mark_and_windows_line_ends_vanish(tmp_path: Path, content: str) -> None:
    assert texts(write(tmp_path / "a.txt", content)) == ["one\ntwo", "three"]


def test_a_file_can_be_one_document_whatever_blank_lines_it_has(tmp_path: Path) -> None:
    book = write(tmp_path / "a.txt", "\n\nA hard-wrapped\nparagraph.\n\nAnother.\n\n")
    rest = write(tmp_path / "b.jsonl", rows("one", "two"))
    assert texts(book, rest, documents="file") == ["A hard-wrapped\nparagraph.\n\nAnother.", "one", "two"]
    with pytest.raises(ConfigError, match="documents is 'page'"):
        read_documents(book, documents="page")  # pyright: ignore[reportArgumentType]


def test_old_line_ends_end_lines_in_every_kind_of_file_and_unicode_separators_do_not(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "a.txt", "one\rtwo\r\rthree\r")) == ["one\ntwo", "three"]
    assert texts(write(tmp_path / "b.jsonl", rows("one\r\ntwo\rthree"))) == ["one\ntwo\nthree"]
    assert texts(write(tmp_path / "c.txt", "one\u2028\u2029two\x85three")) == ["one\u2028\u2029two\x85three"]


def test_rows_are_documents_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "\ufeff" + rows("one\n\nstill one") + "\n" + rows("two", " \n"))
    report = ReadingReport()
    found = list(read_documents([path], report=report))
    assert [(document.text, document.line) for document in found] == [("one\n\nstill one", 1), ("two", 3)]
    assert (report.num_documents, report.num_empty_documents) == (2, 1)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gz", "zst"])
def test_compressed_files_read_like_plain_ones(tmp_path: Path, compress, request) -> None:
    suffix = request.node.callspec.id
    # two members or frames, as created by appending
    text = compress(b"one\n\ntw") + compress(b"o\n\n" + b"three " * 60_000)
    assert texts(write(tmp_path / f"a.txt.{suffix}", text)) == ["one", "two", "three " * 60_000]
    assert texts(write(tmp_path / f"a.jsonl.{suffix}", compress(rows("x", "y").encode()))) == ["x", "y"]


def test_given_files_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "b")
    write(tmp_path / "in" / "z.txt", "z")
    write(tmp_path / "in" / "a" / "y.JSONL", rows("y"))
    write(tmp_path / "in" / "picture.png", b"\x89")
    write(tmp_path / "in" / "README", "no suffix")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    report = ReadingReport()
    assert texts(tmp_path / "in", tmp_path / "b.txt", report=report) == ["y", "z", "b"]
    assert [Path(name).name for name in report.ignored_files] == ["README", "loop", "picture.png"]


def test_what_is_no_regular_file_is_refused_at_the_start(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt", "fine")
    os.mkfifo(tmp_path / "in" / "pipe.txt")
    for path in (tmp_path / "in" / "pipe.txt", tmp_path / "in"):
        with pytest.raises(DataError, match=r"pipe\.txt: is a pipe; expected a regular file"):
            source_files(path)


def test_a_name_that_is_not_utf8_is_refused_at_the_start(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    write(tmp_path / "in" / name, "text")
    for path in (tmp_path / "in", tmp_path / "in" / name):
        with pytest.raises(DataError, match=r"caf\\xe9\.txt: the name is not UTF-8; rename it"):
            source_files(path)
    (tmp_path / "in" / name).rename(tmp_path / "in" / os.fsdecode(b"caf\xe9.png"))
    write(tmp_path / "in" / "a.txt", "text")
    report = ReadingReport()
    assert texts(tmp_path / "in", report=report) == ["text"]
    assert report.ignored_files == [str(tmp_path / "in" / "caf\\xe9.png")]


def test_links_out_of_a_folder_or_to_nothing_are_refused(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "b.txt", "b")
    write(tmp_path / "in" / "a.txt", "a")
    link = tmp_path / "in" / "link.txt"
    for target, why in (
        (outside, "is a link to .*outside.*, outside the folder"),
        (tmp_path / "absent.txt", "cannot be read: No such file"),
        (link, "cannot be read: Too many levels of symbolic links"),
    ):
        link.symlink_to(target)
        with pytest.raises(DataError, match=rf"link\.txt: {why}"):
            source_files(tmp_path / "in")
        link.unlink()


def test_a_link_to_a_text_of_the_same_folder_is_said_and_not_read_again(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.txt", "a")
    write(tmp_path / "in" / "other.data", "b")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "in" / "a.txt")
    (tmp_path / "in" / "named.txt").symlink_to(tmp_path / "in" / "other.data")  # only the link's name marks it as text
    (tmp_path / "given").symlink_to(tmp_path / "in")
    for folder in (tmp_path / "in", tmp_path / "given"):
        report = ReadingReport()
        assert texts(folder, report=report) == ["a", "b"]
        assert [Path(name).name for name in report.ignored_files] == ["link.txt", "other.data"]


@pytest.mark.parametrize("change", ["more", "less", "other"])
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "a.txt", "one\n\ntwo\n\nthree")
    found = read_documents(path)
    next(found)
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END if change == "more" else os.SEEK_SET)
        file.write(b"\n\nfour") if change != "less" else file.truncate(4)
    os.utime(path, ns=(0, 0))
    with pytest.raises(DataError, match=r"a\.txt: (changed|grew) while being read"):
        list(found)


def test_a_file_that_never_stops_growing_is_not_read_for_ever(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", ("word " * 500 + "\n\n") * 800)

    def follow() -> None:
        with path.open("ab", buffering=0) as file:
            for _ in read_documents(path):
                file.write(b"more\n\n")

    with pytest.raises(DataError, match=r"a\.txt: grew while being read"):
        follow()


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "txt.gz", "jsonl.zst"])
def test_the_sum_is_of_the_bytes_that_were_read(tmp_path: Path, suffix: str) -> None:
    content = rows("one", "two").encode()
    packed = {"gz": gzip.compress, "zst": zstandard.compress}.get(suffix[-3:].strip("."), bytes)(content)
    path, report = write(tmp_path / f"a.{suffix}", packed), ReadingReport()
    list(read_documents(path, report=report))
    assert report.sums == {path: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert "sums" not in report.as_dict()


def test_reading_counts_bytes_for_progress(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.txt", "one\n\ntwo\n"), write(tmp_path / "b.txt.gz", gzip.compress(b"three"))]
    report = ReadingReport()
    list(read_documents(paths, report=report))
    assert report.num_bytes_read == sum(path.stat().st_size for path in paths)
    assert report.as_dict()["num_documents"] == 3


def test_empty_files_are_named_not_fatal(tmp_path: Path) -> None:
    report = ReadingReport()
    assert texts(write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", " \n\n"), report=report) == []
    assert report.empty_files == [str(tmp_path / "a.txt")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"fine\n\nbad \xff text\n", "document at line 3: byte 11 (0xff) is not UTF-8"),
        ("a.txt", b"\xef\xbb\xbffine\n\nbad \xff\n", "byte 14 (0xff)"),
        ("a.txt", b"\xff\xfeh\0i\0", "looks like UTF-16"),
        ("a.txt", b"cut \xe2\x82", "unexpected end of data"),
        ("a.txt", b"ab\0cd", "document at line 1: a NUL character after 2 characters"),
        ("a.txt.gz", gzip.compress(b"bad \xff"), "byte 5 (0xff)"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "\xc3("}\n', "line 2: byte 11 (0xc3)"),
        ("a.jsonl", b'{"text": "a\\u0000b"}\n', "line 1: a NUL character"),
        ("a.jsonl", b'{"text": "a\\ud800b"}\n', "an unpaired surrogate"),
    ],
)
def test_bad_text_is_an_error_with_its_place_or_skipped_and_counted(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = write(tmp_path / name, content)
    after = write(tmp_path / "after.txt", "after")
    with pytest.raises(DataError) as error:
        texts(path, after)
    assert str(error.value).startswith(f"{path}, ")
    assert expected in str(error.value)
    report = ReadingReport()
    assert texts(path, after, on_bad_text="skip", report=report)[-1] == "after"
    assert report.num_skipped_documents == 1
    assert expected in report.skipped[0]


@pytest.mark.parametrize("mode", ["error", "skip"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "must be an object with the field 'text', not list"),
        ('{"body": "x"}', "no field 'text'; the row has 'body'"),
        ('{"text": 5}', "field 'text' must be a string, not int"),
        ('{"text": null}', "must be a string, not NoneType"),
        ('{"text": ' + "[" * 200_000, "not JSON"),
    ],
)
def test_bad_rows_are_errors_with_their_line(tmp_path: Path, line: str, expected: str, mode) -> None:
    path = write(tmp_path / "a.jsonl", rows("fine") + line + "\n")
    with pytest.raises(DataError) as error:
        texts(path, on_bad_text=mode)
    assert f"{path}, line 2" in str(error.value)
    assert expected in str(error.value)


@pytest.mark.parametrize("escaped", [True, False])
def test_long_rows_are_read_like_short_ones(tmp_path: Path, escaped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_PIECE", 10)
    rows = [
        json.dumps({"text": text, "é": "😀"}, ensure_ascii=escaped) for text in ('naïve "😀" \\ café\n中', "x" * 50)
    ]
    assert texts(write(tmp_path / "a.jsonl", "\n".join(rows))) == ['naïve "😀" \\ café\n中', "x" * 50]
    with pytest.raises(DataError, match="no field 'text'; the row has 'körper'"):
        texts(write(tmp_path / "b.jsonl", '{"körper": "was da steht"}'))


def noise(size: int) -> bytes:
    return os.urandom(size).hex().encode()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt.gz", gzip.compress(noise(1000))[:-200], "the compressed file is truncated"),
        ("a.txt.gz", gzip.compress(noise(1000))[:-4], "the compressed file is truncated"),
        ("a.txt.gz", b"", "the compressed file is truncated"),
        ("a.txt.gz", b"plain text", "not a valid .gz file"),
        ("a.txt.gz", gzip.compress(b"text") + b"junk", "not a valid .gz file"),
        ("a.txt.zst", zstandard.compress(noise(1000))[:-200], "the compressed file is truncated"),
        ("a.txt.zst", b"", "the compressed file is truncated"),
        ("a.txt.zst", b"plain text", "not a valid .zst file"),
    ],
)
def test_damaged_compressed_files_are_named(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=expected) as error:
        texts(path)
    assert str(path) in str(error.value)


def test_a_changed_byte_inside_a_gzip_file_is_noticed(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(noise(1000)))
    content[len(content) // 2] ^= 4
    with pytest.raises(DataError, match=r"not a valid \.gz file"):
        texts(write(tmp_path / "a.txt.gz", bytes(content)))


def test_a_file_that_is_named_for_its_language_is_text(tmp_path: Path) -> None:
    (source,) = source_files(write(tmp_path / "a.de", "ein Text"))
    assert (source.name, texts(source.path)) == ("a.de", ["ein Text"])
    check_rule([source], "file")
    with pytest.raises(ConfigError, match=r"the text has no \.txt file"):
        check_rule(source_files(write(tmp_path / "a.txt.jsonl", rows("x"))), "file")


def test_wrong_paths_and_kinds_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: no such file"):
        read_documents([tmp_path / "absent.txt"])
    with pytest.raises(DataError, match=r"a\.csv: unknown kind of file"):
        read_documents([write(tmp_path / "a.csv", "x")])
    with pytest.raises(DataError, match="contains no files that can be read"):
        read_documents(tmp_path)
    with pytest.raises(DataError, match="no text files"):
        read_documents([])
    with pytest.raises(ConfigError, match="on_bad_text is 'ignore'"):
        read_documents(tmp_path, on_bad_text="ignore")  # pyright: ignore[reportArgumentType]


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(documents, "opened", refuse)
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: Permission denied"):
        texts(write(tmp_path / "a.txt", "x"))


def test_a_document_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 100)
    small = "x" * 30 + "\n"
    assert len(texts(write(tmp_path / "a.txt", (small * 3 + "\n") * 4))) == 4
    with pytest.raises(DataError, match=r"line 1: a document of more than 100 bytes; put blank lines"):
        texts(write(tmp_path / "b.txt", small * 4))
    with pytest.raises(DataError, match=r"line 3: a document of more than 100 bytes"):
        texts(write(tmp_path / "c.txt", "a\n\n" + "x" * 500))
    with pytest.raises(DataError, match=r"line 2: a document of more than 100 bytes"):
        texts(write(tmp_path / "d.jsonl", rows("a", "x" * 200)))


def test_errors_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    def use(path: Path) -> None:
        for _ in read_documents([path]):
            raise OSError("of the caller")

    with pytest.raises(OSError, match="of the caller") as error:
        use(write(tmp_path / "a.txt", "one\n\ntwo"))
    assert not isinstance(error.value, DataError)


class TestParquet:
    def test_rows_are_documents(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        found = {}
        for name, kind in {
            "plain": pa.string(),
            "large": pa.large_string(),
            "many": pa.dictionary("int32", pa.string()),
        }.items():
            column = pa.array(["één", " ", "two\r\nlines"] * 200).cast(kind)
            pq.write_table(pa.table({"id": list(range(600)), "text": column}), tmp_path / f"{name}.parquet")
            found[name] = list(read_documents([tmp_path / f"{name}.parquet"]))
        assert [(d.text, d.line) for d in found["plain"][:3]] == [("één", 1), ("two\nlines", 3), ("één", 4)]
        assert len(found["plain"]) == 400
        assert [d.text for d in found["large"]] == [d.text for d in found["many"]] == [d.text for d in found["plain"]]

    def test_wrong_files_are_named(self, tmp_path: Path) -> None:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        def parquet(name: str, **columns) -> Path:
            pq.write_table(pa.table(columns), tmp_path / name)
            return tmp_path / name

        with pytest.raises(DataError, match="no column 'text'; the file has body"):
            texts(parquet("a.parquet", body=["x"]))
        with pytest.raises(DataError, match="must hold strings, not int64"):
            texts(parquet("b.parquet", text=[1]))
        with pytest.raises(DataError, match="row 2: column 'text' has no value"):
            texts(parquet("c.parquet", text=["x", None]))
        with pytest.raises(DataError, match="not a valid Parquet file"):
            texts(write(tmp_path / "d.parquet", b"PAR1 nothing"))
        whole = parquet("e.parquet", text=[noise(50).decode() for _ in range(50)]).read_bytes()
        with pytest.raises(DataError, match="Parquet file"):
            texts(write(tmp_path / "f.parquet", whole[: len(whole) // 2]))

    def test_the_extra_is_named_when_it_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ConfigError, match=r"pip install 'maskloom\[parquet\]'"):
            texts(write(tmp_path / "a.parquet", b"PAR1"))
