"""Files from elsewhere: what is opened, and which JSON is accepted."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskloom.errors import DataError
from maskloom.system.foreign_files import (
    check_model_name,
    check_regular,
    file_inside,
    is_utf8,
    parse_json,
    read_bytes,
    read_json_object,
)


def test_what_is_no_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, message in (
        ("pipe", "is a pipe; expected a regular file"),
        ("device", "is a device; expected a regular file"),
        (".", "is a folder; expected a regular file"),
        ("absent", "cannot be read: No such file"),
        ("a\0b", "its name contains a NUL character"),
    ):
        with pytest.raises(DataError, match=message):
            check_regular(tmp_path / name)


def test_links_count_as_what_they_lead_to_if_that_is_inside(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "file").write_bytes(b"1")
    (tmp_path / "outside").write_bytes(b"2")
    (home / "in").symlink_to("file")
    (home / "out").symlink_to("../outside")
    assert file_inside(home, "in") == home / "in"
    assert file_inside(home, "absent") is None
    assert file_inside(home, 300 * "m") is None
    with pytest.raises(DataError, match=r"out: is a link to .*outside, outside the folder"):
        file_inside(home, "out")


def test_files_larger_than_the_limit_are_not_read(tmp_path):
    (tmp_path / "file").write_bytes(bytes(11))
    assert read_bytes(tmp_path / "file", limit=11) == bytes(11)
    with pytest.raises(DataError, match="larger than 10 bytes"):
        read_bytes(tmp_path / "file", limit=10)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "byte 1 is not UTF-8"),
        (b'{"a":\n1 2}', "line 2, column 3: not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5_000, "a number has too many digits"),
    ],
)
def test_json_that_is_none_is_named_with_its_place(content, message):
    with pytest.raises(DataError, match=f"x: .*{message}"):
        parse_json(content, "x")


@given(content=st.binary(max_size=60) | st.text('[]{}",:0123456789.eE+-NaInfinityulse \\ud8', max_size=60))
def test_any_json_is_read_or_refused(content):
    try:
        parse_json(content, "x")
    except DataError as error:
        assert str(error).startswith("x: ")  # noqa: PT017


def test_an_object_is_asked_for(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    with pytest.raises(DataError, match="expected a JSON object, got list"):
        read_json_object(tmp_path / "a.json")


def test_the_message_about_an_absent_model_can_be_printed() -> None:
    with pytest.raises(DataError, match=r"^caf\\xe9: there is no such folder") as caught:
        check_model_name("caf\udce9")
    assert is_utf8(str(caught.value))
