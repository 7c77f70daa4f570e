import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from maskloom.errors import ConfigError
from maskloom.system.files import (
    copy_files,
    is_stream,
    numbered_folders,
    open_file_number,
    output_file,
    remove_tree,
    replacing,
    replacing_folder,
    write_bytes,
    write_json,
    write_text,
)
from tools.faults.fault_rules import arm
from tools.soak.processes import environment


def test_a_file_is_replaced_whole(tmp_path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_text(path, "eins\r\n")
    write_text(path, "zwei\n")
    assert path.read_bytes() == b"zwei\n"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_numbered_folders_are_in_order_without_copies(tmp_path) -> None:
    """Regression: a copy of a run's folder, such as seed-0-copy, ended `export` and `--ensemble` in a traceback."""
    for name in ("seed-10", "seed-2", "seed-0-copy", "seed-", "seed-x", f"seed-{'9' * 5000}"[:200], "phase-1"):
        (tmp_path / name).mkdir()
    assert [path.name for path in numbered_folders(tmp_path, "seed")] == ["seed-2", "seed-10"]
    assert numbered_folders(tmp_path / "absent", "seed") == []


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bin"
    write_bytes(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_an_error_names_the_file_and_not_its_temporary_one(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    for path, error in ((tmp_path / "none" / "a", FileNotFoundError), (tmp_path / "folder", IsADirectoryError)):
        with pytest.raises(error) as caught, replacing(path):
            pass
        assert caught.value.filename == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_write_left_goes_with_the_next_write(tmp_path) -> None:
    path, other = tmp_path / "a[1].txt", tmp_path / "other.txt"
    code = "from maskloom.system.files import write_text"
    code += "".join(f"; write_text({str(written)!r}, 'half')" for written in (path, other))
    for faults in ("kill@files.sync#1", "kill@files.sync#3"):  # before the first file is complete, then the second
        killed = subprocess.run([sys.executable, "-c", code], env=environment(MASKLOOM_FAULTS=faults), check=False)
        assert killed.returncode == -9
    living = tmp_path / f".a[1].txt.{os.getpid()}.x.tmp"
    living.touch()
    assert len(list(tmp_path.glob(".*.tmp"))) == 2
    write_text(path, "whole")
    write_text(other, "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == [living.name, path.name, other.name]


def test_the_longest_names_can_be_written(tmp_path) -> None:
    for name in ("n" * 255, "ä" * 127, "x" * 250 + ".json"):
        write_text(tmp_path / name, "old")
        write_text(tmp_path / name, "new")
        assert (tmp_path / name).read_text() == "new"
        code = f"from maskloom.system.files import write_text; write_text({str(tmp_path / name)!r}, 'half')"
        killed = subprocess.run([sys.executable, "-c", code], env=environment(MASKLOOM_FAULTS="kill@files.sync#1"))
        assert killed.returncode == -9
        assert len(list(tmp_path.glob(".*.tmp"))) == 1
        write_text(tmp_path / name, "whole")
        assert not list(tmp_path.glob(".*.tmp"))


def test_an_open_file_is_appended_to_by_its_name(tmp_path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    with path.open("ab") as log:
        for name in (f"/dev/fd/{log.fileno()}", f"/proc/self/fd/{log.fileno()}"):
            with output_file(name, "w") as file:
                file.write("row\n")
    assert path.read_text() == "before\nrow\nrow\n"
    assert not is_stream(path)
    assert is_stream("/dev/stdout")
    assert is_stream("/dev/null")
    assert (open_file_number("/dev/stdout"), open_file_number("/dev/stderr"), open_file_number(path)) == (1, 2, None)


def test_permissions_follow_the_umask(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {"ä": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "ä": 1\n}\n'


def test_a_stream_that_breaks_off_leaves_nothing(tmp_path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path, "w") as file:
        file.write("eins\r\nä\n")
        assert not path.exists()
    assert path.read_bytes() == "eins\r\nä\n".encode()

    def break_off() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    assert path.read_bytes() == "eins\r\nä\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path) -> None:
    final, source = tmp_path / "model", tmp_path / "source"
    write_text(final / "a.txt", "old")
    write_text(source / "a.txt", "new")
    write_text(source / "b.txt", "new")
    arm("enospc@files.copy#2")
    try:
        with (
            pytest.raises(OSError, match=r"No space left on device; the file was not written: .*b\.txt"),
            replacing_folder(final) as new,
        ):
            copy_files(source, new)
    finally:
        arm()
    assert {path.name: path.read_text() for path in final.iterdir()} == {"a.txt": "old"}
    with replacing_folder(final) as new:
        copy_files(source, new)
    assert {path.name: path.read_text() for path in final.iterdir()} == {"a.txt": "new", "b.txt": "new"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source"]


def test_links_to_folders_and_pipes_are_not_copied(tmp_path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    (source / "sub" / "a.txt").write_text("a")
    (source / "link").symlink_to(source / "sub")
    os.mkfifo(source / "pipe")
    copy_files(source, target)
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == ["sub", "sub/a.txt"]


def test_an_old_folder_whose_replacement_was_killed_between_two_renames_gets_its_name_back(tmp_path) -> None:
    process = 2**22 + 1  # above the highest number that Linux gives
    for name, text in (("tmp", "new"), ("tmp-old", "old")):
        (tmp_path / f".model.{name}-{process}").mkdir()
        (tmp_path / f".model.{name}-{process}" / "a.txt").write_text(text)
    with pytest.raises(KeyboardInterrupt), replacing_folder(tmp_path / "model"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "a.txt").read_text() == "old"


def test_a_folder_that_cannot_be_made_is_named_by_its_own_name(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: bool) -> None:
        if path.name.startswith("."):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match=r"model'$"), replacing_folder(tmp_path / "model"):
        pass


def test_a_link_to_a_folder_stays_and_what_it_leads_to_is_replaced(tmp_path) -> None:
    (tmp_path / "disk" / "model" / "1_Pooling").mkdir(parents=True)
    (tmp_path / "disk" / "model" / "1_Pooling" / "a.txt").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("disk/model")
    for _ in range(2):
        with replacing_folder(link) as new:
            copy_files(link, new)
            (new / "b.txt").write_text("new")
    assert link.is_symlink()
    files = {str(path.relative_to(tmp_path)) for path in (tmp_path / "disk").rglob("*") if path.is_file()}
    assert files == {"disk/model/1_Pooling/a.txt", "disk/model/b.txt"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to("disk/other")
    with replacing_folder(nowhere) as new:
        (new / "c.txt").write_text("new")
    assert (tmp_path / "disk" / "other" / "c.txt").exists()


@pytest.mark.parametrize("path", [".", "sub/.."])
def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "out" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "out")
    with pytest.raises(ConfigError, match=rf"^{re.escape(path)}: .*choose another --out"), replacing_folder(Path(path)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_tree_is_removed_without_what_its_links_lead_to(tmp_path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.txt").write_text("kept")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "inside").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to("kept")
    for name in ("tree", "link"):
        remove_tree(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "a.txt"]
